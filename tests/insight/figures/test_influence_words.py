"""What is said of rarity and of difficulty, from correlations and from whole networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchformer.insight.figures import influence
from batchformer.insight.figures.influence import (
    Controlled,
    InfluenceByClass,
    InfluenceOfArm,
    control_words,
    gather,
    size_words,
    verdict_words,
)
from batchformer.insight.figures.learning import Learning
from batchformer.insight.figures.rank_correlation import Correlation
from batchformer.insight.intervals import summary
from simulated_networks import Group, group_of, known, simulated_insight

CLASSES = 60


def ranked(rho: float | None, half: float = 0.1) -> Correlation:
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
        (0.4, None, -1.0, "Gradients have the very order of accuracies"),
    ],
)
def test_the_words_follow_the_intervals(
    whole: float, partial: float | None, of_accuracy: float, said: str
) -> None:
    known = Controlled(ranked(of_accuracy), ranked(partial))
    (sentence,) = control_words(InfluenceOfArm(np.zeros(0), ranked(whole), 3, known))
    assert said in sentence
    assert f"accuracy with gradient {of_accuracy:.2f}" in sentence
    if partial is not None:
        assert f"held fixed it is {partial:.2f}, 95% interval [" in sentence


@pytest.mark.parametrize(
    "known", [None, Controlled(ranked(None), ranked(None)), Controlled(ranked(-0.5), ranked(None))]
)
def test_where_it_is_not_known_nothing_is_said(known: Controlled | None) -> None:
    assert control_words(InfluenceOfArm(np.zeros(0), ranked(-0.7), 3, known)) == []


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
        InfluenceOfArm(values, ranked(-0.7), 3, None, change), 9.0 - np.arange(6)
    )
    assert sentence.startswith(
        "The gradients are 3.8\xa0×\xa010⁻⁷ in the mean over classes, 3.0 times"
    )
    assert said in sentence
    assert ("next to nothing" in sentence) == (change is not None and change < 1e-3)


def test_no_gradients_have_no_size() -> None:
    assert size_words(InfluenceOfArm(np.zeros(6), ranked(None), 3), 9.0 - np.arange(6)) == []


def test_classes_of_equal_counts_have_no_rarest_third() -> None:
    counts = np.full(6, 50.0)
    found = InfluenceOfArm(np.arange(1.0, 7), ranked(None), 3)
    assert "since all training counts are equal." in verdict_words("mine", found, counts)
    assert "since all gradients are equal." in verdict_words("mine", found, counts - np.arange(6))
    (sentence,) = size_words(found, counts)
    assert "rarest" not in sentence and sentence.endswith("in the mean over classes.")


AT_CHANCE = Learning(summary([10.4, 9.0, 11.2]), 10.0, 10.1, False)


def test_without_learning_there_is_no_verdict() -> None:
    known = Controlled(ranked(-0.9), ranked(-0.8))
    found = InfluenceOfArm(np.ones(6), ranked(-0.81), 3, known, None, ranked(-0.79), AT_CHANCE)
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
        (ranked(-0.5), "-0.40] over 3 seeds: rarer classes have the larger gradient without any"),
        (ranked(0.0), "Before training it is 0.00, 95% interval [-0.10, +0.10] over 3 seeds."),
        (ranked(None), "Before training there is no such order."),
        (None, "An untrained network was not measured beside it."),
    ],
)
def test_the_untrained_network_stands_beside_the_verdict(
    before: Correlation | None, said: str
) -> None:
    found = InfluenceOfArm(np.ones(6), ranked(-0.7), 3, untrained=before)
    sentence = verdict_words("mine", found, 9.0 - np.arange(6))
    assert "holds here" in sentence and said in sentence


def looked_at(seeds: int = 3, **changes: Callable[[int], Any]) -> Group:
    """Networks whose gradients follow accuracy, which follows the count loosely."""
    kept, figures = {}, {}
    for seed in range(seeds):
        insight = simulated_insight("batchformer", seed, classes=CLASSES, batches=40)
        random = np.random.default_rng(seed)
        right = 60 - np.arange(CLASSES) + random.normal(0, 25, CLASSES)
        insight["gradient_abs"] = 1e-5 * (200 - right + random.normal(0, 8, CLASSES))
        insight |= {name: change(seed) for name, change in changes.items()}
        kept["batchformer", seed] = insight
        figures["batchformer", seed] = {"per_class": right, "train_counts": insight["train_counts"]}
    return group_of(kept, figures)


def test_where_gradients_follow_accuracy_the_words_and_tables_say_so() -> None:
    data = known(gather(looked_at()))
    found = data.by_arm["batchformer"]
    assert found.controlled is not None
    assert found.correlation.holds is True and found.controlled.of_accuracy.holds is True
    assert found.controlled.partial.rho == pytest.approx(0, abs=0.25)
    note = influence.caption(data).note
    assert "holds here" in note and "mostly it is harder classes" in note
    assert note.index("holds here") < note.index("a loss would change by no more than about")
    assert "of the gradient on 2,560 test images, mean over" in note
    whole, partial, of_accuracy, _ = influence.tables(data)
    assert (whole.rows[0][-1], partial.rows[0][-1]) == ("holds", "not settled")
    assert partial.rows[0][2] == f"{found.controlled.partial.rho:.2f}"
    assert of_accuracy.rows[0][-1] == "the harder, the larger"


def test_noise_settles_nothing() -> None:
    data = known(
        gather(looked_at(gradient_abs=lambda seed: np.random.default_rng(seed).random(CLASSES)))
    )
    assert "is not settled here" in influence.caption(data).note
