"""Runs side by side: paired, each kept as it finishes, none lost by another's end."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.config.arms import ARMS, Arm
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs import compare as compare_module
from batchformer.lab.runs.build import load_task
from batchformer.lab.runs.compare import (
    DataSummary,
    folders_of,
    side_by_side,
    train_runs,
)
from batchformer.lab.runs.folder import write_json
from batchformer.lab.runs.run import Run
from helpers.lab_runs import begun, compare, config_of, metrics_of, short, train_one

CPU = torch.device("cpu")


def test_side_by_side_gives_the_results_of_one_after_the_other(tmp_path: Path) -> None:
    arms, seeds = ("baseline", "batchformer"), (0, 1)
    train_one(short(), "baseline", 1, root=tmp_path / "together")  # found finished
    kept = (tmp_path / "together/demo/baseline/seed1/result.json").read_bytes()
    for name, together in (("alone", 1), ("together", 3)):
        root = tmp_path / name
        folders = list(compare(short(), arms, seeds, root=root, together=together))
        assert sorted(folders) == sorted(root / f"demo/{a}/seed{s}" for a in arms for s in seeds)
    assert (tmp_path / "together/demo/baseline/seed1/result.json").read_bytes() == kept
    for result in (tmp_path / "alone").rglob("result.json"):
        other = tmp_path / "together" / result.relative_to(tmp_path / "alone")
        assert metrics_of(result.parent) == metrics_of(other.parent)


def test_finished_runs_take_no_place_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(compare(short(), ("baseline",), (0, 1), root=tmp_path))
    sizes = []

    def watched(runs: Any, *rest: Any) -> Any:
        sizes.append((len(runs), sum(not one.finished for one in runs)))
        return train_runs(runs, *rest)

    monkeypatch.setattr("batchformer.lab.runs.compare.train_runs", watched)
    assert len(list(compare(short(), ("baseline", "batchformer"), (0, 1), root=tmp_path))) == 4
    assert sizes == [(1, 1), (1, 1)]
    sizes.clear()
    arms = ("baseline", "batchformer", "batchformer_self")
    list(compare(short(), arms, (0, 1), together=2, root=tmp_path))
    assert sizes == [(2, 2)]


def test_groups_share_their_data(tmp_path: Path) -> None:
    """First what has finished, all at once; then so many at a time, none with other data."""
    other = demo().changed(data={"ratio": 20.0})
    runs = [
        Run(recipe, "baseline", number, tmp_path / f"{number}", CPU)
        for number, recipe in enumerate((demo(), other, demo(), demo(), other, demo()))
    ]
    for one in (runs[1], runs[3]):
        one.folder.mkdir()
        (one.folder / "result.json").write_text('{"metrics": {}}')
    groups = [[one.seed for one in group] for group in side_by_side(runs, 2)]
    assert groups == [[1, 3], [0, 2], [4], [5]]
    assert [len(group) for group in side_by_side(runs, 1)] == [2, 1, 1, 1, 1]


def test_arms_that_were_stopped_at_different_updates_read_their_batches_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is ahead waits, so that the reader does not start anew for every batch."""
    recipe, steps = short(updates=12, checkpoint_every=4, eval_every=12), []

    class Enough(Exception):
        pass

    def feed(one: Run) -> Any:
        found: Any = unpatched(one)
        batch = found.batch

        def noted(step: int) -> Any:
            if steps[-3:] == [9, 9, 10]:
                raise Enough  # before the runs are scored
            steps.append(step)
            return batch(step)

        found.batch = noted
        return found

    unpatched = Run.feed
    monkeypatch.setattr(Run, "feed", feed)
    ahead = Run.below(tmp_path, recipe, "baseline", 0, CPU)
    assert len(list(itertools.islice(begun(ahead), 9))) == 9
    steps.clear()
    with pytest.raises(Enough):
        list(compare(recipe, ("baseline", "batchformer"), (0,), together=2, root=tmp_path))
    assert steps == [8, *range(9), 9, 9, 10]


def steeper(recipe: Recipe) -> Recipe:
    return recipe.changed(data={"ratio": 20.0})


def test_an_arm_trains_on_the_data_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It equals a recipe with these data, in its facts and in its scores."""
    monkeypatch.setitem(ARMS, "steeper", Arm(steeper, "BatchFormer on a steeper tail", "#555555"))
    arms = ("baseline", "steeper", "batchformer")
    made: list[tuple[str, Any]] = []

    def feed(one: Run) -> Any:
        made.append((one.arm, found := unpatched(one)))
        return found

    unpatched = Run.feed
    monkeypatch.setattr(Run, "feed", feed)
    folders = list(compare(short(), arms, (0,), root=tmp_path, together=3))
    assert [arm for arm, _ in made] == ["baseline", "steeper"], "arms with the same data share"
    by_arm = {folder.parent.name: folder for folder in folders}
    direct = train_one(steeper(short()), "batchformer", 0, root=tmp_path / "direct")
    configs = [config_of(one) for one in (by_arm["steeper"], direct)]
    expected = load_task(steeper(demo()).data, CPU).facts()
    assert configs[0]["data"] == configs[1]["data"] == expected
    assert expected != load_task(demo().data, CPU).facts()
    assert metrics_of(by_arm["steeper"]) == metrics_of(direct)


def test_runs_that_came_to_their_end_are_given_and_others_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Run(demo(), "baseline", 0, tmp_path / "0", CPU)
    part = Run(demo(), "baseline", 1, tmp_path / "1", CPU, part="cartoon")
    assert list(folders_of(iter([(one, None), (part, DivergedError("too wild"))]))) == [one.folder]
    assert capsys.readouterr().err == "demo baseline seed 1 cartoon: too wild\n"


@pytest.mark.parametrize(
    ("name", "arm", "words"),
    [
        ("digits_moco_v3", "random_weights", "the baseline under another name"),
        ("cifar100_lt_paco", "batchformer_official_loss", "never released"),  # its data is not here
    ],
)
def test_an_arm_that_is_not_possible_is_refused_before_another_trains(
    tmp_path: Path, name: str, arm: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        next(compare(find_recipe(name), ("baseline", arm), (0, 1), root=tmp_path))
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.parametrize(
    ("module", "words"),
    [({"heads": 5}, "do not divide dim=64"), ({"at": ("nowhere",)}, "no submodule 'nowhere'")],
)
@pytest.mark.parametrize("recipe", ["demo", "rotated_digits_coral"])
def test_an_arm_that_does_not_fit_the_network_is_refused_before_another_trains(
    tmp_path: Path, recipe: str, module: dict[str, Any], words: str
) -> None:
    unfit = find_recipe(recipe).changed(module=module, method="cross_entropy")
    with pytest.raises(ValueError, match=words):
        next(compare(unfit, ("baseline", "batchformer"), (0, 1), root=tmp_path))
    assert not list(tmp_path.iterdir()), "a baseline would have been trained with these settings"


def test_a_stopped_run_with_other_settings_is_named_before_another_trains(tmp_path: Path) -> None:
    train_one(short(), "batchformer", 1, root=tmp_path)
    (tmp_path / "demo/batchformer/seed1/result.json").unlink()
    changed = short().changed(optim={"lr": 0.02})
    with pytest.raises(ValueError, match=r"optim\.lr was 0\.05, is 0\.02"):
        next(compare(changed, ("baseline", "batchformer"), (0, 1), root=tmp_path))
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["batchformer"]


def described(root: Path, arm: str, ratio: float, *remarks: str) -> Run:
    """A run whose folder says what was found of its data."""
    recipe = demo().changed(data={"ratio": ratio})
    run = Run.below(root / f"{ratio:g}", recipe, arm, 0, CPU)
    facts = {"name": f"digits {ratio:g}", "remarks": list(remarks)}
    write_json(run.folder / "config.json", {"trained": {}, "data": facts})
    return run


def test_every_line_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say = DataSummary(quiet=False)
    for arm in ("baseline", "batchformer"):
        for ratio in (50.0, 20.0):
            say(described(tmp_path, arm, ratio, "one is missing"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("digits 50: 10 classes, ") and " many, " in lines[0]
    assert lines[1] == "digits 50: one is missing"
    assert lines[2].startswith("digits 20: 10 classes, ") and lines[2][10:] != lines[0][10:]
    assert lines[3] == "digits 20: one is missing"


@pytest.mark.parametrize(("first", "quiet"), [(False, False), (True, True)])
def test_other_ranks_are_silent_and_so_is_quiet(
    first: bool,
    quiet: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compare_module, "is_rank_zero", lambda: first)
    DataSummary(quiet)(described(tmp_path, "baseline", 50.0, "one is missing"))
    assert capsys.readouterr() == ("", "")
