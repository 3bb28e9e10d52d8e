"""Which code ran where, for every sitting of a run.

A sitting is the time in which one process trains the run: a start or a resumption. ``config.json``
lists them as ``sittings``, in order: each has what :func:`provenance` gives, ``from_update`` and
``stage``, and in the folder of a run with parts the ``part`` that was trained. ``provenance`` in
``config.json`` is that of the first sitting that the trained network still depends on.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer import __version__

if TYPE_CHECKING:
    import torch

Sitting = Mapping[str, Any]
#: Parts of the package that training does not depend on.
NOT_TRAINING = (
    *("insight/figures/", "insight/page/", "lab/report/", "lab/bench/"),
    *("adapters/", "cli/", "__main__.py"),
)
#: Keys of a sitting besides its provenance.
WHERE = ("from_update", "stage", "part")


def provenance(device: torch.device) -> dict[str, Any]:
    """Which code ran where, and by which command."""
    import torch  # late: reports read sittings without it

    hardware = platform.processor() or platform.machine()
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    return {
        "batchformer": __version__,
        "code_sha256": code_hash(),
        "git": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "hardware": f"{hardware}, {torch.get_num_threads()} threads",
        "command": shlex.join(["batchformer", *sys.argv[1:]]),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@lru_cache(maxsize=1)
def code_hash() -> str:
    """SHA-256 of the source files that training depends on; reports may change freely."""
    package = Path(__file__).parents[2]
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith(NOT_TRAINING):
            total.update(name.encode() + path.read_bytes())
    return total.hexdigest()


@lru_cache(maxsize=1)
def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def with_sitting(config: Mapping[str, Any], sitting: Sitting) -> dict[str, Any]:
    """The configuration of a run with one more sitting."""
    sittings = [*config.get("sittings", []), dict(sitting)]
    first = contributing(sittings)[0]
    provenance = {key: value for key, value in first.items() if key not in WHERE}
    return {**config, "provenance": provenance, "sittings": sittings}


def contributing(sittings: Sequence[Sitting]) -> list[Sitting]:
    """The sittings that the trained network depends on, in order.

    Updates after the newest checkpoint are lost when a process is killed. A later sitting that
    begins before an earlier one, or starts over, replaces it.

    >>> at = lambda update: {"from_update": update, "stage": "train"}
    >>> [one["from_update"] for one in contributing([at(0), at(0), at(40), at(90), at(60)])]
    [0, 40, 60]
    """
    kept: list[Sitting] = []
    earliest: dict[Any, int] = {}
    for one in reversed(sittings):
        began, part = int(one["from_update"]), one.get("part")
        if part not in earliest or began < earliest[part]:
            kept.append(one)
            earliest[part] = began
    return kept[::-1]
