"""Whole or absent, and known by their hash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from batchformer.engine import checkpoint


def test_the_newest_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    for update in (10, 20, 30):
        checkpoint.save(tmp_path, update, {"x": torch.full((3,), update), "n": {"update": update}})
    assert len(list(tmp_path.iterdir())) == 2
    state = checkpoint.load_newest(tmp_path)
    assert state is not None and state["n"] == {"update": 30} and state["x"].tolist() == [30] * 3


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
