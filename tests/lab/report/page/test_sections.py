from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from batchformer.lab.report.figures.catalogue import FIGURES
from batchformer.lab.report.page.sections import sections_of
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import COLOURS
from helpers.run_folders import RunTree, write_insight
from helpers.simulated_networks import simulated_batches, simulated_insight

#: The sections of runs that were looked at; further figures may stand between them.
ORDER = [
    "Training",
    "Accuracy by class",
    "From head to tail",
    "Reliability",
    "Influence by gradient",
    "Attention between samples",
    "Inside a batch",
    "Feature space",
    "Where the network looks",
]


def notes(group: RunGroup, *names: str) -> list[str]:
    """The captions of these figures, which are not drawn."""
    made = [FIGURES[name].of(group) for name in names]
    return [figure.caption.text for figure in made if figure is not None]


def test_captions_say_what_is_plotted_and_over_how_many_seeds(tree: RunTree) -> None:
    tree.write_pairs(3, classes=40)
    tree.write("baseline", 3, classes=40)
    curves, classes = notes(tree.group(), "training", "classes")
    assert "(baseline 4, batchformer 3)" in curves
    assert "lowest to the highest seed" in curves
    assert "(baseline 4, batchformer 3)" in classes
    assert "40 classes" in classes
    assert "by chance about 2 of 40 would miss 0" in classes


def test_figures_without_numbers_are_left_out(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    (folder / "figures.npz").unlink()
    assert {s.title for s in sections_of(tree.group(), "p")} & {*ORDER} == {"Training"}
    (folder / "metrics.jsonl").write_text("")
    assert sections_of(tree.group(), "p") == []


def test_figures_of_relations_come_in_this_order_and_may_lie_in_parts(
    tree: RunTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of several trainings shows the first part that was looked at, and says so."""
    folders = [tree.write(arm, 0) for arm in ("baseline", "batchformer")]
    for folder in folders:
        arm = folder.parent.name
        batches = simulated_batches() if arm == "batchformer" else {}
        write_insight(folder, simulated_insight(arm, 0) | batches)
    made = sections_of(tree.group(), "p")
    assert all("<svg " in section.html or "<script" in section.html for section in made)
    titles = [section.title for section in made]
    assert [title for title in titles if title in ORDER] == ORDER
    reliability = made[titles.index("Reliability")]
    assert "expected calibration error" in reliability.details.lower()
    assert '<div class="scroll runs"' in reliability.tables, "its table is folded away"
    assert [section.title for section in made if section.wide] == ["Inside a batch"]
    assert all(COLOURS[arm] in reliability.html for arm in ("baseline", "batchformer"))
    assert sum(len(section.html) for section in made) < 2_000_000
    for folder in folders:
        for part in ("sketch", "cartoon"):
            (folder / part).mkdir()
            shutil.copy(folder / "insight.npz", folder / part)
            np.savez(folder / part / "figures.npz", correct=np.zeros(700, bool))
        (folder / "insight.npz").unlink()
    few = {name: FIGURES[name] for name in ("training", "attention", "features")}
    monkeypatch.setattr("batchformer.lab.report.page.sections.FIGURES", few)
    of_parts = {section.title: section for section in sections_of(tree.group(), "p")}
    said = {title: section.details for title, section in of_parts.items()}
    assert "in the part cartoon of each run" in said["Feature space"]
    assert "in the part" not in said["Training"]
    assert not any("sketch" in note for note in said.values())
    assert "512 of the 700 test samples" in said["Attention between samples"], "of the part itself"
    for section in made:
        if section.title in of_parts:
            # The words for those who cannot see a figure name the number of images.
            both = section.html, of_parts[section.title].html
            one, other = (re.sub(r'aria-label="[^"]*"', "", html) for html in both)
            assert one == other, "equal arrays, equal figures"


def test_a_figure_of_numbers_that_are_nan_does_not_cost_the_page(tree: RunTree) -> None:
    folders = [tree.write(arm, 0) for arm in ("baseline", "batchformer")]
    for folder in folders:
        write_insight(folder)
    whole = [section.title for section in sections_of(tree.group(), "p")]
    broken = dict(simulated_insight("batchformer", 0))
    broken["projection"] = np.full_like(broken["projection"], np.nan)
    write_insight(folders[1], broken)
    made = sections_of(tree.group(), "p")
    place = whole.index("Feature space")
    assert made[place].note.startswith("Not shown: ") and not made[place].html
    assert [s.title for s in made[:place] + made[place + 1 :]] == [
        title for title in whole if title != "Feature space"
    ]


def test_a_further_figure_is_one_line(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.write("baseline", 0) / "figures.npz").unlink()  # so that only "training" is drawn
    monkeypatch.setitem(FIGURES, "new", FIGURES["training"])
    made = sections_of(tree.group(), "p")
    assert made[0].title == made[-1].title == "Training"
    assert 'id="p-new-' in made[-1].html and "p-new-" not in made[0].html
