"""A disk that is full when a checkpoint is to be written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batchformer.lab.engine import checkpoint
from soak.kills import Unbroken, differences, folder_of, go_on, train, unreadable
from soak.processes import Prepare, die_in_write, finish, limit_files, start

#: Checkpoints that are there when the room ends.
SAVED = 3
#: Bytes that are left then: enough for the records, too few for a checkpoint of the demo.
LEFT = 150_000
#: Size of the small disk.
DISK = 8_000_000


@dataclass(frozen=True)
class Full:
    """What a training did about a full disk.

    Attributes:
        message: the last line that it printed.
        traceback: whether it printed one.
        code: its exit code.
        intact: whether the newest checkpoint from before is still the newest, and readable.
        partial: partial files that it left.
        differences: of the training that went on once there was room, from one never stopped.
    """

    message: str
    traceback: bool
    code: int
    intact: bool
    partial: int
    differences: tuple[str, ...]


def file_limit(root: Path, whole: Unbroken) -> Full:
    """No file may grow beyond a limit, which needs no rights."""
    return _meet(root, whole, partial(limit_files, LEFT), lambda: None)


def small_disk(root: Path, whole: Unbroken) -> Full:
    """A disk in memory that another file fills; to mount it needs root.

    Raises:
        PermissionError: it may not be mounted.
    """
    with _mounted(root):
        ballast = root / "ballast"
        _begin(root / "runs")
        _fill(ballast)
        return _meet(root / "runs", whole, None, ballast.unlink)


def _begin(runs: Path) -> None:
    """Train until some checkpoints are there."""
    if not folder_of(runs).exists():
        trap = partial(die_in_write, "renamed", SAVED)
        finish(start(train(runs), runs.with_suffix(".out"), trap))


def _meet(
    runs: Path, whole: Unbroken, limit: Prepare | None, make_room: Callable[[], None]
) -> Full:
    _begin(runs)
    folder, output = folder_of(runs), whole.folder.parents[3] / f"{runs.name}_full.out"
    before = checkpoint.load_newest(folder / "checkpoints")
    code = finish(start(train(runs), output, limit))
    after = checkpoint.load_newest(folder / "checkpoints")
    intact = before is not None and after is not None and not list(unreadable(folder))
    intact = intact and before["counters"] == after["counters"]  # type: ignore[index]
    left = len(list(runs.rglob("*.partial")))
    make_room()
    go_on(runs)
    said = output.read_text().strip()
    return Full(
        message=said.splitlines()[-1] if said else "",
        traceback="Traceback" in said,
        code=code,
        intact=intact,
        partial=left,
        differences=tuple(differences(whole.folder, folder)),
    )


@contextmanager
def _mounted(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(root)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PermissionError("there is no `mount` here") from error
    if mounted.returncode:
        raise PermissionError(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(root)], check=True)


def _fill(ballast: Path) -> None:
    """Leave too little for a checkpoint."""
    import shutil

    free = shutil.disk_usage(ballast.parent).free
    ballast.write_bytes(bytes(max(free - LEFT, 0)))
