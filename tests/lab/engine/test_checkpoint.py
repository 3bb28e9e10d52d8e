"""Whole or absent, and known by their hash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from batchformer.lab.engine import checkpoint


def test_the_newest_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    for update in (10, 20, 30):
        checkpoint.save(tmp_path, update, {"x": torch.full((3,), update), "n": {"update": update}})
    assert len(list(tmp_path.iterdir())) == 2
    state = checkpoint.load_newest(tmp_path)
    assert state is not None and state["n"] == {"update": 30} and state["x"].tolist() == [30] * 3


def test_the_newest_is_the_furthest_in_the_training_whatever_the_times(tmp_path: Path) -> None:
    """A copy may give all files one time, or the times of the copying, in any order."""
    for stage, update in ((0, 90), (0, 100), (1, 2), (1, 10)):
        path = checkpoint.save(tmp_path, update, {"at": [stage, update]}, stage)
        os.utime(path, ns=(10**18 - update, 10**18 - update))
    assert checkpoint.load_newest(tmp_path) == {"at": [1, 10]}
    path.write_bytes(b"damaged")
    assert checkpoint.load_newest(tmp_path, lambda _: None) == {"at": [1, 2]}


def test_a_stage_that_starts_keeps_the_end_of_the_one_before(tmp_path: Path) -> None:
    for update in (90, 100):
        checkpoint.save(tmp_path, update, {"at": [0, update]})
    checkpoint.save(tmp_path, 3, {"at": [1, 3]}, stage=1).write_bytes(b"damaged")
    assert checkpoint.load_newest(tmp_path, lambda _: None) == {"at": [0, 100]}


def test_an_update_that_is_saved_again_replaces_itself(tmp_path: Path) -> None:
    for seconds in (1, 2, 3):
        checkpoint.save(tmp_path, 5, {"update": 5, "seconds": 0})
        checkpoint.save(tmp_path, 9, {"update": 9, "seconds": seconds})
    assert sorted(path.name[:9] for path in tmp_path.iterdir()) == ["000000005", "000000009"]
    assert checkpoint.load_newest(tmp_path) == {"update": 9, "seconds": 3}


def test_what_is_trained_again_is_removed(tmp_path: Path) -> None:
    for stage, update in ((0, 100), (1, 4)):
        checkpoint.save(tmp_path, update, {"at": [stage, update]}, stage)
    (tmp_path / "notes.pt").write_bytes(b"somebody's")
    checkpoint.remove_from(tmp_path, 1, 5)
    assert checkpoint.load_newest(tmp_path) == {"at": [1, 4]}
    checkpoint.remove_from(tmp_path, 1, 0)
    assert checkpoint.load_newest(tmp_path) == {"at": [0, 100]}
    checkpoint.remove_from(tmp_path, 0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.pt"]


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty"])
def test_a_damaged_one_falls_back_to_the_one_before_and_says_so(tmp_path: Path, harm: str) -> None:
    checkpoint.save(tmp_path, 1, {"update": 1})
    path = checkpoint.save(tmp_path, 2, {"update": 2, "weights": torch.randn(100)})
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes({"truncate": content[:-50], "flip": content, "empty": b""}[harm])
    os.utime(path)
    said: list[str] = []
    state = checkpoint.load_newest(tmp_path, said.append)
    assert state == {"update": 1}
    assert len(said) == 1 and str(path) in said[0] and "damaged" in said[0]


def test_nothing_there_is_nothing(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    assert checkpoint.load_newest(tmp_path / "absent") is None


def test_leftovers_of_a_killed_process_are_ignored_and_removed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"update": 1})
    (tmp_path / ".000000002.abc.pt.99.partial").write_bytes(b"half of it")
    assert checkpoint.load_newest(tmp_path) == {"update": 1}
    checkpoint.save(tmp_path, 3, {"update": 3})
    assert not list(tmp_path.glob(".*"))


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {"harmless": print})
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        checkpoint.load(path)


def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    checkpoint.write_atomically(target, b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
