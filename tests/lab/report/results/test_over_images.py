from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchformer.lab.report.results.comparison import over_images
from batchformer.lab.report.results.configuration import one_group
from run_folders import RunTree
from simulated_networks import known

Writer = Callable[..., Any]


def test_it_is_a_bootstrap_over_images_of_the_difference_averaged_over_seeds(tree: RunTree) -> None:
    for seed in (0, 1, 2):
        tree.write("baseline", seed)
        tree.write("batchformer", seed, gain=0.1)
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


def test_with_two_pairs_there_is_no_interval(tree: RunTree) -> None:
    for seed in (0, 1):
        tree.write("baseline", seed)
        tree.write("batchformer", seed)
    assert over_images(tree.group(), "batchformer") is None


@pytest.mark.parametrize("images", [30, 40])
def test_test_sets_of_several_sizes_are_not_mixed(tree: RunTree, images: int) -> None:
    for seed in range(3):
        for arm in ("baseline", "batchformer"):
            tree.write(arm, seed, per_class_images=images if seed == 2 else 40)
    found = over_images(tree.group(), "batchformer")
    assert (found is None) == (images != 40)


def test_runs_without_answers_are_passed_over(tree: RunTree) -> None:
    for seed in range(4):
        tree.write("baseline", seed)
        folder = tree.write("batchformer", seed)
        if seed == 3:
            (folder / "figures.npz").write_bytes(b"broken")
    found = known(over_images(tree.group(), "batchformer"))
    assert found.images == 400


def test_images_are_compared_with_the_reference_of_the_group(tree: RunTree) -> None:
    for seed in range(3):
        for arm in ("baseline", "batchformer", "batchformer_self"):
            tree.write(arm, seed, gain=0.1 if arm == "batchformer" else 0.02)
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
