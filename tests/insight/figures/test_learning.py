"""Whether networks have learnt anything, from how many of the measured images they have right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchformer.insight.figures.learning import learning
from helpers.simulated_networks import known

CLASSES, IMAGES = 10, 1000


def run(right: int, before: int | None = None, largest: int = 100) -> dict[str, Any]:
    """A network that has so many of 1,000 images right; the largest class has so many of them."""
    rest = np.full(CLASSES - 1, (IMAGES - largest) / (CLASSES - 1))
    made = {
        "reliability_count": np.full((4, 15), IMAGES / 15),
        "reliability_correct": np.full((4, 15), right / 15),
        "gradient_samples": np.array([*rest, largest]),
    }
    return made if before is None else made | {"untrained_correct": np.array(before)}


@pytest.mark.parametrize("right", [60, 100, 118, 119, 120, 121, 900])
def test_one_network_is_tested_against_chance(right: int) -> None:
    found = known(learning([run(right)]))
    assert (found.accuracy.mean, found.chance) == (right / 10, 10.0)
    p = stats.binomtest(right, IMAGES, 0.1, alternative="greater").pvalue
    assert found.learnt == (p < 0.025)


def test_the_same_answer_to_every_image_is_no_learning() -> None:
    found = known(learning([run(400, largest=400)]))
    assert found.chance == 40.0 and not found.learnt


def test_seeds_that_scatter_around_chance_have_not_learnt() -> None:
    """A random network is often far from chance on one test set, up or down."""
    found = known(learning([run(150), run(125), run(240)]))
    assert found.accuracy.low is not None
    assert found.accuracy.low < 10 and not found.learnt
    assert learning([run(150), run(155), run(160)]).learnt  # type: ignore[union-attr]


def test_every_seed_has_to_be_better_than_before_training() -> None:
    assert learning([run(150, 149)]).learnt is False  # type: ignore[union-attr]
    found = known(learning([run(300, 150), run(310, 90), run(305, 120)]))
    assert found.learnt and found.untrained == pytest.approx(12.0)
    one_of_them = known(learning([run(300, 290), run(310, 90), run(305, 120)]))
    assert not one_of_them.learnt
    assert found.words == "accuracy 30.5% [29.3, 31.7], chance 10.0%, before training 12.0%"


def test_what_is_said_lies_within_0_and_100() -> None:
    found = known(learning([run(0), run(300), run(20)]))
    assert "[0.0, " in found.words


def test_runs_that_do_not_say_are_not_judged() -> None:
    known = run(500)
    for name in known:
        assert learning([run(500), {k: v for k, v in known.items() if k != name}]) is None
    assert learning([]) is None
