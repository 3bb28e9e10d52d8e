"""Arms compared with a reference, over seeds and over test images."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from batchformer.insight.intervals import summary
from batchformer.lab.metrics.intervals import holm, paired
from batchformer.lab.report.results.comparison import ALPHA, Comparison, compare_runs, over_images
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.names import VALIDATION
from batchformer.lab.report.results.runs import RecordedRun, read_run
from helpers.run_folders import RunTree, change_json, recipe_of
from helpers.simulated_networks import known

BASELINE = [61.0, 62.5, 60.2, 61.8, 62.0]
BETTER = [62.4, 63.1, 61.9, 62.6, 63.8]
CONTROL = [61.3, 62.2, 60.9, 61.5, 62.3]


@pytest.mark.parametrize("reference", ["baseline", "batchformer_self"])
def test_every_arm_is_summed_up_and_compared(tree: RunTree, reference: str) -> None:
    values = {"baseline": BASELINE, "batchformer": BETTER, "batchformer_self": CONTROL}
    tree.write_scores(values)
    recipe = tree.compared(reference)
    others = tuple(arm for arm in values if arm != reference)
    assert (recipe.reference, recipe.arms) == (reference, (reference, *others))
    assert (recipe.others, recipe.main_arm) == (others, "batchformer")
    assert recipe.over_images.keys() == set(others)
    score = recipe.scores["batchformer", "all"]
    assert score.summary == summary(BETTER, within=(0.0, 100.0))
    assert (score.seeds, score.paper) == ((0, 1, 2, 3, 4), 51.7)
    for arm in others:
        difference = recipe.differences[arm, "all"]
        assert difference.paired == paired(values[reference], values[arm])
        gain = arm == "batchformer"
        assert difference.outcome == ("gain" if gain else "not reliable")
        assert difference.significant == gain


def test_every_comparison_of_every_recipe_is_corrected_for(tree: RunTree) -> None:
    values = {"baseline": BASELINE, "batchformer": BETTER, "batchformer_self": CONTROL}
    tree.write_scores(values)
    values |= {"batchformer": [61.9, 63.0, 60.1, 62.9, 62.4], "batchformer_self": [61.3, 62.2]}
    tree.write_scores(values, recipe=recipe_of("other", paper={}))
    comparison = compare_runs(tree.runs())
    found = [d for recipe in comparison.recipes for d in recipe.differences.values()]
    assert (comparison.comparisons, comparison.tested) == (4, 3)
    assert [d.adjusted for d in found] == holm([d.paired.p_value for d in found])
    assert sum(d.adjusted is None for d in found) == 1


def test_a_gain_that_the_correction_undoes_does_not_stand(tree: RunTree) -> None:
    tree.write_scores({"baseline": BASELINE, "batchformer": [61.6, 62.9, 61.0, 62.0, 62.2]})
    others = ("batchformer_self", "batchformer_frozen", "x", "y", "z", "w")
    tree.write_scores(dict.fromkeys(others, BASELINE[::-1]))
    recipe = tree.compared()
    difference = recipe.differences["batchformer", "all"]
    assert difference.outcome == "gain"
    assert difference.paired.p_value is not None
    assert difference.paired.p_value < 0.05 < 7 * difference.paired.p_value
    assert not difference.significant
    for adjusted, significant in ((None, False), (0.0499, True), (ALPHA, False)):
        assert dataclasses.replace(difference, adjusted=adjusted).significant is significant


def test_pairs_are_the_seeds_both_have(tree: RunTree) -> None:
    tree.write_scores({"baseline": BASELINE})
    for seed, value in [(9, 99.0), (3, 62.6), (1, 63.1), (4, 63.8)]:
        tree.write("batchformer", seed, scores={"all": value})
    recipe = tree.compared()
    difference = recipe.differences["batchformer", "all"]
    assert difference.seeds == (1, 3, 4)
    assert difference.paired.baseline == (62.5, 61.8, 62.0)
    assert difference.paired.other == (63.1, 62.6, 63.8)
    assert recipe.scores["batchformer", "all"].summary.n == 4
    assert any("shares with the baseline: 1, 3, 4" in warning for warning in recipe.warnings)


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_seeds_have_values_and_no_verdict(tree: RunTree, n: int) -> None:
    tree.write_scores({"baseline": BASELINE[:n], "batchformer": BETTER[:n]})
    comparison = compare_runs(tree.runs())
    (recipe,) = comparison.recipes
    difference = recipe.differences["batchformer", "all"]
    assert (difference.outcome, difference.significant) == ("too few seeds", False)
    assert (difference.paired.low, difference.paired.p_value, difference.needed) == (None,) * 3
    assert recipe.scores["baseline", "all"].summary.values == tuple(BASELINE[:n])
    assert (comparison.comparisons, comparison.tested, recipe.over_images) == (1, 0, {})


def test_what_describes_or_chose_has_an_interval_and_no_verdict(tree: RunTree) -> None:
    """Every value moves far beyond its spread, so that a test of any of them would find it.

    So do the scores of validation, which chose the evaluation.
    """
    both = [(0.16, 0.02), (0.17, 0.02), (0.15, 0.03)]
    names = ("alignment", "uniformity", "feature_std", *sorted(VALIDATION))
    for seed, (before, after) in enumerate(both):
        tree.write("baseline", seed, scores={"all": 20.0 + seed} | dict.fromkeys(names, before))
        tree.write("random_weights", seed, scores={"all": 6.0} | dict.fromkeys(names, after))
    comparison = compare_runs(tree.runs())
    (recipe,) = comparison.recipes
    assert (comparison.comparisons, comparison.tested) == (1, 1)
    tested = recipe.differences["random_weights", "all"]
    assert tested.outcome == "loss" and tested.adjusted == tested.paired.p_value
    first, second = zip(*both, strict=True)
    interval = stats.ttest_rel(second, first).confidence_interval(0.95)
    for name in names:
        found = recipe.differences["random_weights", name]
        assert (found.outcome, found.paired.p_value, found.adjusted) == (None, None, None)
        assert (found.paired.low, found.paired.high) == pytest.approx((interval.low, interval.high))
        assert interval.high < 0, "away from 0"
        assert recipe.scores["baseline", name].summary.sd == pytest.approx(0.01)
    assert recipe.main_metric == "all"
    assert any("not counted as comparisons" in line for line in recipe.warnings)


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_seed_that_was_not_measured_is_named(tree: RunTree, value: float | None) -> None:
    tree.write_scores({"baseline": BASELINE[:4], "batchformer": BETTER[:4]})
    tree.write("batchformer", 2, scores={"all": value})
    recipe = tree.compared()
    assert recipe.differences["batchformer", "all"].seeds == (0, 1, 3)
    assert any("tail/batchformer/seed2: 'all' is" in warning for warning in recipe.warnings)


def test_a_metric_that_no_run_measured_is_not_compared(tree: RunTree) -> None:
    tree.write_pairs(1, scores={"all": 50.0, "few": math.nan})
    assert tree.compared().metrics == ("all",)
    tree.write_pairs(1, scores={"all": math.nan})
    comparison = compare_runs(tree.runs())
    (recipe,) = comparison.recipes
    assert (comparison.comparisons, recipe.main_arm, recipe.main_metric) == (0, None, "all")


@pytest.mark.parametrize("accuracy", ["all", "top1"])
def test_a_class_mean_that_repeats_the_accuracy_is_not_counted_twice(
    accuracy: str, tree: RunTree
) -> None:
    for seed in range(3):
        for arm, value in (("baseline", 60.0), ("batchformer", 61.0 + seed)):
            tree.write(arm, seed, scores={accuracy: value, "mean_class": value + 1e-9})
    recipe = tree.compared()
    assert recipe.metrics == (accuracy,) and recipe.main_metric == accuracy
    assert any("Class mean equals" in warning for warning in recipe.warnings)
    tree.write("batchformer", 0, scores={accuracy: 61.0, "mean_class": 60.0})
    recipe = tree.compared()
    assert recipe.metrics == (accuracy, "mean_class")


def test_the_only_shot_group_is_not_counted_beside_the_class_mean(tree: RunTree) -> None:
    """Every class of a small folder is few; groups that agree by chance are still compared."""
    tree.write_pairs(3, scores={"all": 61.0, "few": 60.0, "mean_class": 60.0})
    recipe = tree.compared()
    assert recipe.metrics == ("all", "mean_class")
    assert any("Few equals Class mean in every run" in warning for warning in recipe.warnings)
    tree.write_pairs(3, scores={"all": 60.0, "few": 60.0, "mean_class": 60.0})
    assert tree.compared().metrics == ("all",)
    tree.write_pairs(3, scores={"all": 61.0, "many": 60.0, "few": 60.0, "mean_class": 60.0})
    assert tree.compared().metrics == ("all", "many", "few", "mean_class")


def test_thirds_are_not_taken_for_the_limits_of_the_paper(tree: RunTree) -> None:
    tree.write("baseline", 0)
    tree.write("baseline", 0, recipe=recipe_of("small", data__shots="thirds"))
    small, tail = compare_runs(tree.runs()).recipes
    assert any("thirds of the classes" in warning for warning in small.warnings)
    assert not any("thirds" in warning for warning in tail.warnings)


def test_remarks_on_data_are_notes_and_split_no_comparison(tree: RunTree) -> None:
    """Runs of an earlier version have no remarks on the same data."""
    folders = [tree.write("baseline", seed) for seed in range(3)]
    data = read_run(folders[0]).data | {"remarks": ["1 of 3 classes have no test image: ant"]}
    for folder in folders[1:]:
        change_json(folder / "config.json", data=data)
    recipe = tree.compared()
    assert recipe.scores["baseline", "all"].seeds == (0, 1, 2)
    assert [line for line in recipe.warnings if "no test image" in line] == [
        "1 of 3 classes have no test image: ant"
    ]


def test_the_effect_of_the_paper_needs_its_numbers_of_both_arms(tree: RunTree) -> None:
    paper = {"baseline": {"all": 50.7, "few": 31.9}, "batchformer": {"all": 51.7}}
    for arm, shift in (("baseline", 0.0), ("batchformer", 1.0), ("batchformer_self", 0.2)):
        for seed, value in enumerate(BASELINE):
            scores = {"all": value + shift * seed, "few": value - shift * seed}
            tree.write(arm, seed, scores=scores, recipe=recipe_of(paper=paper))
    runs = tree.runs()
    effects = {
        reference: {
            key: None if found.paper_effect is None else round(found.paper_effect, 6)
            for key, found in compare_runs(runs, reference).recipes[0].differences.items()
        }
        for reference in ("baseline", "batchformer", "batchformer_self")
    }
    nothing = {(arm, m): None for arm in ("baseline", "batchformer") for m in ("all", "few")}
    control = {("batchformer_self", metric): None for metric in ("all", "few")}
    own = {("batchformer", "all"): 1.0, ("batchformer", "few"): None}
    assert effects["baseline"] == control | own
    assert effects["batchformer"] == control | {
        ("baseline", "all"): -1.0,
        ("baseline", "few"): None,
    }
    assert effects["batchformer_self"] == nothing
    recipe = tree.compared("batchformer_self")
    assert all(difference.needed is None for difference in recipe.differences.values())
    assert recipe.scores["batchformer", "all"].paper == 51.7


def test_seeds_shared_with_another_reference_are_named(tree: RunTree) -> None:
    tree.write_scores({"batchformer_self": BASELINE[:3], "batchformer_frozen": BETTER})
    recipe = tree.compared()
    assert recipe.differences["batchformer_frozen", "all"].seeds == (0, 1, 2)
    assert recipe.main_arm == "batchformer_frozen"
    assert recipe.warnings == (
        "tail has no finished baseline and is compared with batchformer_self",
        "batchformer_frozen is compared on the seeds it shares with batchformer_self: 0, 1, 2",
    )


def test_what_is_left_out_is_named(tree: RunTree) -> None:
    tree.write("baseline", 0)
    (tree.write("baseline", 1) / "figures.npz").unlink()
    tree.write("baseline", 2, finished=False)
    (tree.write("baseline", 3) / "config.json").write_text("")
    comparison = compare_runs(tree.runs())
    unfinished, damaged = comparison.left_out
    assert unfinished == "tail/baseline/seed2 has not finished: last record at update 200"
    assert damaged.startswith("tail/baseline/seed3 is damaged: config.json is not JSON")
    assert comparison.remarks[0].startswith("tail/baseline/seed1: figures.npz is missing")
    assert comparison.recipes[0].scores["baseline", "all"].summary.n == 2


def test_no_run_is_an_empty_comparison() -> None:
    assert compare_runs([]) == Comparison((), 0, 0, (), ())


tenths = st.integers(400, 900).map(lambda value: value / 10)


@settings(max_examples=25)
@given(
    st.integers(3, 5).flatmap(lambda n: st.tuples(*[st.lists(tenths, min_size=n, max_size=n)] * 2))
)
def test_swapping_the_arms_turns_the_verdict(values: tuple[list[float], list[float]]) -> None:
    def runs(one: list[float], two: list[float]) -> list[RecordedRun]:
        return [
            RecordedRun(Path(arm), {"name": "tail"}, arm, seed, {}, (), {"metrics": {"all": value}})
            for arm, scores in (("baseline", one), ("batchformer", two))
            for seed, value in enumerate(scores)
        ]

    one, two = values
    (there,) = compare_runs(runs(one, two)).recipes
    (back,) = compare_runs(runs(two, one)).recipes
    (turned,) = compare_runs(runs(two, one), reference="batchformer").recipes
    first, second = (recipe.differences["batchformer", "all"] for recipe in (there, back))
    third = turned.differences["baseline", "all"]
    assert third.outcome == first.outcome
    assert third.paired.difference == pytest.approx(first.paired.difference)
    opposite: dict[str | None, str] = {"gain": "loss", "loss": "gain"}
    assert first.outcome == opposite.get(second.outcome, second.outcome)
    assert first.paired.difference == pytest.approx(-second.paired.difference)


def test_an_arm_that_the_paper_lacks_is_said(tree: RunTree) -> None:
    tree.write_pairs(1, recipe=recipe_of("ride", paper={"baseline": {"all": 48.0}}))
    tree.write_pairs(1)
    said = {r.name: r.warnings for r in compare_runs(tree.runs()).recipes}
    words = "The paper has no numbers of this recipe with BatchFormer"
    assert words in said["ride"] and words not in said["tail"]


def test_it_is_a_bootstrap_over_images_of_the_difference_averaged_over_seeds(tree: RunTree) -> None:
    tree.write_pairs(3, gain=0.1)
    tree.write("batchformer", 7, gain=0.9)
    group = tree.group()
    found = known(over_images(group, "batchformer"))

    def correct(arm: str, seed: int) -> Any:
        with np.load(tree.root / "tail" / arm / f"seed{seed}" / "figures.npz") as arrays:
            return arrays["correct"].astype(float)

    per_image = np.mean([correct("batchformer", s) - correct("baseline", s) for s in range(3)], 0)
    generator = np.random.default_rng(5)
    images = len(per_image)
    drawn = [per_image[generator.integers(0, images, images)].mean() for _ in range(4000)]
    low, high = 100 * np.quantile(drawn, [0.025, 0.975])
    assert found.images == images == 400
    assert found.mean == pytest.approx(100 * per_image.mean())
    # The two bootstraps differ by their own noise: a tenth of the standard deviation.
    noise = 100 * float(np.std(drawn)) * 0.15
    assert (found.low, found.high) == pytest.approx((low, high), abs=noise)


@pytest.mark.parametrize("images", [30, 40])
def test_test_sets_of_several_sizes_are_not_mixed(tree: RunTree, images: int) -> None:
    tree.write_pairs(3)
    for arm in ("baseline", "batchformer"):
        tree.write(arm, 2, per_class_images=images)
    found = over_images(tree.group(), "batchformer")
    assert (found is None) == (images != 40)


def test_runs_without_answers_are_passed_over(tree: RunTree) -> None:
    tree.write_pairs(4)
    (tree.root / "tail/batchformer/seed3/figures.npz").write_bytes(b"broken")
    assert known(over_images(tree.group(), "batchformer")).images == 400


def test_images_are_compared_with_the_reference_of_the_group(tree: RunTree) -> None:
    tree.write_pairs(3, gain=0.1)
    tree.write_pairs(3, "batchformer_self", gain=0.02)
    runs = tree.runs()
    accuracy = {
        arm: np.mean([run.figures["correct"].mean() for run in runs if run.arm == arm])
        for arm in ("baseline", "batchformer", "batchformer_self")
    }
    for reference in ("baseline", "batchformer_self"):
        found = known(over_images(one_group(runs, reference), "batchformer"))
        expected = 100 * (accuracy["batchformer"] - accuracy[reference])
        assert found.mean == pytest.approx(expected)
    assert accuracy["baseline"] != accuracy["batchformer_self"]
