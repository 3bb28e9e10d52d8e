"""Checkpoints are complete or absent, and a training restored from one continues bit by bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.checkpoint import (
    explain_mismatch,
)

# Files.


def test_the_newest_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    for update in (10, 20, 30):
        checkpoint.save(tmp_path, update, {"x": torch.full((3,), update), "n": {"update": update}})
    assert len(list(tmp_path.iterdir())) == 2
    state = checkpoint.load_newest(tmp_path)
    assert state is not None and state["n"] == {"update": 30} and state["x"].tolist() == [30] * 3


def test_the_newest_is_the_furthest_in_the_training_whatever_the_times(tmp_path: Path) -> None:
    """A copy may give all files one time, or the times of the copying, in any order."""
    for update in (90, 100, 2_000_000_000):
        path = checkpoint.save(tmp_path, update, {"at": update})
        os.utime(path, ns=(10**18 - update, 10**18 - update))
    assert checkpoint.load_newest(tmp_path) == {"at": 2_000_000_000}, "one digit more"
    path.write_bytes(b"damaged")
    assert checkpoint.load_newest(tmp_path, lambda _: None) == {"at": 100}


def test_an_update_that_is_saved_again_replaces_itself(tmp_path: Path) -> None:
    for seconds in (1, 2, 3):
        checkpoint.save(tmp_path, 5, {"update": 5, "seconds": 0})
        checkpoint.save(tmp_path, 9, {"update": 9, "seconds": seconds})
    assert sorted(path.name[:9] for path in tmp_path.iterdir()) == ["000000005", "000000009"]
    assert checkpoint.load_newest(tmp_path) == {"update": 9, "seconds": 3}


@pytest.mark.parametrize(
    ("resumed", "update", "left"),
    [(True, 4, ["000000003", "000000004"]), (False, 4, ["000000003"]), (True, 3, ["000000003"])],
)
def test_what_is_trained_again_is_removed(
    tmp_path: Path, resumed: bool, update: int, left: list[str]
) -> None:
    """From every folder of a run; only the checkpoint that is resumed from stays."""
    for folder in ("checkpoints", "best"):
        for at in (3, 4):
            checkpoint.save(tmp_path / folder, at, {})
    (tmp_path / "best/notes.pt").write_bytes(b"somebody's")
    checkpoint.remove_outdated(tmp_path, update, resumed)
    found = {folder: sorted((tmp_path / folder).glob("*.pt")) for folder in ("checkpoints", "best")}
    assert [path.name[:9] for path in found["checkpoints"]] == left
    before = [] if update == 3 else ["000000003"]
    assert [path.name[:9] for path in found["best"]] == [*before, "notes.pt"]
    checkpoint.remove_outdated(tmp_path, 0, resumed=False)
    assert [path.name for path in tmp_path.glob("*/*")] == ["notes.pt"]


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


# A state that does not fit. That a training resumes bit by bit is in test_fit.py.


ERRORS = (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError)


@settings(max_examples=20)
@given(st.sampled_from(ERRORS), st.text(max_size=50))
@example(RuntimeError, "size mismatch\n\t" * 50)
def test_the_reason_is_one_short_line(kind: type[Exception], message: str) -> None:
    cause = kind(message)
    with pytest.raises(ValueError) as refused, explain_mismatch(Path("run")):
        raise cause
    assert refused.value.__cause__ is cause
    words = str(refused.value)
    start, end = "The newest checkpoint in run is not of this training (", "). Give --runs"
    assert words.startswith(f"{start}{kind.__name__}:") and len(words.splitlines()) == 1
    assert len(words[len(start) : words.rindex(end)]) <= 200


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), OSError("gone"), KeyboardInterrupt()]
)
def test_what_is_no_fault_of_the_state_stays_what_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, explain_mismatch(Path("run")):
        raise error
    assert raised.value is error
