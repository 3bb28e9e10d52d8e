"""What recipes come to: lengths, and what tells related recipes apart.

Their settings themselves are in settings.json.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from batchformer.lab.config.arms import ARMS, with_arm
from batchformer.lab.data.sets.images import class_counts
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.methods import ce_gzsl
from batchformer.lab.metrics.compositional import CompositionalResult
from batchformer.lab.metrics.generalized import generalized_accuracy
from batchformer.lab.models.faster_rcnn import Kind
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.shared import IMAGES, in_epochs
from batchformer.lab.runs.build import given_weights

KNOWN = {name: find_recipe(name) for name in RECIPES}
ON_FEATURES = {n: r.start for n, r in KNOWN.items() if r.method in ("linear_probe", "knn")}


def half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


#: Rates by epoch, counted from 0, in the authors' code; and the number of epochs.
RATES: dict[str, tuple[Callable[[int], float], int]] = {
    "cifar100_lt_ldam": (lambda e: min(e + 1, 5) / 5 * 0.01 ** ((e >= 160) + (e >= 180)), 200),
    "imagenet_lt_ride_resnet10": (
        *(lambda e: min(e + 1, 5) / 5 * 0.1 ** ((e >= 60) + (e >= 80)), 100),
    ),
    "cifar100_lt_paco": (
        *(lambda e: (e + 1) / 10 if e <= 10 else 0.1 ** ((e > 320) + (e > 360)), 400),
    ),
    "imagenet_lt_paco": (*(lambda e: (e + 1) / 10 if e < 10 else half_cosine((e - 9) / 391), 400),),
    "cifar100_lt_balanced_softmax_released": (
        *(lambda e: 0.5 + 0.5 * e / 36 if e < 36 else half_cosine((e - 36) / 554), 591),
    ),
    "cifar100_lt_bbn": (
        *(lambda e: (1 + min(e + 1, 5) * 0.4) / 3 * 0.01 ** ((e >= 119) + (e >= 159)), 200),
    ),
}
#: What makes a recipe's schedule that of the code, as its docstring says.
AS_RELEASED = {"cifar100_lt_paco": {"warmup_overshoot": 1, "milestones": (321, 361)}}


@pytest.mark.parametrize("name", RATES)
def test_rates_by_epoch(name: str) -> None:
    rule, epochs = RATES[name]
    schedule = KNOWN[name].changed(schedule=AS_RELEASED.get(name, {})).schedule
    for update in (0, 6):
        rates = [lr_factor(schedule, 7 * e + update, 7 * epochs, 7) for e in range(epochs)]
        assert rates == pytest.approx([rule(epoch) for epoch in range(epochs)], abs=1e-12)


# Lengths


def test_lengths_in_epochs() -> None:
    kept = in_epochs(10_847, 200, 128, evaluations=10)
    assert (kept.updates, kept.eval_every, kept.drop_last) == (200 * 85, 20 * 85, False)
    dropped = in_epochs(9_502, 400, 128, evaluations=10, drop_last=True)
    assert (dropped.updates, dropped.eval_every, dropped.drop_last) == (400 * 74, 40 * 74, True)


def test_image_counts_follow_from_the_profile() -> None:
    for (name, ratio), images in IMAGES.items():
        classes, largest = (100, 500) if name == "cifar100" else (10, 5000)
        assert sum(class_counts(largest, classes, ratio)) == images


# What tells related recipes apart


@pytest.mark.parametrize("base", ["imagenet_lt_ride_resnet10", "cifar100_lt_ride"])
def test_distillation_is_from_six_experts(base: str) -> None:
    student = KNOWN[f"{base}_distilled"]
    name, _, arm = student.teacher.partition("/")
    assert arm == "baseline" and KNOWN[name].hyper.experts == student.hyper.teacher_experts == 6


def test_runs_that_others_start_from_are_recipes_on_the_same_data() -> None:
    others = ("linear_probe", "knn", "detector")  # on features learnt without these labels
    found = [r for r in KNOWN.values() if (r.start or r.teacher) and r.method not in others]
    assert {r.method for r in found} == {
        *("ride", "ride_assignment", "crt", "tau_norm", "lws", "balms", "oltr", "lfme")
    }
    for recipe in found:
        for _, source_name in recipe.sources():
            name, _, arm = source_name.partition("/")
            source = KNOWN[name]
            assert not arm or arm in ARMS
            for key in ("name", "ratio", "profile", "seed"):
                assert getattr(source.data, key) == getattr(recipe.data, key)
            assert source.model == recipe.model
            assert source.hyper.feature_layer == recipe.hyper.feature_layer


# Contrastive learning, and what is measured on its features


@pytest.mark.parametrize(("name", "start"), ON_FEATURES.items())
def test_what_is_measured_on_features(name: str, start: str) -> None:
    recipe, learnt = KNOWN[name], KNOWN[start]
    data: Any = recipe.data
    of_imagenet = data.name == "imagenet"
    assert (data.sampler, data.scores) == (
        ("shuffle", "top") if of_imagenet else ("class_balanced", "both")
    )
    views = learnt.data.views if recipe.method == "knn" else "none"  # type: ignore[union-attr]
    usual = {"sampler": data.sampler, "scores": data.scores, "views": views}
    assert data == dataclasses.replace(learnt.data.images(), **usual, augment=data.augment)
    assert recipe.model == learnt.model
    if recipe.method == "knn":
        assert recipe.train.updates == 1 and not recipe.train.epochs
        assert recipe.hyper.neighbours == learnt.hyper.neighbours, "as while it was learnt"
    else:
        assert recipe.train.eval_epochs == 1 and recipe.train.epochs > 1
        assert recipe.optim.weight_decay == 0 and recipe.train.select_on == "last"
        assert recipe.hyper.probe_scale == ("none" if of_imagenet else "unit")
    assert with_arm(recipe, "random_weights").start == ""
    assert with_arm(recipe, "batchformer").start == start


def test_weights_of_a_file_in_the_place_of_a_run() -> None:
    recipe = KNOWN["my_folder_probe"].changed(start="", weights="timm")
    assert with_arm(recipe, "baseline").weights == "timm"
    with pytest.raises(ValueError, match=r"of a run .* or of a file"):
        KNOWN["my_folder_probe"].changed(weights="timm")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 250}, "a multiple of 8"),
        ({"batch_size": 256, "accumulate": 5}, "a multiple of 40"),
        ({"drop_last": False}, "train.drop-last"),
        ({"sync_norm": True}, "train.sync-norm normalises a batch as a whole"),
    ],
)
def test_batches_that_have_no_parts_are_refused(changes: dict[str, Any], words: str) -> None:
    recipe = KNOWN["cifar100_lt_moco_v2"]
    with pytest.raises(ValueError, match=words):
        recipe.changed(train=changes)
    recipe.changed(hyper={"norm_parts": 1}, train=changes)


# Families


def test_columns_of_the_paper_are_scores_of_a_run() -> None:
    fields = [field.name for field in dataclasses.fields(CompositionalResult)]
    assert fields[:6] == ["auc", "hm", "seen", "unseen", "attribute", "object"]
    measured = generalized_accuracy(torch.tensor([50.0, 40.0]), unseen=torch.tensor([1]))
    assert list(KNOWN["cub_ce_gzsl"].paper["baseline"]) == list(measured)


def test_widths_of_ce_gzsl_that_no_recipe_sets() -> None:
    assert (ce_gzsl.EMBEDDING, ce_gzsl.DIRECTION, ce_gzsl.COMPARATOR) == (2048, 512, 2048)


def test_every_kind_of_detector_has_a_recipe() -> None:
    found = {r.hyper.detector for r in KNOWN.values() if r.task == "detection"}
    assert found == set(get_args(Kind))
    untrained = with_arm(KNOWN["voc_moco_v3"], "random_weights")
    assert untrained.start == untrained.weights == ""


@pytest.mark.parametrize("name", ["places_lt_balms", "places_lt_tau_norm"])
def test_features_beside_the_data_are_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path / "elsewhere"))
    recipe = KNOWN[name].changed(data={"root": str(tmp_path)})
    with pytest.raises(FileNotFoundError, match=r"--weights FILE.*--weights timm"):
        given_weights(recipe)
    (tmp_path / "resnet152_uniform.pth").touch()
    assert given_weights(recipe) == tmp_path / "resnet152_uniform.pth"
    assert given_weights(recipe.changed(weights="timm")) is None
