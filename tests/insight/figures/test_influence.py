"""Gradients by class against loops over classes and scipy's rank correlations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from batchformer.insight.figures.influence import (
    InfluenceByClass,
    InfluenceOfArm,
    Measure,
    On,
    accuracies,
    cumulative_mean,
    feature_distance,
    gather,
    running_mean,
)
from batchformer.insight.figures.rank_correlation import Correlation, correlation
from helpers.simulated_networks import Group, group_of, known

CLASSES = 12
#: No two alike, and in no order.
COUNTS = np.array([40, 500, 3, 90, 7, 260, 15, 120, 5, 1000, 25, 60])


def gradients(seed: int, **changes: Any) -> dict[str, Any]:
    """Arrays of one run."""
    generator = np.random.default_rng(seed)
    return {
        "train_counts": COUNTS,
        "gradient_samples": np.full(CLASSES, 9),
        **{
            f"gradient_{name}": generator.uniform(1, 2, CLASSES) / COUNTS**0.3
            for name in ("abs", "l2", "images_abs", "images_l2")
        },
    } | changes


def accuracy(seed: int) -> dict[str, Any]:
    """What a run keeps of its accuracy."""
    noise = np.random.default_rng([seed, 1]).normal(0, 1, CLASSES)
    return {"train_counts": COUNTS, "per_class": 50 + 5 * np.log(COUNTS) + 8 * noise}


def gathered(group: Group, *options: Any) -> InfluenceByClass:
    return known(gather(group, *options))


def spearman(x: Any, y: Any) -> float:
    return float(stats.spearmanr(x, y).statistic)


def partial(x: Any, y: Any, z: Any) -> float:
    """Correlation of what a line through the ranks of z leaves of the ranks of x and of y."""
    x, y, z = (stats.rankdata(side) for side in (x, y, z))
    left = [side - np.polyval(np.polyfit(z, side, 1), z) for side in (x, y)]
    return float(np.corrcoef(*left)[0, 1])


@pytest.mark.parametrize("on", ["features", "images"])
@pytest.mark.parametrize("measure", ["abs", "l2"])
def test_classes_by_frequency_the_mean_over_seeds_and_the_rank_correlation(
    measure: Measure, on: On
) -> None:
    kept = {("batchformer", seed): gradients(seed) for seed in range(4)}
    data = gathered(group_of(kept), measure, on)
    name = f"gradient_{measure}" if on == "features" else f"gradient_images_{measure}"
    order = sorted(range(CLASSES), key=lambda k: -COUNTS[k])
    assert data.counts.tolist() == COUNTS[order].tolist()
    found = data.by_arm["batchformer"]
    each = [arrays[name] for arrays in kept.values()]
    assert found.values == pytest.approx(np.mean(each, 0)[order])
    rho = [spearman(COUNTS, values) for values in each]
    assert found.correlation.by_seed == pytest.approx(rho)
    assert found.correlation.rho == pytest.approx(np.mean(rho))
    assert (found.seeds, found.controlled) == (4, None)
    assert (data.measure, data.on, data.cumulative, data.window) == (measure, on, False, 3)


def test_a_class_without_samples_is_unknown_in_that_seed_and_nowhere_else() -> None:
    seen = {0: np.full(CLASSES, 9), 1: np.full(CLASSES, 9)}
    seen[0][[1, 4]], seen[1][4] = 0, 0
    kept = {("batchformer", s): gradients(s, gradient_samples=seen[s]) for s in (0, 1)}
    found = gathered(group_of(kept)).by_arm["batchformer"]
    order = np.argsort(-COUNTS)
    by_class = dict(zip(order.tolist(), found.values.tolist(), strict=True))
    assert np.isnan(by_class[4])
    assert by_class[1] == pytest.approx(kept["batchformer", 1]["gradient_abs"][1])
    assert np.isfinite(np.delete(found.values, order.tolist().index(4))).all()
    rho = [
        spearman(COUNTS[seen[s] > 0], kept["batchformer", s]["gradient_abs"][seen[s] > 0])
        for s in (0, 1)
    ]
    assert found.correlation.by_seed == pytest.approx(rho)


def test_classes_of_one_count_keep_their_order() -> None:
    counts = np.array([5, 9, 5, 9])
    values = np.array([1.0, 2.0, 3.0, 4.0])
    arrays = {"train_counts": counts, "gradient_samples": counts, "gradient_abs": values}
    data = gathered(group_of({("batchformer", 0): arrays}))
    assert data.by_arm["batchformer"].values.tolist() == [2.0, 4.0, 1.0, 3.0]


def test_accuracy_is_held_fixed_over_the_seeds_that_kept_it() -> None:
    kept = {("batchformer", seed): gradients(seed) for seed in range(4)}
    figures = {("batchformer", seed): accuracy(seed) for seed in (1, 3)}
    found = gathered(group_of(kept, figures)).by_arm["batchformer"]
    assert found.controlled is not None and found.seeds == 4
    values = {seed: kept["batchformer", seed]["gradient_abs"] for seed in (1, 3)}
    right = {seed: accuracy(seed)["per_class"] for seed in (1, 3)}
    of_accuracy = [spearman(right[s], values[s]) for s in (1, 3)]
    assert found.controlled.of_accuracy.by_seed == pytest.approx(of_accuracy)
    held = [partial(COUNTS, values[s], right[s]) for s in (1, 3)]
    assert found.controlled.partial.by_seed == pytest.approx(held)
    assert found.controlled.partial.rho == pytest.approx(np.mean(held))


def test_accuracies_are_of_the_same_classes_and_training() -> None:
    kept = {("batchformer", seed): gradients(seed) for seed in range(5)}
    kept["batchformer", 4] = {}
    figures: dict[tuple[str, int], dict[str, Any]] = {
        ("batchformer", seed): accuracy(seed) for seed in range(5)
    }
    figures["batchformer", 1]["train_counts"] = COUNTS[::-1]
    figures["batchformer", 2]["per_class"] = np.zeros(3)
    del figures["batchformer", 3]["per_class"]
    found = accuracies(group_of(kept, figures), "batchformer")
    assert list(found) == [0] and found[0].dtype == np.float64
    np.testing.assert_array_equal(found[0], accuracy(0)["per_class"])
    assert accuracies(group_of(kept, figures), "baseline") == {}


def test_one_class_has_no_order() -> None:
    arrays = {name: array[:1] for name, array in gradients(0).items()}
    data = gathered(group_of({("batchformer", 0): arrays}), "abs", "features", True)
    found = data.by_arm["batchformer"]
    assert found.correlation.rho is None and found.correlation.is_negative is None
    assert found.values.shape == (1,) and data.window == 1 and data.cumulative


values = st.lists(st.floats(-10, 10) | st.just(np.nan), max_size=30)


def mean_of(part: list[float]) -> float:
    known = [value for value in part if not np.isnan(value)]
    return sum(known) / len(known) if known else np.nan


@settings(deadline=None)
@given(values, st.integers(0, 10).map(lambda half: 2 * half + 1))
def test_a_running_mean_is_over_neighbours_on_both_sides(own: list[float], window: int) -> None:
    half = window // 2
    expected = [mean_of(own[max(i - half, 0) : i + half + 1]) for i in range(len(own))]
    found = running_mean(np.array(own, dtype=float), window)
    assert found.tolist() == pytest.approx(expected, abs=1e-9, nan_ok=True)


@settings(deadline=None)
@given(values)
def test_a_cumulative_mean_is_over_all_before(own: list[float]) -> None:
    expected = [mean_of(own[: i + 1]) for i in range(len(own))]
    found = cumulative_mean(np.array(own, dtype=float))
    assert found.tolist() == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_a_size_in_units_of_the_loss_from_lengths_and_distances() -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(400, 6)) * [5, 3, 1, 1, 1, 1]
    centred = features - features.mean(0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    kept = {
        "projection": (centred @ axes[:2].T).astype(np.float32),
        "projection_share": values[:2] ** 2 / (values**2).sum(),
    }
    between = features[:, None] - features
    root = np.sqrt((between**2).sum(-1).mean())
    distance = feature_distance(kept["projection"], kept["projection_share"])
    assert distance == pytest.approx(root, rel=1e-5)
    runs = {("batchformer", seed): gradients(seed) | kept for seed in range(2)}
    runs["batchformer", 1]["gradient_samples"] = np.arange(CLASSES)  # none of the first class
    lengths = [
        runs["batchformer", 0]["gradient_l2"].mean(),
        runs["batchformer", 1]["gradient_l2"][1:].mean(),
    ]
    found = gathered(group_of(runs)).by_arm["batchformer"]
    assert found.change == pytest.approx(root * np.mean(lengths), rel=1e-5)
    assert gathered(group_of(runs), "abs", "images").by_arm["batchformer"].change is None
    plain = group_of({("batchformer", 0): gradients(0)})
    assert gathered(plain).by_arm["batchformer"].change is None


def test_the_rarest_third_is_measured_by_the_most_frequent() -> None:
    found = gathered(group_of({("batchformer", 0): gradients(0)})).by_arm["batchformer"]
    values = gradients(0)["gradient_abs"]
    frequent, rare = np.argsort(-COUNTS)[:4], np.argsort(COUNTS)[:4]
    counts = -np.sort(-COUNTS)
    assert found.thirds(counts) == pytest.approx(values[rare].mean() / values[frequent].mean())
    few = {name: array[:2] for name, array in gradients(0).items()}
    two = gathered(group_of({("batchformer", 0): few}))
    assert two.by_arm["batchformer"].thirds(two.counts) is None


@pytest.mark.parametrize(
    ("counts", "known"), [([9, 8, 7, 5, 5, 5], True), ([9, 5, 5, 5, 5, 5], False)]
)
def test_thirds_that_share_a_count_are_not_compared(counts: list[int], known: bool) -> None:
    found = InfluenceOfArm(np.arange(1.0, 7), Correlation(None, (), None, None), 1)
    assert (found.thirds(np.array(counts)) is not None) == known


def test_the_untrained_network_is_gathered_beside_the_trained_one() -> None:
    made = {}
    for seed in range(3):
        run = gradients(seed)
        random = np.random.default_rng(seed)
        before = {
            f"gradient_untrained_{m}": random.uniform(size=len(COUNTS)) for m in ("abs", "l2")
        }
        made["batchformer", seed] = run | before
    found = gathered(group_of(made)).by_arm["batchformer"]
    order = np.argsort(-COUNTS, kind="stable")
    values = np.stack([run["gradient_untrained_abs"][order] for run in made.values()])
    measured = np.stack([run["gradient_samples"][order] > 0 for run in made.values()])
    expected = correlation(COUNTS[order], np.where(measured, values, np.nan))
    assert found.untrained == expected
    for run in made.values():
        del run["gradient_untrained_abs"]
    assert gathered(group_of(made)).by_arm["batchformer"].untrained is None
