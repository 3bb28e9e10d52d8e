"""Settings that contradict one another, or would have no effect, are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import ScheduleConfig, TrainConfig
from batchformer.lab.recipes import find_recipe

VAL: dict[str, Any] = {"name": "imagenet_lt", "augment": "jitter", "meta_from": "val"}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("demo", {"stride": "1by1"}, "stride is '1by1'; it takes auto or 3x3 or 1x1"),
        ("demo", {"method": "crt"}, "--start RECIPE/ARM"),
        ("demo", {"teacher": "demo"}, "--teacher is for the method ride"),
        ("demo", {"method": "paco"}, "data.augment paco"),
        ("demo", {"method": "balms", "start": "demo"}, "data.meta-batch"),
        ("demo", {"method": "oltr"}, "--start RECIPE/ARM"),
        ("my_voc", {"hyper": MethodConfig(feature_layer=8)}, "set --hyper.feature-layer 0"),
        (
            "imagenet_lt_oltr",
            {"data": LongTailConfig(**VAL)},
            "balms or lfme, and oltr.*leave it tr",
        ),
        ("cub_izf", {"train": TrainConfig(updates=9)}, r"choose an epoch.*--data\.no-choose"),
        ("cub_ce_gzsl", {"schedule": ScheduleConfig(kind="cosine")}, r"leave data\.choose off"),
        ("ut_zappos_compcos_open", {"method": "cge"}, r"method compcos.*--data\.no-mask"),
        ("ut_zappos_compcos", {"hyper": MethodConfig()}, r"by hyper\.image-embedding"),
        ("cifar100_lt_bbn", {"data": {"paired": "none"}}, "bbn trains.*data.paired reversed"),
        ("demo", {"data": {"paired": "reversed"}}, "method bbn, and balanced_softmax does not"),
        ("cifar100_lt_balms", {"data": {"paired": "reversed"}}, "two kinds of a second batch"),
        ("pacs_irm", {"train": {"accumulate": 2}}, r"irm needs all domains.*train\.accumulate 1"),
        ("cub_izf", {"train": {"ema": 0.9}}, r"set train\.ema 0"),
        ("cub_tf_vaegan", {"train": {"compile": True}}, r"leave train\.compile off"),
        ("cifar100_lt_balms", {"optim": {"name": "adam"}}, r"balms is a step of SGD.*inner-lr"),
    ],
)
def test_recipes_that_cannot_be_are_refused(name: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_recipe(name).changed(**change)


def test_weights_are_of_a_file_or_of_a_run() -> None:
    from_a_file = find_recipe("cifar100_lt_crt").changed(start="", weights="w.pth")
    assert from_a_file.method == "crt"
    with pytest.raises(ValueError, match="not both"):
        from_a_file.changed(start="cifar100_lt_cross_entropy")


@pytest.mark.parametrize("select_on", ["val", "test"])
def test_an_epoch_is_chosen_in_one_way(select_on: str) -> None:
    """Else the other would have no effect, and nobody would say so."""
    recipe = find_recipe("cub_ce_gzsl")
    train = {"select_on": select_on}
    with pytest.raises(ValueError, match=rf"select-on {select_on} has no.*--data\.no-choose"):
        recipe.changed(train=train)
    recipe.changed(train=train, data={"choose": False})


def test_swad_needs_images_that_are_held_out() -> None:
    """Else it is found out when the first evaluation is through."""
    for name in ("demo", "cifar100_lt_moco_v3", "ut_zappos_cge"):
        recipe = find_recipe(name)
        with pytest.raises(ValueError, match=rf"data\.held-out.*{recipe.task}; leave hyper\.swad"):
            recipe.changed(hyper={"swad": True})
    recipe = find_recipe("pacs_swad")
    with pytest.raises(ValueError, match=r"data\.held-out is 0; set data\.held-out"):
        recipe.changed(data={"held_out": 0.0})
    recipe.changed(data={"held_out": 0.1})


def test_mixing_needs_a_method_with_soft_targets() -> None:
    cut = find_recipe("cifar100_lt_balanced_softmax_cutmix")
    with pytest.raises(ValueError, match=r"ldam does not support that; leave both at 0, or set"):
        cut.changed(method="ldam")
    with pytest.raises(ValueError, match=r"hyper\.mix-prob 0\.5.*nothing mixes it"):
        cut.changed(hyper={"cutmix": 0.0})


def test_a_batch_of_no_size_needs_domains() -> None:
    for name in ("demo", "pacs_erm"):
        recipe = find_recipe(name)
        with pytest.raises(ValueError, match=r"data\.sampler domains gives; set train\.batch-size"):
            recipe.changed(train={"batch_size": 0})
