"""Reduced precision on a CPU that advertises AMX and does not allow it.

Some virtual machines list ``amx_tile`` and ``amx_bf16`` among the flags of their CPU, and refuse
the instructions. oneDNN believes the flags, so the first bf16 product ends the process with
"Illegal instruction", which no Python code can catch. oneDNN reads ONEDNN_MAX_CPU_ISA when it is
first used: a product is tried in a child process before that, and the variable set if it dies.
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

from batchformer.lab.engine.distributed import torchrun as wide

#: The variable that limits oneDNN, its older name, and the largest instruction set without AMX.
VARIABLE, OLD_VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16"
#: Autocast types whose products may take AMX.
REDUCED = ("bf16", "fp16")
#: Seconds after which a child that has not ended is given up; it needs 0.02, or 3 without fork.
PATIENCE_S = 60.0


def bf16_product() -> None:
    """One bf16 product of a size for which oneDNN takes AMX."""
    torch.set_num_threads(1)  # a forked child does not have the threads of its parent
    torch.ones(32, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)


def limit_if_products_die(product: Callable[[], object] = bf16_product) -> str | None:
    """Limit oneDNN in this process, and those it starts, to what this CPU can do.

    To be called before oneDNN is first used. A variable that a person has set is left alone.

    Args:
        product: what the child process tries.

    Returns:
        A line that says what was limited and why; None where nothing was.
    """
    if VARIABLE in os.environ or OLD_VARIABLE in os.environ or not _dies(product):
        return None
    os.environ[VARIABLE] = WITHOUT_AMX
    return (
        "This CPU advertises AMX and does not allow it: a bf16 product ended a trial process. "
        f"oneDNN is limited by {VARIABLE}={WITHOUT_AMX}."
    )


def prepare(device: torch.device, precisions: Iterable[str]) -> None:
    """Before work in these precisions: limit oneDNN where it has to be, and say so."""
    if device.type != "cpu" or not set(precisions) & set(REDUCED):
        return
    if line := limit_if_products_die():
        wide.say(line)


def _dies(product: Callable[[], object]) -> bool:
    """Whether a child process that does this is ended by the system."""
    fork = "fork" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if fork else "spawn")
    child = context.Process(target=_try, args=(product,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: the child uses none of theirs
        child.start()
    child.join(PATIENCE_S)
    if child.exitcode is None:
        child.kill()
        child.join()
        return False
    return bool(child.exitcode != 0)


def _try(product: Callable[[], object]) -> None:
    """In the child: die without a word and without a core file."""
    faulthandler.disable()
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(Exception):  # an error that Python can show is for the training to show
        product()
