"""Let the disk be full when a training writes a checkpoint."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batchformer.lab.engine import checkpoint
from soak.kills import SHORT, Unbroken, differences, folder_of, go_on, train, unreadable
from soak.processes import Prepare, die_in_write, finish, limit_files, start

#: Checkpoints that are saved before the disk is full.
SAVED = 3
#: Bytes that are left then: enough for records, too few for a checkpoint of the demo.
LEFT = 150_000
#: Size of the small disk.
DISK = 8_000_000


@dataclass(frozen=True)
class Full:
    """What a training did about a full disk."""

    message: str  # the last line that it printed
    traceback: bool
    code: int
    intact: bool  # the newest checkpoint is the same as before, and readable
    partial: int  # files that it left
    differences: tuple[str, ...]  # of the training resumed with free space from one never stopped


def file_limit(root: Path, whole: Unbroken, options: Sequence[str] = SHORT) -> Full:
    """Limit the size of files, which needs no special rights."""
    return _train_when_full(root, whole, options, partial(limit_files, LEFT), lambda: None)


def small_disk(root: Path, whole: Unbroken) -> Full:
    """Mount a small disk in memory and fill it with another file; needs root."""
    with _mounted(root):
        ballast = root / "ballast"
        _save_some(root / "runs", SHORT)
        free = shutil.disk_usage(root).free
        ballast.write_bytes(bytes(max(free - LEFT, 0)))
        return _train_when_full(root / "runs", whole, SHORT, None, ballast.unlink)


def _save_some(runs: Path, options: Sequence[str]) -> None:
    """Train until some checkpoints are saved."""
    if not folder_of(runs).exists():
        trap = partial(die_in_write, "renamed", SAVED)
        finish(start(train(runs, options), runs.with_suffix(".out"), trap))


def _train_when_full(
    runs: Path,
    whole: Unbroken,
    options: Sequence[str],
    limit: Prepare | None,
    make_room: Callable[[], None],
) -> Full:
    _save_some(runs, options)
    folder, output = folder_of(runs), whole.folder.parents[3] / f"{runs.name}_full.out"
    before = checkpoint.load_newest(folder / "checkpoints")
    code = finish(start(train(runs, options), output, limit))
    after = checkpoint.load_newest(folder / "checkpoints")
    intact = before is not None and after is not None and not list(unreadable(folder))
    intact = intact and before["counters"] == after["counters"]  # type: ignore[index]
    left = len(list(runs.rglob("*.partial")))
    make_room()
    go_on(runs, options)
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
