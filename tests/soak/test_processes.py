"""Commands in processes of their own, and where they die."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from batchformer.lab.engine import checkpoint
from soak.kills import folder_of, train
from soak.processes import PLACES, die_in_write, finish, start

#: Partial files and checkpoints that a death in the second write leaves.
LEFT = {"half written": (1, 1), "written": (1, 1), "flushed": (1, 1), "renamed": (0, 2)}
SHORT = ("--train.updates", "6", "--train.checkpoint-every", "2")


def test_what_a_command_prints_and_its_exit_code(tmp_path: Path) -> None:
    assert finish(start(["nonsense"], tmp_path / "out")) == 2
    assert "There is no command 'nonsense'" in (tmp_path / "out").read_text()


@pytest.mark.parametrize("place", PLACES)
def test_where_a_process_dies(tmp_path: Path, place: str) -> None:
    process = start(train(tmp_path, SHORT), tmp_path / "out", partial(die_in_write, place, 2))
    assert finish(process) == -signal.SIGKILL
    folder = folder_of(tmp_path) / "checkpoints"
    partials, whole = list(folder.glob(".*.partial")), list(folder.glob("0*.pt"))
    assert (len(partials), len(whole)) == LEFT[place]
    sizes = {path.stat().st_size for path in whole}
    assert all((path.stat().st_size < min(sizes)) == (place == "half written") for path in partials)
    found = checkpoint.load_newest(folder)
    assert found is not None and found["counters"]["update"] == 2 * len(whole)
