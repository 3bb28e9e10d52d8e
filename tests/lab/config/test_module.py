"""Settings of BatchFormer that are impossible, or make no sense in a method, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.consistency import require_contrast_sense, require_sense
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
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
    ],
)
def test_impossible_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ModuleConfig(**options)


@pytest.mark.parametrize(
    ("method", "module", "words"),
    [
        ("paco", {"loss_scale": "official"}, "never released"),
        ("paco", {"mixed_weight": 0.5}, "no weight of its own"),
        ("ride", {"loss_scale": "official"}, 'module.loss-scale "sum"'),
        ("ldam", {"context": "classes"}, "module.context classes .*balanced_softmax, not for ldam"),
        ("ride", {"views": 2}, "module.views is for cross_entropy and .*, not for ride"),
        ("paco", {"encoder": "dropout"}, "module.encoder dropout is for .*, not for paco"),
        ("coral", {"mixed_labels": "random"}, "module.mixed-labels is for .*, not for coral"),
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
    ],
)
def test_settings_that_exclude_one_another_are_refused(module: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_sense("balanced_softmax", ModuleConfig(**module))
    require_sense("balanced_softmax", ModuleConfig(views=2, mixed_labels="attention"))
    require_sense("balanced_softmax", ModuleConfig(views=2, encoder="dropout", exchange=True))


@pytest.mark.parametrize("method", ["cross_entropy", "balanced_softmax", "ldam", "ride"])
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ({"mixed_weight": 0.5}, "weighed against no other"),
        ({"loss_scale": "official"}, "official loss is"),
    ],
)
def test_settings_of_two_streams_are_refused_where_there_is_one(
    method: str, module: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        require_sense(method, ModuleConfig(streams="mixed_only", **module))
    require_sense(method, ModuleConfig(streams="mixed_only", **module, enabled=False))
    require_sense(method, ModuleConfig(streams="mixed_only", loss_scale="sum"))


#: What MoCo refuses with BatchFormer: settings of the module, of the method, and why.
REFUSED_BY_MOCO: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"loss_scale": "official"}, {}, "adds its terms"),
    ({"mixed_weight": 0.5}, {}, "no weight of its own"),
    ({"streams": "mixed_only"}, {"contrast_pairs": "plain"}, "there is one stream"),
    ({}, {"contrast_pairs": "readme"}, "a list of the released MoCo-v3"),
]


@pytest.mark.parametrize(("module", "hyper", "words"), REFUSED_BY_MOCO)
def test_moco_refuses_with_batchformer_alone(
    module: dict[str, Any], hyper: dict[str, Any], words: str
) -> None:
    settings = MethodConfig(**hyper)
    with pytest.raises(ValueError, match=words):
        require_contrast_sense("moco_v2", ModuleConfig(**module), settings)
    require_contrast_sense("moco_v2", ModuleConfig(**module, enabled=False), settings)
    recipe = find_recipe("cifar100_lt_moco_v2")
    with pytest.raises(ValueError, match=words):
        recipe.changed(module=module, hyper=hyper)


def test_lists_of_moco_v3_are_its_own() -> None:
    for pairs in ("first_release", "readme"):
        require_contrast_sense("moco_v3", ModuleConfig(), MethodConfig(contrast_pairs=pairs))
