"""The gradient figure: its scales, its tables, and what is said of rarity and of difficulty."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchformer.insight.figures import influence
from batchformer.insight.figures.canvas import inline_svg
from batchformer.insight.figures.influence import (
    Controlled,
    InfluenceByClass,
    InfluenceOfArm,
    Measure,
    On,
    control_words,
    gather,
    size_words,
    verdict_words,
)
from batchformer.insight.figures.learning import Learning
from batchformer.insight.figures.rank_correlation import Correlation
from batchformer.insight.intervals import summary
from helpers.simulated_networks import Group, group_of, known, simulated_insight

COLOURS = {"batchformer": "#1f7ac4", "batchformer_self": "#d55e00"}
HOSTILE = "<b>arm</b> & $x_y$"
UNKNOWN = Correlation(None, (), None, None)
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def ranked(rho: float, half: float = 0.1) -> Correlation:
    """The same in three seeds, with intervals around it."""
    return Correlation(rho, (rho,) * 3, (rho - half, rho + half), (rho - half, rho + half))


def of_one(values: Any, found: Correlation = UNKNOWN, **changes: Any) -> InfluenceByClass:
    """Classes of 1,000 images and fewer, with these gradients in one arm."""
    return of({"batchformer": InfluenceOfArm(np.asarray(values, float), found, 1)}, **changes)


def of(by_arm: dict[str, InfluenceOfArm], **changes: Any) -> InfluenceByClass:
    classes = len(next(iter(by_arm.values())).values)
    options = {"window": 1, "measure": "abs", "on": "features", "cumulative": False} | changes
    return InfluenceByClass(1000.0 - np.arange(classes), by_arm, **options)  # type: ignore[arg-type]


def points(line: Any) -> Any:
    return np.asarray(line.get_xydata(), float)


def power_in(title: str) -> int:
    """The power of ten that a title says values are written with."""
    found = re.search(r"× 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)$", title)
    return int(found[1].translate(RAISED)) if found else 0


@settings(max_examples=25, deadline=None)
@given(st.floats(1, 9.5), st.integers(-12, 8))
@example(9.99, 2)
@example(1.0, 3)
@example(1.0, -2)
@example(9.99, -3)
def test_values_are_written_with_a_power_of_ten_where_they_need_one(
    largest: float, power: int
) -> None:
    values = np.array([0.5, 0.1, 1.0]) * largest * 10.0**power
    (axes,) = influence.draw(of_one(values)).axes
    written = power_in(axes.get_title(loc="left"))
    # Rounding may put a value at a power of ten on either side of it.
    assert written in {0 if -2 <= p <= 2 else p for p in (power, power - 1)}
    if 1 < largest < 9.5:
        assert written == (0 if -2 <= power <= 2 else power)
    assert points(axes.lines[0])[:, 1] * 10.0**written == pytest.approx(values)
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    assert not axes.lines[0].get_clip_on(), "the highest dot is whole"


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1.0, 31.0, 2.0], "log"),
        ([1.0, 29.0, 2.0], "linear"),
        ([1e-9, np.nan, 1e-3], "log"),
        ([0.0, 1e-3, 1.0], "linear"),
        ([np.nan, np.nan, np.nan], "linear"),
        ([0.0, 0.0, 0.0], "linear"),
        ([7.0], "linear"),
    ],
)
def test_only_values_that_would_lie_on_the_axis_need_a_log_scale(
    values: list[float], scale: str
) -> None:
    figure = influence.draw(of_one(values, cumulative=True))
    each, summed = figure.axes
    assert each.get_yscale() == summed.get_yscale() == scale
    assert ("log scale" in each.get_title(loc="left")) == (scale == "log")
    figure.canvas.draw()
    if scale == "log":
        assert points(each.lines[0])[:, 1] == pytest.approx(np.array(values), nan_ok=True)
        written = [tick.get_text() for tick in each.get_yticklabels() if tick.get_text()]
        assert written and all(re.fullmatch(r"10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", text) for text in written)


@pytest.mark.parametrize("classes", [200, 1003])
def test_a_dot_is_a_class_however_many_there_are(classes: int) -> None:
    values = np.random.default_rng(classes).uniform(1, 2, classes)
    values[::7] = np.nan
    figure = influence.draw(of_one(values))
    expected = np.stack((np.arange(classes) + 1, values), 1)
    assert points(figure.axes[0].lines[0]) == pytest.approx(expected, nan_ok=True)
    assert len(inline_svg(figure, "", "one")) < 100_000


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("window", [1, 3])
def test_every_arm_has_panels_of_its_own(window: int, cumulative: bool) -> None:
    values = {"batchformer": np.arange(1.0, 13), "batchformer_self": 1e-6 * np.arange(12.0, 0, -1)}
    data = of(
        {arm: InfluenceOfArm(own, UNKNOWN, 2, colour=COLOURS[arm]) for arm, own in values.items()},
        window=window,
        cumulative=cumulative,
    )
    figure = influence.draw(data)
    panels = iter(figure.axes)
    for arm, own in values.items():
        scale = 10.0 ** (0 if arm == "batchformer" else -5)
        each = next(panels)
        assert each.get_title(loc="left").startswith(f"{arm}: gradient on other samples")
        assert len(each.lines) == (2 if window > 1 else 1)
        assert {line.get_color() for line in each.lines} == {COLOURS[arm]}
        if window > 1:
            smooth = [np.mean(own[max(i - 1, 0) : i + 2]) / scale for i in range(12)]
            assert points(each.lines[1])[:, 1] == pytest.approx(smooth)
        if cumulative:
            summed = next(panels)
            assert summed.get_title(loc="left").startswith(f"{arm}: cumulative mean")
            up_to = [np.mean(own[: i + 1]) / scale for i in range(12)]
            assert points(summed.lines[0])[:, 1] == pytest.approx(up_to)
    assert next(panels, None) is None
    note = influence.caption(data).text
    assert ("running mean over 3 classes" in note) == (window > 1)
    assert ("cumulative mean is over all classes" in note) == cumulative


@pytest.mark.parametrize(("classes", "ticks"), [(1, 1), (7, 7), (8, 5), (100, 5)])
def test_training_images_stand_along_the_axis(classes: int, ticks: int) -> None:
    axes = influence.draw(of_one(np.ones(classes))).axes[-1]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert len(labels) == ticks and labels[0] == "1,000"
    places = axes.get_xticks().tolist()
    assert labels == [f"{1001 - place:,.0f}" for place in places]
    assert axes.get_xlabel() == "Training samples of the class"


@pytest.mark.parametrize("measure", ["abs", "l2"])
@pytest.mark.parametrize("on", ["features", "images"])
def test_the_words_say_what_was_measured_and_whether_the_claim_holds(
    measure: Measure, on: On
) -> None:
    arms = {
        "batchformer": InfluenceOfArm(np.ones(3), ranked(-0.7), 3),
        "batchformer_frozen": InfluenceOfArm(np.ones(3), ranked(0.7), 2),
        "mine": InfluenceOfArm(np.ones(3), ranked(0.05), 5),
        "batchformer_self": InfluenceOfArm(np.zeros(3), UNKNOWN, 1),
    }
    said = influence.caption(of(arms, measure=measure, on=on))
    assert ("length of the gradient" in said.text) == (measure == "l2")
    assert ("mean absolute value of the gradient" in said.text) == (measure == "abs")
    assert ("loss on the pooled features" in said.text) == (on == "features")
    assert ("loss on the input images" in said.text) == (on == "images")
    assert "(batchformer 3, batchformer_frozen 2, mine 5, batchformer_self 1)" in said.text
    assert "; is not settled for mine; has no verdict for batchformer_self." in said.note
    for sentence in (
        r"batchformer: the paper's claim [\w ]+ holds here \(.* -0\.70, 95% interval \[-0\.80, "
        r"-0\.60\] over 3 seeds",
        r"batchformer_frozen: the paper's claim [\w ]+ does not hold here, the opposite does",
        r"mine: the paper's claim [\w ]+ is not settled here",
        r"batchformer_self: no order to speak of",
    ):
        assert re.search(sentence, said.text) and re.search(sentence, said.alternative), sentence
    assert said.alternative.startswith("Dot plot. batchformer: ")


def test_the_tables_hold_what_is_known_and_are_left_out_where_nothing_is() -> None:
    both = Controlled(ranked(-0.4), ranked(0.3))
    only = Controlled(ranked(0.6, half=0.7), UNKNOWN)
    arms = {
        "batchformer": InfluenceOfArm(np.ones(3), ranked(-0.7), 3, both),
        "mine": InfluenceOfArm(np.ones(3), Correlation(0.004, (0.004,), None, None), 1, only),
        "none": InfluenceOfArm(np.ones(3), UNKNOWN, 1),
    }
    made = influence.make(of(arms))
    assert not made.tables, "they are long: a terminal alone shows them"
    whole, partial, of_accuracy, _ = made.terminal_tables
    assert whole.columns == ("arm", "n", "rank corr.", "over seeds", "over classes", "verdict")
    spans = ("[-0.80, -0.60]",) * 2
    assert list(whole.rows) == [
        ("batchformer", "3", "-0.70", *spans, "holds"),
        ("mine", "1", "0.00", "", "", "not settled"),
        ("none", "0", "", "", "", "no verdict"),
    ]
    assert list(partial.rows) == [
        ("batchformer", "3", "0.30", *("[+0.20, +0.40]",) * 2, "opposite")
    ]
    assert [row[0] for row in of_accuracy.rows] == ["batchformer", "mine"]
    assert [row[-1] for row in of_accuracy.rows] == ["the harder, the larger", "not settled"]
    easier = InfluenceOfArm(np.ones(3), ranked(-0.7), 3, Controlled(ranked(0.9), UNKNOWN))
    _, last, _ = influence.tables(of({"batchformer": easier}))
    assert last.rows[0][-1] == "the harder, the smaller"
    alone, _ = influence.tables(of_one([1.0, 2.0], ranked(-0.7)))
    assert alone.caption == whole.caption


def test_classes_are_listed_from_the_most_frequent() -> None:
    arms = {arm: InfluenceOfArm(np.array(v), UNKNOWN, 1) for arm, v in
            {HOSTILE: [1.5e-5, 0.0], "mine": [2.0, np.nan]}.items()}  # fmt: skip
    table = influence.tables(of(arms))[-1]
    assert table.columns == ("images", HOSTILE, "mine")
    assert list(table.rows) == [
        ("1,000", "1.500e-05", "2.000e+00"),
        ("999", "0.000e+00", ""),
    ]


CLASSES = 60


def by_seeds(rho: float | None, half: float = 0.1) -> Correlation:
    """A correlation with one interval around it."""
    if rho is None:
        return Correlation(None, (), None, None)
    return Correlation(rho, (rho,) * 3, (rho - half, rho + half), None)


@pytest.mark.parametrize(
    ("whole", "partial", "of_accuracy", "said"),
    [
        (-0.7, -0.05, -0.9, "harder classes that have larger gradients, and rare ones are hard; w"),
        (-0.7, -0.2, -0.9, "and rare ones are hard; rarity adds to that"),
        (-0.7, -0.05, 0.9, "most of it goes with accuracy; whether rarity adds to that is open"),
        (-0.7, -0.6, -0.9, "equally hard the rarer has the larger gradient too"),
        (-0.15, -0.09, -0.9, "whether it is rarity, or that rare classes are harder, is open"),
        (-0.7, 0.3, -0.9, "the opposite holds"),
        (0.0, -0.3, -0.9, "equally hard the rarer has the larger gradient ("),
        (0.0, 0.3, -0.9, "equally hard the more frequent has the larger gradient"),
        (0.5, 0.0, -0.9, "not settled among classes that are equally hard either"),
        (0.4, None, -1.0, "Gradients and accuracies have the same order"),
    ],
)
def test_the_words_follow_the_intervals(
    whole: float, partial: float | None, of_accuracy: float, said: str
) -> None:
    known = Controlled(by_seeds(of_accuracy), by_seeds(partial))
    (sentence,) = control_words(InfluenceOfArm(np.zeros(0), by_seeds(whole), 3, known))
    assert said in sentence
    assert f"accuracy with gradient {of_accuracy:.2f}" in sentence
    if partial is not None:
        assert f"held fixed it is {partial:.2f}, 95% interval [" in sentence


@pytest.mark.parametrize(
    "known",
    [None, Controlled(by_seeds(None), by_seeds(None)), Controlled(by_seeds(-0.5), by_seeds(None))],
)
def test_where_it_is_not_known_nothing_is_said(known: Controlled | None) -> None:
    assert control_words(InfluenceOfArm(np.zeros(0), by_seeds(-0.7), 3, known)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (4.4e-5, "two samples lie apart, a loss would change by no more than about 0.00004, next"),
        (0.0187, "a loss would change by no more than about 0.02, on average"),
        (3.2, "a loss would change by no more than about 3, on average"),
        (None, "in the rarest third of them as in the most frequent."),
    ],
)
def test_an_order_is_put_in_proportion(change: float | None, said: str) -> None:
    values = np.array([2e-7, np.nan, 2e-7, 3e-7, 6e-7, 6e-7])
    (sentence,) = size_words(
        InfluenceOfArm(values, by_seeds(-0.7), 3, None, change), 9.0 - np.arange(6)
    )
    assert sentence.startswith(
        "The gradients are 3.8\xa0×\xa010⁻⁷ in the mean over classes, 3.0 times"
    )
    assert said in sentence
    assert ("next to nothing" in sentence) == (change is not None and change < 1e-3)


def test_no_gradients_have_no_size() -> None:
    assert size_words(InfluenceOfArm(np.zeros(6), by_seeds(None), 3), 9.0 - np.arange(6)) == []


def test_classes_of_equal_counts_have_no_rarest_third() -> None:
    counts = np.full(6, 50.0)
    found = InfluenceOfArm(np.arange(1.0, 7), by_seeds(None), 3)
    assert "since all training counts are equal." in verdict_words("mine", found, counts)
    assert "since all gradients are equal." in verdict_words("mine", found, counts - np.arange(6))
    (sentence,) = size_words(found, counts)
    assert "rarest" not in sentence and sentence.endswith("in the mean over classes.")


AT_CHANCE = Learning(summary([10.4, 9.0, 11.2]), 10.0, 10.1, False)


def test_without_learning_there_is_no_verdict() -> None:
    known = Controlled(by_seeds(-0.9), by_seeds(-0.8))
    found = InfluenceOfArm(np.ones(6), by_seeds(-0.81), 3, known, None, by_seeds(-0.79), AT_CHANCE)
    said = verdict_words("mine", found, 9.0 - np.arange(6))
    assert "holds" not in said and "settled" not in said
    assert "mine: no verdict on the paper's claim" in said
    assert "(accuracy 10.2% [7.4, 13.0], chance 10.0%, before training 10.1%; rank corr" in said
    assert said.endswith("Before training it is -0.79, 95% interval [-0.89, -0.69] over 3 seeds.")
    assert control_words(found) == []
    data = InfluenceByClass(9.0 - np.arange(6), {"mine": found}, 1, "abs", "features", False)
    whole, before, partial, of_accuracy, _ = influence.tables(data)
    assert {table.rows[0][-1] for table in (whole, partial, of_accuracy)} == {"nothing learnt"}
    assert before.rows[0][2] == "-0.79" and before.rows[0][-1] == "rarer, larger"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (by_seeds(-0.5), "-0.40] over 3 seeds: rarer classes have the larger gradient without any"),
        (by_seeds(0.0), "Before training it is 0.00, 95% interval [-0.10, +0.10] over 3 seeds."),
        (by_seeds(None), "Before training there is no such order."),
        (None, "An untrained network was not measured beside it."),
    ],
)
def test_the_untrained_network_stands_beside_the_verdict(
    before: Correlation | None, said: str
) -> None:
    found = InfluenceOfArm(np.ones(6), by_seeds(-0.7), 3, untrained=before)
    sentence = verdict_words("mine", found, 9.0 - np.arange(6))
    assert "holds here" in sentence and said in sentence


def looked_at() -> Group:
    """Networks whose gradients follow accuracy, which follows the count loosely."""
    kept, figures = {}, {}
    for seed in range(3):
        insight = simulated_insight("batchformer", seed, classes=CLASSES, batches=40)
        random = np.random.default_rng(seed)
        right = 60 - np.arange(CLASSES) + random.normal(0, 25, CLASSES)
        insight["gradient_abs"] = 1e-5 * (200 - right + random.normal(0, 8, CLASSES))
        kept["batchformer", seed] = insight
        figures["batchformer", seed] = {"per_class": right, "train_counts": insight["train_counts"]}
    return group_of(kept, figures)


def test_where_gradients_follow_accuracy_the_words_and_tables_say_so() -> None:
    data = known(gather(looked_at()))
    found = data.by_arm["batchformer"]
    assert found.controlled is not None
    assert found.correlation.is_negative is True
    assert found.controlled.of_accuracy.is_negative is True
    assert found.controlled.partial.rho == pytest.approx(0, abs=0.25)
    note = influence.caption(data).text
    assert "holds here" in note and "mostly it is harder classes" in note
    assert note.index("holds here") < note.index("a loss would change by no more than about")
    assert "of the gradient on 2,560 test samples, mean over" in note
    whole, partial, of_accuracy, _ = influence.tables(data)
    assert (whole.rows[0][-1], partial.rows[0][-1]) == ("holds", "not settled")
    assert partial.rows[0][2] == f"{found.controlled.partial.rho:.2f}"
    assert of_accuracy.rows[0][-1] == "the harder, the larger"
