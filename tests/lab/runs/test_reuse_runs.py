"""A finished run under another name: all of it, or nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.insight.files import write_atomically
from batchformer.lab.runs import folder, sweep
from batchformer.lab.runs.folder import read_config, write_figures, write_json
from batchformer.lab.runs.sweep import copy_run, is_intact
from helpers.lab_runs import configuration, trained_with


def finished(where: Path, *parts: str) -> Path:
    """A run that has finished, of these parts if any."""
    for inside in (where, *(where / part for part in parts)):
        trained_with(inside, {**configuration(), "recipe": configuration()["trained"]})
        write_figures(inside / "figures.npz", {"per_class": np.arange(300.0)})
        (inside / "checkpoints").mkdir()
        (inside / "checkpoints/000000100.0a1b.pt").write_bytes(b"weights")
        write_json(inside / "result.json", {"metrics": {"average": 50.0}})
    return where


def test_a_finished_run_is_intact(tmp_path: Path) -> None:
    assert is_intact(finished(tmp_path / "one"))
    assert is_intact(finished(tmp_path / "several", "photo", "art"))
    assert not is_intact(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "figures.npz"])
@pytest.mark.parametrize("part", ["", "photo"])
def test_a_damaged_run_is_not_intact(tmp_path: Path, name: str, part: str) -> None:
    path = finished(tmp_path, "photo") / part / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    for damaged in (whole[:middle], flipped):
        path.write_bytes(damaged)
        assert not is_intact(tmp_path)
    path.unlink()
    # Where a part has no configuration, nothing says that there was a part.
    assert is_intact(tmp_path) == (part != "" and name == "config.json")


def test_a_copy_has_other_words_and_says_where_it_is_from(tmp_path: Path) -> None:
    source, copied = finished(tmp_path / "a/seed0", "photo"), tmp_path / "b/seed0"
    copy_run(source, copied, {"name": "sweep/1"}, "a/seed0")
    assert is_intact(copied)
    for part in ("", "photo"):
        before, after = read_config(source / part), read_config(copied / part)
        assert before and after and before["trained"]["name"] == "pacs_coral"
        for which in ("recipe", "trained"):
            assert after[which] == {**before[which], "name": "sweep/1"}
        assert after["taken_from"] == "a/seed0"
        links = [one / part / "checkpoints/000000100.0a1b.pt" for one in (source, copied)]
        assert links[0].samefile(links[1])
        # What a training appends to must not be shared.
        records = [one / part / "metrics.jsonl" for one in (source, copied)]
        assert not records[0].samefile(records[1])
    copy_run(copied, tmp_path / "c/seed0", {"name": "other/1"}, "b/seed0")
    again = read_config(tmp_path / "c/seed0")
    assert again and again["taken_from"] == "a/seed0" and again["recipe"]["name"] == "other/1"


def test_checkpoints_are_copied_where_they_cannot_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    copy_run(finished(tmp_path / "a/seed0"), tmp_path / "b/seed0", {}, "a/seed0")
    (path,) = (tmp_path / "b/seed0/checkpoints").iterdir()
    assert path.read_bytes() == b"weights" and path.stat().st_nlink == 1


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("files", range(6))
def test_a_copy_that_ends_early_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, killed: bool
) -> None:
    """Ended by the user it leaves nothing; killed, what the next one removes."""
    source, copied = finished(tmp_path / "a/seed0"), tmp_path / "b/seed0"
    done: list[Path] = []

    def ended(write: Any) -> Any:
        def counted(path: Path, *rest: Any) -> None:
            if len(done) == files:
                raise KeyboardInterrupt
            done.append(path)
            write(path, *rest)

        return counted

    with monkeypatch.context() as patch:
        for module in (folder, sweep):
            patch.setattr(module, "write_atomically", ended(write_atomically))
        patch.setattr(os, "link", ended(os.link))
        if killed:  # it removes nothing any more
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            copy_run(source, copied, {}, "a/seed0")
    left = [path.name for path in copied.parent.glob("*")] if copied.parent.exists() else []
    assert left == ([".seed0.partial"] if killed else [])
    copy_run(source, copied, {}, "a/seed0")
    assert is_intact(copied) and [path.name for path in copied.parent.iterdir()] == ["seed0"]
