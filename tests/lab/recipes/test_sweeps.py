"""Sweeps: what a level is, what it changes of a recipe, and the sweeps there are."""

from __future__ import annotations

import math

import pytest

from batchformer.lab.config.recipe import Recipe, changed_settings, with_settings
from batchformer.lab.config.training import ScheduleConfig
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.cifar_lt import without_paco_loss
from batchformer.lab.recipes.paper import ROWS
from batchformer.lab.recipes.small import demo
from batchformer.lab.recipes.sweeps import (
    SWEEPS,
    Level,
    Sweep,
    find_sweep,
    training_images,
    with_batch_size,
)

ONE, TWO = (
    Level(name="1"),
    Level(name="2", change=with_settings(module={"layers": 2}), row="cifar100_lt_balanced_softmax"),
)


def depth(**changes: object) -> Sweep:
    options = {"name": "depth", "base": "demo", "factor": "layers", "reference": "1"}
    return Sweep(levels=(ONE, TWO), **{**options, **changes})  # type: ignore[arg-type]


def test_a_level_is_the_base_with_its_change_and_words_of_its_own() -> None:
    base = demo().changed(train={"updates": 7})
    recipe = depth().recipe("2", base)
    assert recipe.name == "depth/2" and "layers: 2" in recipe.summary
    assert changed_settings(base, recipe) == {"module.layers": (1, 2)}
    assert changed_settings(base, depth().recipe("1", base)) == {}
    assert recipe.train.updates == 7


def test_the_reference_has_the_papers_numbers_of_the_base_and_others_their_own() -> None:
    base = demo().changed(paper={"baseline": {"all": 3.0}})
    assert depth().recipe("1", base).paper == {"baseline": {"all": 3.0}}
    paper = depth().recipe("2", base).paper
    assert (paper["baseline"]["all"], paper["batchformer"]["all"]) == (50.7, 51.7)


def test_a_baseline_that_no_level_changes_is_trained_once() -> None:
    arms, levels = ["batchformer", "baseline", "batchformer_self"], ["2"]
    assert depth().cells(arms, levels) == [
        ("1", "baseline"),
        ("2", "batchformer"),
        ("2", "batchformer_self"),
    ]
    assert depth(baseline="each").cells(["batchformer"], ["1", "2"]) == [
        ("1", "baseline"),
        ("2", "baseline"),
        ("1", "batchformer"),
        ("2", "batchformer"),
    ]


def test_mistakes_are_answered_in_words() -> None:
    with pytest.raises(ValueError, match="depth has no level '3'; its levels are 1, 2"):
        depth().level("3")
    with pytest.raises(ValueError, match="no level '9' to compare with"):
        depth(reference="9")


# Changes of a recipe: one thing, and what follows from it

CIFAR = "cifar100_lt_balanced_softmax"


def epochs(recipe: Recipe, images: int) -> float:
    batch = recipe.train.batch_size
    per_epoch = images // batch if recipe.train.drop_last else math.ceil(images / batch)
    return recipe.train.updates / per_epoch


@pytest.mark.parametrize("name", [CIFAR, f"{CIFAR}_r200", f"{CIFAR}_released", "cifar100_lt_paco"])
@pytest.mark.parametrize("size", [16, 128, 256, 1024])
def test_another_batch_size_keeps_the_epochs_and_scales_the_rate(name: str, size: int) -> None:
    base = find_recipe(name)
    images = sum(int(500 * (1 / base.data.ratio) ** (c / 99)) for c in range(100))
    changed = with_batch_size(size)(base)
    per_epoch = math.ceil(images / size)
    assert abs(epochs(changed, images) - epochs(base, images)) <= 0.5 / (per_epoch - 1)
    ratio = size / base.train.batch_size
    assert changed.optim.lr == pytest.approx(base.optim.lr * ratio, rel=1e-12)
    share = base.train.eval_every / base.train.updates
    assert changed.train.eval_every / changed.train.updates == pytest.approx(share, rel=0.01)
    if base.schedule.per == "epoch":
        assert changed.schedule == base.schedule
    else:
        rise = base.schedule.warmup / base.train.updates
        assert changed.schedule.warmup / changed.train.updates == pytest.approx(rise, rel=0.01)


def test_milestones_in_updates_move_with_the_epochs() -> None:
    rise = {"warmup": 44, "warmup_overshoot": 22}
    drops = ScheduleConfig(
        kind="multistep", per="update", milestones=(2200, 4400), ahead=22, **rise
    )
    base = find_recipe(CIFAR).changed(schedule=drops)
    changed = with_batch_size(256)(base)  # 43 updates an epoch instead of 22
    assert changed.schedule.milestones == (4300, 8600) and changed.schedule.ahead == 43
    assert (changed.schedule.warmup, changed.schedule.warmup_overshoot) == (86, 43)


def test_the_same_size_changes_nothing() -> None:
    base = find_recipe(CIFAR)
    assert with_batch_size(512)(base) == base == ONE.change(base)


def test_images_that_are_not_known_are_refused() -> None:
    base = find_recipe(CIFAR)
    with pytest.raises(ValueError, match="cifar100 with ratio 37, exponential, are not known"):
        with_batch_size(256)(base.changed(data={"ratio": 37.0}))
    assert training_images(base) == 10_847
    files = find_recipe("imagenet_lt_balanced_softmax_resnet10")
    elsewhere = files.changed(data={"train_list": "a/train.txt", "test_list": "a/test.txt"})
    assert training_images(files) == training_images(elsewhere) == 115_846
    for some in ({"per_class": 10}, {"min_images": 21}):
        with pytest.raises(ValueError, match="imagenet_lt with ratio 100, exponential, are not kn"):
            training_images(files.changed(data=some))
    with pytest.raises(ValueError, match="not known"):
        training_images(base.changed(data={"max_images": 20}))


def test_a_rate_that_was_chosen_stays_without_pacos_loss() -> None:
    chosen = find_recipe("cifar100_lt_paco").changed(module={"lr_factor": 0.5})
    assert without_paco_loss(chosen).module == chosen.module


# The sweeps there are

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


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=lambda sweep: sweep.name)
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


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=lambda sweep: sweep.name)
def test_a_baseline_is_trained_once_only_where_no_level_changes_it(sweep: Sweep) -> None:
    outside = {
        setting
        for changed in differences(sweep).values()
        for setting in changed
        if not setting.startswith(("module.", "optim.module_"))
    }
    assert (sweep.baseline == "each") == bool(outside)


def test_rows_of_the_paper_name_levels_that_exist_and_carry_their_numbers() -> None:
    named = [row for row in ROWS if row.recipe is not None and "/" in row.recipe]
    assert len(named) == 13
    for row in named:
        name, _, level = str(row.recipe).partition("/")
        sweep = SWEEPS[name]
        assert sweep.paper(level, sweep.base_recipe())[row.arm] == row.numbers
        assert sweep.table == row.table
    for name in ("imagenet_lt_batch_size", "imagenet_lt_shared_classifier", "imagenet_lt_layers"):
        sweep = SWEEPS[name]
        assert all(sweep.paper(level, sweep.base_recipe()) for level in sweep.level_names)


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
        base.changed(model="resnet18"),
        base.changed(data={"name": "folder"}),
    ):
        made = sweep.recipe("shared", other)
        assert (made.paper, made.table) == ({}, "not in the paper")
        assert sweep.paper("mixed_only", other) == {}
    longer = base.changed(train={"epochs": 7})
    assert sweep.recipe("shared", longer).paper
