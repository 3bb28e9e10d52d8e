"""Parts are kept as they end, whatever happens to the next."""

from __future__ import annotations

import importlib
import io
import json
import os
from pathlib import Path
from typing import get_args

import pytest
import torch
from rich.console import Console

from batchformer.cli import main as cli
from batchformer.cli.options import BenchPart
from batchformer.lab.bench import growth
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.run import PARTS, merged, run
from batchformer.lab.bench.table import Table, read_tables
from batchformer.lab.engine.interrupt import Interrupted

CPU = BenchSettings(torch.device("cpu"), repeats=1)


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def fake(monkeypatch: pytest.MonkeyPatch, part: str, value: float | BaseException) -> None:
    def measure(settings: BenchSettings) -> Table:
        if isinstance(value, BaseException):
            raise value
        table = Table(part, part.title(), ("ms",), settings.environment("float32"))
        table.add(value)
        return table

    monkeypatch.setattr(importlib.import_module(PARTS[part]), "measure", measure)


def kept(folder: Path) -> dict[str, object]:
    return {t.part: t.rows[0][0] if t.rows else t.notes for t in read_tables(folder / "bench.json")}


def test_the_command_line_knows_every_part() -> None:
    assert get_args(BenchPart) == tuple(PARTS)
    for module in PARTS.values():
        assert callable(importlib.import_module(module).measure)


def test_a_failing_part_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = ValueError("no such thing.\nmore")
    values: dict[str, float | BaseException] = {"layer": 1.0, "step": broken, "loader": 3.0}
    for part, value in values.items():
        fake(monkeypatch, part, value)
    screen = console()
    tables = run(CPU, tmp_path, list(values), screen)
    assert [table.failed for table in tables] == [False, True, False]
    found = {"layer": 1.0, "step": ["ValueError: no such thing"], "loader": 3.0}
    assert kept(tmp_path) == found
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    page = (tmp_path / "bench.md").read_text()
    assert all(words in text for words in ("Layer", "no such thing") for text in (shown, page))


def test_a_part_without_a_row_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = Table("loader", "Loader", ("ms",), {}, notes=["N 8 was not measured: no memory"])
    monkeypatch.setattr(importlib.import_module(PARTS["loader"]), "measure", lambda _: empty)
    (table,) = run(CPU, tmp_path, ("loader",), console())
    assert table.failed


def test_an_interruption_loses_nothing_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, "layer", 1.0)
    fake(monkeypatch, "step", KeyboardInterrupt())
    with pytest.raises(Interrupted, match=r"stopped during step; layer measured and kept"):
        run(CPU, tmp_path, ("layer", "step"), console())
    assert kept(tmp_path) == {"layer": 1.0}


def test_parts_measured_before_stay_until_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for part, value in {"loader": 1.0, "layer": 2.0}.items():
        fake(monkeypatch, part, value)
        run(CPU, tmp_path, (part,), console())
    assert list(kept(tmp_path).items()) == [("layer", 2.0), ("loader", 1.0)]
    fake(monkeypatch, "loader", 5.0)
    run(CPU, tmp_path, ("loader",), console())
    fake(monkeypatch, "layer", RuntimeError("broken"))
    run(CPU, tmp_path, ("layer",), console())
    assert kept(tmp_path) == {"layer": 2.0, "loader": 5.0}  # a failure replaces nothing


@pytest.mark.parametrize(("load", "words"), [(0.2, ""), (1.75, "its load was 1.8")])
def test_company_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: float, words: str
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    fake(monkeypatch, "loader", 1.0)
    (table,) = run(CPU, tmp_path, ("loader",), console())
    assert words in " ".join(table.notes) and bool(table.notes) == bool(words)


def test_another_machine_is_another_table() -> None:
    here = Table("loader", "", (), {"machine": "A", "dtype": "float32"})
    there = Table("loader", "", (), {"machine": "B", "dtype": "float32"})
    assert merged([here], there) == [here, there]


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(ValueError, match="choose another folder with --to"):
        run(CPU, tmp_path, ("loader",))
    assert (tmp_path / "bench.json").read_text() == "{}"


def test_by_default_all_parts_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for part in PARTS:
        fake(monkeypatch, part, 1.0)
    assert [t.part for t in run(CPU, tmp_path, (), console())] == list(PARTS)


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "LARGEST", 128)
    options = ["--device", "cpu", "--repeats", "1", "--to", str(tmp_path)]
    cli.main(["bench", "--only", "growth", *options])
    out = capsys.readouterr().out
    assert "One encoder layer against N" in out and "bench.md" in out
    rows = json.loads((tmp_path / "bench.json").read_text())["tables"][0]["rows"]
    assert [(row[0], row[1]["rounds"]) for row in rows] == [(64, 1), (128, 1)]
    with pytest.raises(SystemExit) as stop:
        fake(monkeypatch, "step", RuntimeError("no such device"))
        cli.main(["bench", "--only", "step", *options])
    assert stop.value.code == 1
    seen = capsys.readouterr()
    assert "no such device" in seen.out and "not measured: step" in seen.err


@pytest.mark.parametrize(
    ("wrong", "words"), [(["--only", "speed"], "transforms"), (["--repeats", "0"], "one repeat")]
)
def test_wrong_calls_are_answered(
    wrong: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", *wrong])
    seen = capsys.readouterr()
    assert words in seen.out + seen.err
