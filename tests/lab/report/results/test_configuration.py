from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.recipes import find_recipe
from batchformer.lab.report.results.configuration import (
    RunGroup,
    comparable,
    fingerprint,
    one_group,
    settings,
)
from batchformer.lab.report.results.runs import read_run
from batchformer.lab.runs.folder import recipe_to_json
from helpers.run_folders import RunTree, change_json, recipe_of


def test_settings_without_effect_on_the_recipe_are_left_out(tree: RunTree) -> None:
    recipe = recipe_to_json(find_recipe("demo"))
    tree.write("baseline", 0, recipe=recipe)
    found = settings(tree.group())
    assert {"hyper.mixup", "optim.momentum", "data.ratio"} <= found.keys()
    assert found.keys().isdisjoint({"hyper.tau", "optim.betas", "data.root", "train.parallel"})
    tree.write("batchformer", 0, recipe={**recipe, "hyper": {**recipe["hyper"], "tau": 2.0}})
    both = RunGroup("both", tuple(tree.runs()))
    assert settings(both)["hyper.tau"] == "1.0 or 2.0", "runs differ in it"
    assert not {"name", "summary", "paper"} & found.keys()


def test_only_settings_that_have_an_effect_change_the_fingerprint() -> None:
    plain = fingerprint(recipe_of())
    without_effect: tuple[dict[str, Any], ...] = (
        {"summary": "other words"},
        {"paper": {}},
        {"table": None},
        {"data__root": "/elsewhere"},
        {"train__workers": 7},
        {"seed": 3},
        {"train__log_every": 7},
        {"train__parallel": "fsdp"},
    )
    for change in without_effect:
        assert fingerprint(recipe_of(**change)) == plain, change
    training = {"train__updates": 401, "optim__name": "adam", "model": "resnet20"}
    data = {"data__imbalance": 50, "data__seed": 1}
    for key, value in {**training, **data, "module__heads": 8}.items():
        assert fingerprint(recipe_of(**{key: value})) != plain, key


def test_settings_of_batchformer_are_not_shared() -> None:
    arm = recipe_of(module=None, optim__module_weight_decay=0.0)
    assert fingerprint(arm) != fingerprint(recipe_of())
    assert fingerprint(arm, shared=True) == fingerprint(recipe_of(), shared=True)


def test_arms_with_their_own_parts_are_one_group(tree: RunTree) -> None:
    tree.write("batchformer", 0)
    tree.write("baseline", 0)
    tree.write("baseline_loss3x", 0)
    (group,) = comparable(tree.runs())
    assert (group.name, group.warnings) == ("tail", ())
    assert group.arms == ["baseline", "batchformer", "baseline_loss3x"]


def test_two_configurations_under_one_name_are_kept_apart_and_named(tree: RunTree) -> None:
    for arm in ("baseline", "batchformer"):
        tree.write(arm, 0)
        tree.write(arm, 1, recipe=recipe_of(train__updates=800))
    groups = comparable(tree.runs())
    assert [group.name for group in groups] == [
        "tail (train.updates 400)",
        "tail (train.updates 800)",
    ]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 0], [1, 1]]
    for group in groups:
        assert "train.updates: 400 or 800" in group.warnings[0]


def test_runs_that_began_with_other_weights_are_kept_apart(tree: RunTree) -> None:
    """The file of a name may hold other weights on another day."""
    recipe = recipe_of(weights="w.pth")
    folders = [tree.write(arm, 0, recipe=recipe) for arm in ("baseline", "batchformer")]
    tree.write("random_weights", 0, recipe=recipe)  # it began with none of them

    def began_with(hashes: tuple[str, str]) -> list[RunGroup]:
        for folder, sha256 in zip(folders, hashes, strict=True):
            change_json(folder / "config.json", weights={"sha256": sha256})
        return comparable(tree.runs())

    (group,) = began_with(("0a", "0a"))
    assert group.arms == ["baseline", "batchformer", "random_weights"] and not group.warnings
    groups = began_with(("0a", "0b"))
    assert len(groups) == 3 and all(len(group.arms) <= 2 for group in groups)
    assert not any({"baseline", "batchformer"} <= {run.arm for run in one.runs} for one in groups)
    assert "weights_sha256: 0a or 0b" in groups[0].warnings[0]


def test_another_module_of_one_arm_is_compared_with_the_same_baseline(tree: RunTree) -> None:
    tree.write("baseline", 0, recipe=recipe_of(module=None))
    tree.write("batchformer", 0)
    tree.write("batchformer", 1, recipe=recipe_of(module__heads=8))
    tree.write("batchformer_self", 1, recipe=recipe_of(module__heads=8))
    tree.write("baseline_loss3x", 0)
    four, eight = comparable(tree.runs())
    assert four.name == "tail (module.heads 4)"
    assert sorted((run.arm, run.seed) for run in four.runs) == [
        ("baseline", 0),
        ("baseline_loss3x", 0),
        ("batchformer", 0),
    ]
    assert sorted((run.arm, run.seed) for run in eight.runs) == [
        ("baseline", 0),
        ("batchformer", 1),
        ("batchformer_self", 1),
    ]
    assert eight.name == "tail (module.heads 8)"
    assert all("module.heads: 4 or 8" in group.warnings[0] for group in (four, eight))


def test_weight_decay_of_the_module_alone_leaves_the_baseline_shared(tree: RunTree) -> None:
    tree.write("baseline", 0)
    tree.write("batchformer", 0)
    tree.write("batchformer", 1, recipe=recipe_of(optim__module_weight_decay=0.0))
    groups = comparable(tree.runs())
    assert [group.arms for group in groups] == [["baseline", "batchformer"]] * 2


def test_arms_with_other_settings_of_batchformer_are_not_compared(tree: RunTree) -> None:
    """Their difference would be that of the arms and that of the settings."""
    tree.write_pairs(2)
    for seed in (0, 1):
        tree.write("batchformer_self", seed, recipe=recipe_of(module__lr_factor=0.1))
    full, tenth = comparable(tree.runs())
    assert full.arms == ["baseline", "batchformer"]
    assert tenth.arms == ["baseline", "batchformer_self"]
    assert tenth.name == "tail (module.lr_factor 0.1)"
    assert settings(tenth)["module.lr_factor"] == "0.1", "the baseline does not read its own"


def test_another_loss_of_one_arm_is_another_configuration(tree: RunTree) -> None:
    tree.write("baseline", 0)
    tree.write("batchformer", 0, recipe=recipe_of(train__loss_multiplier=3.0))
    assert [group.arms for group in comparable(tree.runs())] == [["baseline"], ["batchformer"]]


def test_a_baseline_is_of_every_group_whatever_settings_it_was_recorded_with(tree: RunTree) -> None:
    """A further comparison in the same folder adds seeds of the baseline with its own settings."""
    other = recipe_of(module__lr_factor=0.1)
    tree.write_pairs(2)
    tree.write("baseline", 2, recipe=other)
    for seed in range(3):
        tree.write("batchformer_self", seed, recipe=other)
    full, tenth = comparable(tree.runs())
    for group in (full, tenth):
        assert [run.seed for run in group.of("baseline")] == [0, 1, 2]
    (alone,) = comparable([run for run in tree.runs() if run.arm != "batchformer"])
    assert alone.arms == ["baseline", "batchformer_self"] and not alone.warnings
    assert [run.seed for run in alone.of("baseline")] == [0, 1, 2]


def test_a_group_keeps_its_own_baseline_where_another_folder_has_the_same(tree: RunTree) -> None:
    tree.write_pairs(1)
    (tree.root / "tail").rename(tree.root / "moved")
    for arm in ("baseline", "batchformer"):
        tree.write(arm, 0, recipe=recipe_of(module__lr_factor=0.1))
    groups = comparable(tree.runs())
    assert len(groups) == 2
    for group in groups:
        assert len({run.folder.parents[1] for run in group.runs}) == 1
        assert not any("found twice" in warning for warning in group.warnings)


def test_of_two_equal_runs_the_later_is_used_and_said(tmp_path: Path, tree: RunTree) -> None:
    old = tree.write("baseline", 0, provenance={"started": "2025-01-01"}, scores={"all": 1.0})
    moved = tmp_path / "copy" / "tail" / "baseline" / "seed0"
    moved.parent.mkdir(parents=True)
    old.rename(moved)
    new = tree.write("baseline", 0, provenance={"started": "2025-02-01"}, scores={"all": 2.0})
    for order in ([moved, new], [new, moved]):
        group = one_group(map(read_run, order))
        assert [run.scores["all"] for run in group.runs] == [2.0]
        assert "found twice" in group.warnings[0]
        assert str(moved) in group.warnings[0]


def test_another_draw_of_the_data_is_another_configuration(tree: RunTree) -> None:
    tree.write("baseline", 0, split="a" * 64)
    tree.write("baseline", 1, split="b" * 64)
    groups = comparable(tree.runs())
    assert [[run.seed for run in group.runs] for group in groups] == [[0], [1]]
    assert "data_found.split_sha256" in groups[0].warnings[0]


def test_two_versions_of_the_code_are_said(tree: RunTree) -> None:
    tree.write("baseline", 0, provenance={"code_sha256": "a" * 64})
    tree.write("baseline", 1, provenance={"code_sha256": "b" * 64})
    (warning,) = tree.group().warnings
    assert "2 versions of the code" in warning
    assert "a" * 12 in warning


def test_a_figure_of_several_configurations_is_refused(tree: RunTree) -> None:
    with pytest.raises(ValueError, match="none that has finished"):
        one_group([])
    tree.write("baseline", 0)
    tree.write("baseline", 1, recipe=recipe_of(optim__lr=0.2))
    with pytest.raises(ValueError, match=r"optim\.lr 0\.1.*optim\.lr 0\.2"):
        tree.group()


def test_no_group_ever_mixes_configurations_of_an_arm(tree: RunTree) -> None:
    arms = ("baseline", "batchformer", "batchformer_self")
    for seed, arm in enumerate(arms * 4):
        heads, updates = (4, 8)[seed % 2], (400, 800)[seed % 5 % 2]
        recipe = recipe_of(module__heads=heads, train__updates=updates)
        tree.write(arm, seed, recipe=recipe)
    groups = comparable(tree.runs())
    assert {run.name for group in groups for run in group.runs} == {
        run.name for run in tree.runs()
    }, "no finished run is lost"
    for group in groups:
        trained = {fingerprint(run.recipe) for run in group.runs if run.arm != "baseline"}
        assert len(trained) == 1
        assert len({fingerprint(run.recipe, shared=True) for run in group.runs}) == 1
    assert len({group.name for group in groups}) == len(groups)


@pytest.mark.parametrize(
    ("seeds", "reference"),
    [
        ({"baseline": [0], "batchformer": [0]}, "baseline"),
        # A baseline is the reference even where the controls share more seeds.
        ({"baseline": [7], "batchformer": [0, 1], "batchformer_self": [0, 1]}, "baseline"),
        ({"batchformer_frozen": [0], "batchformer_self": [0]}, "batchformer_self"),
        # batchformer comes first in the known order, and shares no seed.
        (
            {"batchformer": [5], "batchformer_self": [0], "batchformer_frozen": [0]},
            "batchformer_self",
        ),
        ({"zeta": [0], "baseline_loss3x": [0]}, "baseline_loss3x"),
        ({"batchformer": [0, 1]}, "baseline"),
        ({"batchformer": [0], "batchformer_self": [1]}, "baseline"),
    ],
)
def test_the_reference_is_the_baseline_or_the_first_arm_that_shares_a_seed(
    tree: RunTree, seeds: dict[str, list[int]], reference: str
) -> None:
    for arm, own in seeds.items():
        for seed in own:
            tree.write(arm, seed)
    group = tree.group()
    assert group.reference == reference
    said = f"tail has no finished baseline and is compared with {reference}"
    assert group.warnings == (() if reference == "baseline" else (said,))


def test_an_unfinished_baseline_is_no_reference(tree: RunTree) -> None:
    tree.write("baseline", 0, finished=False)
    tree.write_pairs(1, "batchformer_self", "batchformer_frozen")
    assert tree.group().reference == "batchformer_self"


def test_a_reference_asked_for_comes_first_and_is_not_remarked_on(tree: RunTree) -> None:
    tree.write_pairs(1, "zeta", "baseline", "batchformer", "batchformer_self")
    for reference, arms in {
        None: ["baseline", "batchformer", "batchformer_self", "zeta"],
        "batchformer_self": ["batchformer_self", "baseline", "batchformer", "zeta"],
        "zeta": ["zeta", "baseline", "batchformer", "batchformer_self"],
        "absent": ["baseline", "batchformer", "batchformer_self", "zeta"],
    }.items():
        (group,) = comparable(tree.runs(), reference)
        assert (group.reference, group.arms) == (reference or "baseline", arms)
        assert group.warnings == ()


def test_only_the_baseline_is_shared_between_configurations(tree: RunTree) -> None:
    tree.write("baseline", 0, recipe=recipe_of(module=None))
    tree.write("batchformer", 0)
    tree.write("batchformer_self", 0)
    tree.write("batchformer", 1, recipe=recipe_of(module__heads=8))
    four, eight = comparable(tree.runs(), "batchformer_self")
    assert four.arms == ["batchformer_self", "baseline", "batchformer"]
    assert eight.arms == ["baseline", "batchformer"], "a control with 4 heads is none for 8"


def test_grouping_runs_does_not_wait_for_torch() -> None:
    code = "import batchformer.lab.report.results.configuration, sys\n"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
