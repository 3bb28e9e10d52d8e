"""Run folders that are half written, foreign, of another version, or hostile."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.engine import checkpoint
from batchformer.lab.runs import folder as folders
from helpers.lab_runs import bytes_of
from soak.kills import differences, folder_of

Refused = Callable[..., str]


def put(folder: Path, update: int, state: object) -> Path:
    """Write a checkpoint whose name fits its content, as anybody could."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    name = f"{update:09d}.{hashlib.sha256(buffer.getvalue()).hexdigest()[:32]}.pt"
    path = folder / "checkpoints" / name
    path.write_bytes(buffer.getvalue())
    os.utime(path, (2e9, 2e9))  # the newest
    return path


@pytest.mark.parametrize(
    ("content", "finished"),
    [
        *((c, False) for c in (b"", b"[]", b"{}", b"\xff", b'{"trained": 3}', b"[" * 100_000)),
        *((b'{"trained": {}, %s}' % c, False) for c in (b'"data": 3', b'"sittings": {}')),
        (b'{"recipe": {', True),
    ],
)
def test_a_half_written_configuration_is_named(
    runs: Path, again: list[str], refused: Refused, content: bytes, finished: bool
) -> None:
    folder = folder_of(runs)
    (folder / "config.json").write_bytes(content)
    if finished:
        (folder / "result.json").write_text('{"metrics": {"all": 1.0}}')
    before = bytes_of(folder)
    for command in (again, ["evaluate", folder], ["export", folder, "--to", runs / "x.pt"]):
        said = refused(*command)
        assert f"{folder / 'config.json'} is damaged" in said and "--runs" in said
    assert bytes_of(folder) == before, "nothing was touched"


def test_a_result_that_was_cut_is_named_and_can_be_written_again(
    runs: Path, again: list[str], refused: Refused, trained: Path
) -> None:
    result = folder_of(runs) / "result.json"
    for content in ("", '{"metrics": {"al', "{}", "3"):
        result.write_text(content)
        said = refused(*again)
        assert f"{result} is damaged" in said and "Remove it" in said
    result.unlink()
    cli.main(again)
    assert not list(differences(folder_of(runs), folder_of(trained)))


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_report_names_a_half_written_run_and_goes_on(
    runs: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder_of(runs) / name).write_text('{"re')
    cli.main(["report", str(runs), "--to", str(runs / "page.html")])
    assert f"is damaged: {name} is not JSON" in " ".join(capsys.readouterr().out.split())
    assert "damaged" in (runs / "page.html").read_text()


def test_records_that_are_torn_or_none_of_ours_do_not_stop_a_run(
    runs: Path, again: list[str], trained: Path
) -> None:
    with (folder_of(runs) / "metrics.jsonl").open("ab") as file:
        file.write(b'5\n[]\n{"kind": "train"}\n\xff\xfe\n\0\0\0\n{"kind": "ev')
    cli.main(again)
    assert list(differences(folder_of(trained), folder_of(runs))) == []


@pytest.mark.parametrize(
    "state",
    [
        {"x": 1},
        {"counters": {"stage": "first"}, "method": {}, "average": None},
        {"counters": {"stage": 0}, "method": {"network.other": torch.ones(2)}, "average": None},
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    runs: Path, again: list[str], refused: Refused, state: dict[str, Any]
) -> None:
    folder = folder_of(runs)
    put(folder, 9, state)
    before = bytes_of(folder / "checkpoints")
    for command in (again, ["evaluate", folder, "--device", "cpu"]):
        said = refused(*command)
        assert "is not of this training" in said and str(folder) in said
    assert bytes_of(folder / "checkpoints") == before


def test_a_checkpoint_whose_counters_are_none_is_refused(
    runs: Path, again: list[str], refused: Refused
) -> None:
    state = checkpoint.load_newest(folder_of(runs) / "checkpoints")
    assert state is not None
    for counters in (None, {}):
        put(folder_of(runs), 9 if counters is None else 10, {**state, "counters": counters})
        assert "is not of this training" in refused(*again)


def test_a_checkpoint_of_a_newer_version_is_refused(
    runs: Path, again: list[str], refused: Refused
) -> None:
    folder = folder_of(runs)
    state = checkpoint.load_newest(folder / "checkpoints")
    assert state is not None
    path = put(folder, 9, {**state, "format": checkpoint.FORMAT + 1})
    for command in (again, ["evaluate", folder]):
        said = refused(*command)
        assert str(path) in said and "newer" in said and "pip install --upgrade" in said


def test_a_configuration_of_a_newer_version_is_refused(
    runs: Path, again: list[str], refused: Refused
) -> None:
    path = folder_of(runs) / "config.json"
    config = json.loads(path.read_text())
    assert config["format"] == folders.FORMAT
    path.write_text(json.dumps({**config, "format": folders.FORMAT + 1}))
    assert "newer" in refused(*again)
    config["trained"]["depth"] = 3
    path.write_text(json.dumps(config))
    said = refused("evaluate", path.parent)
    assert str(path) in said and "depth" in said


def test_truncated_checkpoints_are_passed_over_and_named(
    runs: Path, again: list[str], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (folder_of(runs) / "checkpoints").glob("*.pt"):
        path.write_bytes(path.read_bytes()[:5000])
    cli.main(again)
    said = capsys.readouterr().err
    assert said.count("is damaged") == 2 and said.count("There is none before it") == 1
    assert list(differences(folder_of(trained), folder_of(runs))) == []


class Payload:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "it was run")


def test_a_payload_is_refused_and_not_run(
    runs: Path, again: list[str], refused: Refused, tmp_path: Path
) -> None:
    import pickle

    written, folder = tmp_path / "written", folder_of(runs)
    pickle.loads(pickle.dumps(Payload(written)))
    assert written.exists(), "the payload would do it"
    written.unlink()
    path = put(folder, 9, {"method": Payload(written)})
    for command in (again, ["evaluate", folder], ["export", folder, "--to", tmp_path / "x.pt"]):
        said = refused(*command)
        assert str(path) in said and "no code in it was run" in said
    assert not written.exists()


def test_arrays_with_a_payload_are_not_run(runs: Path, tmp_path: Path) -> None:
    written, folder = tmp_path / "written", folder_of(runs)
    (folder / "result.json").write_text('{"metrics": {"all": 1.0}}')
    hostile = np.array([Payload(written)], dtype=object)
    for name in ("figures.npz", "insight.npz"):
        np.savez(folder / name, per_class=hostile, classes=hostile, allow_pickle=True)
    cli.main(["report", str(runs), "--to", str(runs / "page.html")])
    assert (runs / "page.html").exists() and not written.exists()


@pytest.mark.parametrize("outside", ["../../outside", "/outside", "a/../../b", "..\\x", "."])
def test_names_that_lead_out_of_the_folder_of_runs(
    runs: Path, refused: Refused, tmp_path: Path, outside: str
) -> None:
    path = folder_of(runs) / "config.json"
    config = json.loads(path.read_text())
    for setting in ("name", "start", "teacher"):
        trained = {**config["trained"], setting: outside}
        path.write_text(json.dumps({**config, "trained": trained}))
        assert "not inside the folder of runs" in refused("evaluate", path.parent)
    command = ("train", "demo", "--method", "crt", "--start", outside, "--runs", tmp_path / "new")
    assert "not inside the folder of runs" in refused(*command)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("key", ["arm", "seed", "name"])
def test_a_report_writes_nothing_but_its_page(runs: Path, tmp_path: Path, key: str) -> None:
    path = folder_of(runs) / "config.json"
    config = json.loads(path.read_text())
    if key == "name":
        config["recipe"]["name"] = "../../../escaped"
    else:
        config[key] = "../../../escaped"
    path.write_text(json.dumps(config))
    before = set(tmp_path.rglob("*"))
    cli.main(["report", str(runs), "--to", str(tmp_path / "page.html")])
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "page.html"}


BAD = '</script><img src=x onerror="alert(1)">'


def test_a_class_name_cannot_inject_markup(runs: Path, trained: Path) -> None:
    folder = folder_of(runs)
    shutil.copy(folder_of(trained) / "result.json", folder)
    for name in ("figures.npz", "insight.npz"):
        with np.load(folder / name, allow_pickle=False) as found:
            arrays = dict(found)
        for key, array in arrays.items():
            if array.dtype.kind == "U":
                arrays[key] = np.array([BAD] * len(array)) if array.ndim == 1 else array
        np.savez_compressed(folder / name, **arrays)
    cli.main(["report", str(runs), "--to", str(runs / "page.html")])
    page = (runs / "page.html").read_text()
    assert "<img src=x" not in page and "onerror=" in page, "it is there, as text"
    scripts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert scripts and all(BAD in str(json.loads(script)) for script in scripts)


@pytest.mark.parametrize("place", ["", "demo", "demo/batchformer", "demo/batchformer/seed0"])
def test_a_file_in_place_of_a_folder(
    tmp_path: Path, again: list[str], refused: Refused, place: str
) -> None:
    file = tmp_path / "new" / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    said = refused(*again[:-1], tmp_path / "new")
    assert str(file) in said and "a file lies where a folder is needed" in said
    assert file.read_text() == "mine"


def test_a_file_in_place_of_the_folder_of_checkpoints(
    runs: Path, again: list[str], refused: Refused
) -> None:
    folder = folder_of(runs) / "checkpoints"
    shutil.rmtree(folder)
    folder.write_text("mine")
    assert f"{folder}: " in refused(*again) and folder.read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "Permission denied."),
        (errno.EROFS, "Read-only file system; name another place by --runs, --to or --page."),
    ],
)
def test_a_folder_that_may_not_be_written(
    tmp_path: Path,
    again: list[str],
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    reason: str,
) -> None:
    """Root may write anywhere, so the system's refusal is simulated."""

    def deny(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", deny)
    said = refused(*again[:-1], tmp_path / "new")
    assert reason in said and str(tmp_path / "new") in said
