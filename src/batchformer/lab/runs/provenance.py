"""Which code ran where: what a reader needs to know before trusting a number."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from batchformer import __version__

#: Rooms of the package that play no part in training.
NOT_TRAINING = ("lab/report/", "lab/bench/", "adapters/", "cli/", "__main__.py")


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
