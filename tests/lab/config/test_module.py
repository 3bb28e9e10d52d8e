"""Settings of BatchFormer that are impossible, or make no sense in a method, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.consistency import require_sense
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.recipes import find_recipe


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 0}, "module.heads is 0, below 1"),
        ({"layers": 0}, "module.layers"),
        ({"dropout": 1.5}, "module.dropout is 1.5, outside"),
        ({"lr_factor": -0.1}, "module.lr-factor"),
        ({"mixed_weight": -1.0}, "module.mixed-weight"),
        ({"context_momentum": 1.0}, "module.context-momentum is 1.0, outside"),
        ({"context_weight": -0.1}, "module.context-weight is -0.1, below 0"),
        ({"views": 0}, "module.views is 0, below 1"),
        ({"label_share": 1.5}, "module.label-share is 1.5, outside"),
        ({"at": ("a", "a")}, "module.at names a place twice"),
    ],
)
def test_impossible_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ModuleConfig(**options)


@pytest.mark.parametrize(
    ("method", "module", "words"),
    [
        ("ldam", {"context": "classes"}, "module.context classes .*balanced_softmax, not for ldam"),
        ("ride", {"views": 2}, "module.views is for cross_entropy and .*, not for ride"),
        ("paco", {"encoder": "dropout"}, "module.encoder dropout is for .*, not for paco"),
        ("coral", {"mixed_labels": "random"}, "module.mixed-labels is for .*, not for coral"),
        ("ldam", {"at": ("a",)}, "module.at is for cross_entropy and balanced_softmax, not for ld"),
    ],
)
def test_settings_without_sense_are_refused(
    method: str, module: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        require_sense(method, ModuleConfig(**module))
    require_sense(method, ModuleConfig(**module, enabled=False))
    require_sense("balanced_softmax", ModuleConfig(**module))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ({"views": 2, "at": ("blocks.1",)}, "module.at stands before these"),
        ({"views": 2, "context": "classes"}, "module.context classes and module.views are not pos"),
        ({"encoder": "dropout", "dropout": 0.0}, "leaves two equal streams; set module.dropout"),
        ({"mixed_labels": "random", "attend": "self"}, "here is none; leave it own"),
        ({"mixed_labels": "attention", "encoder": "dropout"}, "here is none; leave it own"),
        ({"mixed_labels": "attention", "exchange": True}, "set --module.no-exchange"),
        ({"context": "classes", "exchange": True}, "set --module.no-exchange"),
        ({"at": ("a",), "context": "classes"}, "module.at stands before these"),
        ({"at": ("a",), "copy_layers": True}, "module.copy-layers is for BatchFormer before"),
        ({"encoder": "none"}, "the baseline under another name"),
        ({"share": True}, "module.share is for several places"),
    ],
)
def test_settings_that_exclude_one_another_are_refused(module: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_sense("balanced_softmax", ModuleConfig(**module))
    require_sense("balanced_softmax", ModuleConfig(views=2, mixed_labels="attention"))
    require_sense("balanced_softmax", ModuleConfig(views=2, encoder="dropout", exchange=True))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ({"mixed_weight": 0.5}, "weighed against no other"),
        ({"loss_scale": "official"}, "official loss is"),
    ],
)
def test_settings_of_two_streams_are_refused_where_there_is_one(
    module: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        require_sense("ldam", ModuleConfig(streams="mixed_only", **module))
    require_sense("ldam", ModuleConfig(streams="mixed_only", **module, enabled=False))
    require_sense("ldam", ModuleConfig(streams="mixed_only", loss_scale="sum"))


#: What the registry refuses with BatchFormer: the recipe, settings of the module, of the method,
#: and why.
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("cifar100_lt_paco", {"loss_scale": "official"}, {}, "never released"),
    ("cifar100_lt_paco", {"mixed_weight": 0.5}, {}, "no weight of its own"),
    ("cifar100_lt_ride", {"loss_scale": "official"}, {}, 'module.loss-scale "sum"'),
    ("cub_izf", {"loss_scale": "official"}, {}, "no released code"),
    ("cub_ce_gzsl", {"mixed_weight": 0.5}, {}, "of ce_gzsl .* cannot have its own weight"),
    ("coco_detr", {"loss_scale": "official"}, {}, "one mean over the boxes"),
    ("coco_detr", {"mixed_weight": 0.5}, {}, "leave module.mixed-weight at 1"),
    ("coco_detr", {"at": ()}, {}, "detr has no pooled features.*model.encoder.layers.1"),
    ("cifar100_lt_moco_v2", {"loss_scale": "official"}, {}, "adds its terms"),
    ("cifar100_lt_moco_v3", {"mixed_weight": 0.5}, {}, "no weight of its own"),
    ("cifar100_lt_moco_v2", {}, {"contrast_pairs": "readme"}, "moco_v2 has all and plain"),
    *(
        (f"cifar100_lt_moco_{version}", {"streams": "mixed_only"}, hyper, "there is one stream")
        for version in ("v2", "v3")
        for hyper in ({"contrast_pairs": "plain"}, {"enqueued": "mixed"})
    ),
]


@pytest.mark.parametrize(("name", "module", "hyper", "words"), REFUSED)
def test_methods_refuse_with_batchformer_alone(
    name: str, module: dict[str, Any], hyper: dict[str, Any], words: str
) -> None:
    recipe = find_recipe(name)
    with pytest.raises(ValueError, match=words):
        recipe.changed(module=module, hyper=hyper)
    recipe.changed(module={**module, "enabled": False}, hyper=hyper)


def test_what_one_method_refuses_another_accepts() -> None:
    for pairs in ("first_release", "readme"):
        find_recipe("cifar100_lt_moco_v3").changed(hyper={"contrast_pairs": pairs})
    in_classifier = find_recipe("cub_ce_gzsl").changed(hyper={"module_at": "classifier"})
    in_classifier.changed(module={"mixed_weight": 0.5})
