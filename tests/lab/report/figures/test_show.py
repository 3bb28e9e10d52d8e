"""`batchformer show`: a file, numbers, or what to do."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from batchformer.cli import main as cli
from batchformer.insight.figures.canvas import INK
from batchformer.lab.report.figures.catalogue import FIGURES
from batchformer.lab.report.figures.show import PRINT_INK, in_ink, show, write_figure
from helpers.run_folders import RunTree, change_arrays, recipe_of, write_insight


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of both arms, with what only some tasks keep."""
    tree = RunTree(tmp_path_factory.mktemp("show"))
    for arm in ("baseline", "batchformer"):
        for seed in range(2):
            folder = write_insight(tree.write(arm, seed, classes=12))
            change_arrays(
                folder,
                bias_of=np.array("classes"),
                bias_seen=np.array([60.0, 40.0, 0.0]),
                bias_unseen=np.array([0.0, 30.0, 50.0]),
                choice_epochs=np.array([50, 100]),
                choice_hm=np.array([40.0, 45.0]),
                chosen_epoch=np.array(100),
            )
    return tree.root


def printed(name: str, *paths: Path, **options: Any) -> str:
    out = io.StringIO()
    show(name, paths, console=Console(file=out, width=100), **options)
    return out.getvalue()


@pytest.mark.parametrize("name", FIGURES)
def test_numbers_are_printed_and_an_svg_has_a_title_and_words(
    root: Path, name: str, tmp_path: Path
) -> None:
    shown = FIGURES[name].of(RunTree(root).group())
    if shown is None:  # its own test has runs that it is drawn from
        with pytest.raises(ValueError, match=f"^{name} is drawn from .* and no run of tail has"):
            printed(name, root)
        return
    text = printed(name, root)
    assert text.startswith(f"{shown.title}: ")
    tables = [*shown.tables, *shown.terminal_tables]
    assert tables
    for table in tables:
        assert table.caption in text
        assert table.rows[-1][-1] in text
    path = tmp_path / "new" / f"{name}.svg"
    write_figure(shown, path)
    spoken = " ".join(" ".join(ElementTree.parse(path).getroot().itertext()).split())
    assert shown.title in spoken
    assert " ".join(shown.caption.alternative.split())[:60] in spoken
    assert path.stat().st_size < 1_000_000


def test_an_arm_that_is_not_there_is_refused(root: Path) -> None:
    for name, options in (("classes", {"against": "nix"}), ("cam", {"options": {"arm": "nix"}})):
        with pytest.raises(ValueError, match=r"--a\w+ nix: .* arms: baseline, batchformer\."):
            printed(name, root, **options)


def test_png_and_pdf_can_be_printed(root: Path, tmp_path: Path) -> None:
    said = printed("bias", root, to=tmp_path / "figure.PNG").replace("\n", "")
    assert said.endswith(f"Figure: {tmp_path / 'figure.PNG'}")
    with Image.open(tmp_path / "figure.PNG") as image:
        assert image.width == 990 and image.getpixel((image.width - 1, 0))[3] == 0
        assert "Description" in image.info
    printed("cam", root, to=tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_paper_has_darker_ink(root: Path) -> None:
    from matplotlib.colors import to_hex

    shown = FIGURES["reliability"].of(RunTree(root).group())
    assert shown is not None
    figure = shown.draw()
    in_ink(figure, PRINT_INK)
    diagonal, *lines = figure.axes[0].lines
    assert to_hex(diagonal.get_color()) == PRINT_INK
    assert to_hex(lines[-1].get_color()) not in (INK, PRINT_INK)
    figure.canvas.draw()
    assert to_hex(figure.axes[0].get_yticklabels()[0].get_color()) == PRINT_INK


def test_options_reach_the_figure(root: Path, tmp_path: Path) -> None:
    assert "length of the gradient" in printed("influence", root, options={"measure": "l2"})
    text = printed("cam", root, options={"shots": "few", "rule": "change", "images": 2})
    assert "2 test images" in " ".join(text.split())
    assert "difference to batchformer" in " ".join(
        printed("head_tail", root, against="batchformer").split()
    )


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("influnce", {}, "Did you mean influence?"),
        ("cam", {"options": {"measure": "l2"}}, "does not take --measure; its own options: --rule"),
        ("features", {"options": {"by_shots": True}}, "--by-shots; its own options: none"),
        ("cam", {"to": Path("figure.jpg")}, "written as .svg, .png or .pdf"),
        ("convergence", {}, "drawn from metrics.jsonl of a linear probe, and no run"),
        ("attention", {"options": {"arm": "baseline"}}, "though some were looked at"),
    ],
)
def test_mistakes_are_named(root: Path, name: str, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        printed(name, root, **options)


def test_what_is_missing_is_computed_if_asked_for(
    tree: RunTree, capsys: pytest.CaptureFixture[str]
) -> None:
    done = write_insight(tree.write("batchformer", 0))
    folder = tree.write("batchformer", 1)
    (done / "insight.npz").rename(tree.root / "aside.npz")
    with pytest.raises(ValueError, match=f"`batchformer show influence {tree.root} --compute`"):
        printed("influence", tree.root)
    (tree.root / "aside.npz").rename(done / "insight.npz")
    asked: list[Path] = []

    def compute(path: Path) -> None:
        asked.append(path)
        write_insight(path)

    text = " ".join(printed("influence", tree.root, compute=compute).split())
    assert asked == [folder] and "over 2 seeds" in text
    assert f"Looking at {folder}" in capsys.readouterr().err
    printed("influence", tree.root, compute=compute)
    printed("training", tree.root, compute=compute)
    assert asked == [folder]


def test_where_there_is_nothing_to_see_it_is_said(tree: RunTree) -> None:
    tree.write("baseline", 0)
    with pytest.raises(ValueError, match="does not exist for this recipe"):
        printed("cam", tree.root, compute=lambda folder: None)


def test_no_computation_is_advised_for_a_detector(tree: RunTree) -> None:
    tree.write("batchformer", 0, recipe=recipe_of(task="detection"))
    with pytest.raises(ValueError, match="does not exist for this recipe"):
        printed("influence", tree.root)


def test_the_command_writes_and_computes(
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tree: RunTree,
) -> None:
    cli.main(["show", "influence", str(root), "--to", str(tmp_path / "a.svg"), "--cumulative"])
    assert "cumulative mean" in (tmp_path / "a.svg").read_text()
    places: list[tuple[Path, str]] = []

    def insight_of(folder: Path, device: Any, root: str | None) -> None:
        assert root == "moved"
        places.append((folder, str(device)))
        write_insight(folder)

    computing = types.ModuleType("batchformer.lab.runs.insight")
    monkeypatch.setattr(computing, "insight_of", insight_of, raising=False)
    monkeypatch.setitem(sys.modules, "batchformer.lab.runs.insight", computing)
    folder = tree.write("batchformer", 0)
    given = ["--compute", "--device", "cpu", "--data", "moved"]
    cli.main(["show", "attention", str(tree.root), *given])
    assert places == [(folder, "cpu")]
    assert "Where attention goes" in capsys.readouterr().out
