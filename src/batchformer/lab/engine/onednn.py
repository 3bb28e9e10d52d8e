"""Work around CPUs that advertise AMX but refuse its instructions.

Some virtual machines list ``amx_tile`` and ``amx_bf16`` among the CPU flags but refuse the
instructions. oneDNN trusts the flags, so the first bf16 product ends the process with "Illegal
instruction", which Python cannot catch. oneDNN reads ONEDNN_MAX_CPU_ISA at its first use. Before
that we try a product in a child process, and set the variable if the child dies.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch

from batchformer.lab.engine.distributed.torchrun import print_once

#: The variable that limits oneDNN, its older name, and the largest instruction set without AMX.
VARIABLE, OLD_VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16"
#: Autocast types whose products may take AMX.
REDUCED = ("bf16", "fp16")
#: Seconds to wait for the child; it needs 0.02, or 3 without fork.
PATIENCE_S = 60.0


def bf16_product() -> None:
    """One bf16 product of a size for which oneDNN uses AMX."""
    torch.set_num_threads(1)  # a forked child lacks the threads of its parent
    torch.ones(32, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)


def limit_if_products_die(product: Callable[[], object] = bf16_product) -> str | None:
    """Limit oneDNN, here and in child processes, to instructions that this CPU allows.

    Call it before oneDNN is first used. A variable that the user has set is not changed.

    Returns:
        A line that says what was limited and why; None if nothing was.
    """
    if VARIABLE in os.environ or OLD_VARIABLE in os.environ or not _dies(product):
        return None
    os.environ[VARIABLE] = WITHOUT_AMX
    return (
        "This CPU advertises AMX but does not allow it: a bf16 product ended a trial process. "
        f"oneDNN runs without AMX now ({VARIABLE}={WITHOUT_AMX})."
    )


def prepare(device: torch.device, precisions: Iterable[str]) -> None:
    """Limit oneDNN before work in these precisions, if necessary, and print that."""
    if device.type != "cpu" or not set(precisions) & set(REDUCED):
        return
    if line := limit_if_products_die():
        print_once(line)


def _dies(product: Callable[[], object]) -> bool:
    """Whether a child process that computes this product is killed."""
    fork = "fork" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if fork else "spawn")
    child = context.Process(target=_try, args=(product,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking with threads: the child uses none
        child.start()
    child.join(PATIENCE_S)
    if child.exitcode is None:
        child.kill()
        child.join()
        return False
    return bool(child.exitcode != 0)


def _try(product: Callable[[], object]) -> None:
    """Compute the product in the child; if it dies, it leaves no message and no core file."""
    faulthandler.disable()
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(Exception):  # the training will raise the same Python error
        product()
