"""Settings of methods: every one has words for the help, is read by a method, and is checked."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections import Counter

import pytest

from batchformer.lab.config import settings
from batchformer.lab.config.methods import COMMON, METHODS
from batchformer.lab.config.settings import MethodConfig

GROUPS = MethodConfig.__bases__


def test_every_setting_has_words_for_the_help() -> None:
    tree = ast.parse(inspect.getsource(settings))
    for made in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        after = dict(zip(made.body, made.body[1:], strict=False))
        for node in (node for node in made.body if isinstance(node, ast.AnnAssign)):
            words = after.get(node)
            assert isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant), (
                f"{ast.unparse(node.target)} has no words below it"
            )


def test_every_setting_stands_in_one_group_that_some_method_reads() -> None:
    times = Counter(field.name for group in GROUPS for field in dataclasses.fields(group))
    assert set(times.values()) == {1}
    assert set(times) == {field.name for field in dataclasses.fields(MethodConfig)}
    read = {group for entry in METHODS.values() for group in entry.settings}
    assert read | set(COMMON) == set(GROUPS) and not read & set(COMMON)


def test_a_changed_copy_is_checked_like_a_new_one() -> None:
    with pytest.raises(ValueError, match=r"hyper\.swad-tolerance is 0, below 1"):
        dataclasses.replace(MethodConfig(), swad_tolerance=0)


#: Values that cannot be meant, and the settings that refuse them.
REFUSED: dict[float, tuple[str, ...]] = {
    -1: (
        *("margin", "reweight_epoch", "tau", "inner_lr", "mixup", "cutmix", "image_embedding"),
        *("feasibility_margin", "feasibility_epochs", "backbone_lr_factor"),
        *("contrast", "gradient_penalty", "experts", "alpha", "temperature_factor", "swad_ratio"),
        *("penalty", "penalty_from"),
    ),
    0: (
        *("scale", "queue", "dim", "experts", "teacher_experts", "router_top", "router_width"),
        *("distillation_temperature", "neighbours", "vote_temperature", "norm_parts"),
        *("projection_layers", "projection_hidden", "graph_hidden", "image_hidden"),
        *("cosine_scale", "noise", "gan_hidden", "contrast_temperature", "critic_steps"),
        *("synthetic", "classifier_epochs", "sampler_lr", "mixstyle_alpha", "bottleneck"),
        *("reversal_updates", "swad_converge", "swad_tolerance", "temperature"),
    ),
    1: ("reweight_beta", "temperature_factor"),
    1.5: (
        *("momentum", "mix_prob", "mix_switch", "smoothing", "drop_path", "mixstyle_p"),
        *("feature_dropout", "pair_dropout"),
    ),
}


def test_impossible_values_are_refused_with_their_option() -> None:
    for value, names in REFUSED.items():
        for name in names:
            with pytest.raises(ValueError, match=f"hyper.{name.replace('_', '-')} is {value}"):
                MethodConfig(**{name: value})  # type: ignore[arg-type]


def test_values_at_the_edge_are_possible() -> None:
    zero = ("image_embedding", "feasibility_epochs", "gradient_penalty", "margin", "mix_prob")
    MethodConfig(**dict.fromkeys(zero, 0), noise=1, critic_steps=1, momentum=1)  # type: ignore[arg-type]
