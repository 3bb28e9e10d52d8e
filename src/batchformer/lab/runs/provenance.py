"""Which code ran where, and each time that a process trained a run."""

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
from typing import Any

import torch

from batchformer import __version__

# Which code ran where: what a reader needs to know before trusting a number.

#: Rooms of the package that play no part in training.
NOT_TRAINING = (
    *("insight/figures/", "insight/page/", "lab/report/", "lab/bench/"),
    *("adapters/", "cli/", "__main__.py"),
)


def provenance(device: torch.device) -> dict[str, Any]:
    """Which code ran where, and by which command."""
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
    """SHA-256 over the source files that training depends on; reports may change freely."""
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


# The sittings of a run: each time that a process trained it, from where, and by which code.
#
# ``config.json`` holds them as ``sittings``, in order: what :func:`provenance` gives,
# ``from_update`` and ``stage``, and in the folder of a run of several trainings the ``part`` that
# was trained. ``provenance`` is that of the first sitting that the trained network still depends
# on. Reports read them, so nothing here needs torch.

Sitting = Mapping[str, Any]
#: What a sitting has besides its provenance.
WHERE = ("from_update", "stage", "part")


def sittings_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sittings in a configuration.

    A configuration from before they were listed has one provenance, and so one sitting.
    """
    if config.get("sittings"):
        return list(config["sittings"])
    provenance = config.get("provenance")
    return [{**provenance, "from_update": 0, "stage": "train"}] if provenance else []


def with_sitting(config: Mapping[str, Any], sitting: Sitting) -> dict[str, Any]:
    """The configuration of a run, with one more sitting."""
    sittings = [*config.get("sittings", []), dict(sitting)]
    first = contributing(sittings)[0]
    provenance = {key: value for key, value in first.items() if key not in WHERE}
    return {**config, "provenance": provenance, "sittings": sittings}


def contributing(sittings: Sequence[Sitting]) -> list[Sitting]:
    """The sittings that the trained network depends on, in order.

    Updates after the newest checkpoint are lost when a process is killed. A later sitting that goes
    on from before an earlier one, or starts over, replaces it.

    >>> at = lambda update: {"from_update": update, "stage": "train"}
    >>> [one["from_update"] for one in contributing([at(0), at(0), at(40), at(90), at(60)])]
    [0, 40, 60]
    """
    stages = list(dict.fromkeys(one["stage"] for one in sittings))  # they follow one another
    kept: list[Sitting] = []
    earliest: dict[Any, tuple[int, int]] = {}
    for one in reversed(sittings):
        began, part = (stages.index(one["stage"]), int(one["from_update"])), one.get("part")
        if part not in earliest or began < earliest[part]:
            kept.append(one)
            earliest[part] = began
    return kept[::-1]
