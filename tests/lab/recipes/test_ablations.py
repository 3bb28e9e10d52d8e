"""The sweeps there are: each level differs from the reference in what it says."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.lab.config.comparable import changed_settings
from batchformer.lab.recipes.paper import ROWS
from batchformer.lab.recipes.sweeps import SWEEPS, Sweep, find_sweep

#: The setting that a sweep varies.
SETTINGS = {
    "paco_module_decay": "optim.module_weight_decay",
    "shared_classifier": "module.streams",
    "layers": "module.layers",
    "module_lr": "module.lr_factor",
    "heads": "module.heads",
    "dropout": "module.dropout",
    "loss_scale": "module.loss_scale",
    "mixed_weight": "module.mixed_weight",
}
#: What another batch size takes with it: its rate, and the counts that keep the epochs.
WITH_BATCH_SIZE = {
    "train.batch_size",
    "optim.lr",
    "train.updates",
    "train.eval_every",
    "train.checkpoint_every",
    "schedule.warmup",
}
HERE = [sweep for sweep in SWEEPS.values() if sweep.known]


def factor_of(sweep: Sweep) -> str:
    for prefix in ("imagenet_lt_", "cifar100_lt_", "digits_", "demo_"):
        if sweep.name.startswith(prefix):
            return sweep.name.removeprefix(prefix).removeprefix("moco_v2_").removeprefix("moco_v3_")
    raise AssertionError(sweep.name)


def differences(sweep: Sweep) -> dict[str, dict[str, tuple[object, object]]]:
    base = sweep.base_recipe()
    reference = sweep.recipe(sweep.reference, base)
    return {
        name: changed_settings(reference, sweep.recipe(name, base))
        for name in sweep.level_names
        if name != sweep.reference
    }


@pytest.mark.parametrize("sweep", HERE, ids=lambda sweep: sweep.name)
def test_levels_change_one_thing(sweep: Sweep) -> None:
    factor = factor_of(sweep)
    base = sweep.base_recipe()
    assert changed_settings(base, sweep.recipe(sweep.reference, base)) == {}
    for name, changed in differences(sweep).items():
        if factor == "batch_size":
            assert changed["train.batch_size"][1] == int(name)
            assert {"train.batch_size", "optim.lr"} <= changed.keys() <= WITH_BATCH_SIZE
        elif factor.startswith("paco_loss"):
            assert changed["method"] == ("paco", "balanced_softmax")
            # The paper has another rate for the encoder with Balanced Softmax.
            assert changed["module.lr_factor"] == (1.0, 0.1)
            assert changed.keys() <= {"method", "data.augment", "module.lr_factor"}
        elif factor == "front":
            assert changed == {"hyper.projection_front": (False, True)}
        else:
            assert list(changed) == [SETTINGS[factor]]
            value = changed[SETTINGS[factor]][1]
            assert name == (f"{value:g}" if isinstance(value, float) else str(value))


@pytest.mark.parametrize("sweep", HERE, ids=lambda sweep: sweep.name)
def test_a_baseline_is_trained_once_only_where_no_level_changes_it(sweep: Sweep) -> None:
    outside = {
        setting
        for changed in differences(sweep).values()
        for setting in changed
        if not setting.startswith(("module.", "optim.module_"))
    }
    assert (sweep.baseline == "each") == bool(outside)


@pytest.mark.parametrize("sweep", HERE, ids=lambda sweep: sweep.name)
def test_rates_of_batch_sizes_are_in_proportion(sweep: Sweep) -> None:
    if factor_of(sweep) == "batch_size":
        base = sweep.base_recipe()
        rates = {int(n): sweep.recipe(n, base).optim.lr / int(n) for n in sweep.level_names}
        assert len({round(rate, 12) for rate in rates.values()}) == 1
        if sweep.name.startswith("imagenet"):
            assert rates[128] == pytest.approx(0.05 / 128)


def test_the_papers_levels_are_all_there() -> None:
    levels = {sweep.name: sweep.level_names for sweep in SWEEPS.values()}
    assert levels["imagenet_lt_batch_size"] == ("16", "32", "64", "128", "256", "512")
    assert levels["imagenet_lt_layers"] == ("1", "2", "4", "8", "16")
    assert levels["cifar100_lt_batch_size"] == levels["imagenet_lt_batch_size"]
    assert levels["cifar100_lt_layers"] == levels["imagenet_lt_layers"]
    assert levels["cifar100_lt_mixed_weight"] == ("0.25", "1", "4")
    assert levels["cifar100_lt_dropout"] == ("0", "0.1", "0.5")


def test_rows_of_the_paper_name_levels_that_exist_and_carry_their_numbers() -> None:
    named = [row for row in ROWS if row.recipe is not None and "/" in row.recipe]
    assert len(named) == 13
    for row in named:
        name, _, level = str(row.recipe).partition("/")
        sweep = SWEEPS[name]
        assert sweep.paper(level, None)[row.arm] == row.numbers
        assert sweep.table == row.table
    for name in ("imagenet_lt_batch_size", "imagenet_lt_shared_classifier", "imagenet_lt_layers"):
        assert all(SWEEPS[name].paper(level, None) for level in SWEEPS[name].level_names)


def test_an_unknown_sweep_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean cifar100_lt_layers or"):
        find_sweep("cifar100_lt_layer")
    with pytest.raises(ValueError, match="`batchformer sweep` shows them all"):
        find_sweep("zzzz")


def test_other_data_or_another_network_has_no_numbers_of_the_paper() -> None:
    sweep = SWEEPS["imagenet_lt_shared_classifier"]
    base = sweep.base_recipe()
    assert sweep.recipe("shared", base).paper and sweep.paper("mixed_only", base)
    for other in (
        dataclasses.replace(base, model="resnet18"),
        dataclasses.replace(base, data=base.data_with(name="folder")),
    ):
        made = sweep.recipe("shared", other)
        assert (made.paper, made.table) == ({}, "not in the paper")
        assert sweep.paper("mixed_only", other) == {}
    longer = dataclasses.replace(base, train=dataclasses.replace(base.train, epochs=7))
    assert sweep.recipe("shared", longer).paper
