"""A recipe or folders first, then options; what is wrong is said before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.cli.arguments import (
    UserError,
    leading_paths,
    parse,
    refuse_unknown_arms,
    with_recipe,
)
from batchformer.cli.options import (
    CheckOptions,
    CompareOptions,
    DemoOptions,
    Settings,
    SweepOptions,
    TrainOptions,
)
from batchformer.lab.config.idle_settings import unread_settings
from batchformer.lab.recipes import RECIPES, find_recipe


def test_defaults_of_options_are_those_of_the_recipe() -> None:
    recipe, options = with_recipe(TrainOptions, ["demo", "--train.updates", "7"], "train")
    assert recipe.name == "demo" and recipe.train.updates == 7
    assert recipe.optim == with_recipe(TrainOptions, ["demo"], "train")[0].optim
    assert options.seed == 0


@pytest.mark.parametrize("given", [["--train.updates", "5"], ["--train.updates=5"]])
def test_updates_beside_epochs_are_refused(given: list[str]) -> None:
    with pytest.raises(UserError, match=r"no effect: cub_ce_gzsl.*2000\. Set --train\.epochs 0"):
        with_recipe(TrainOptions, ["cub_ce_gzsl", *given], "train")
    alone = ["cub_ce_gzsl", *given, "--train.epochs", "0", "--data.no-choose"]
    recipe, _ = with_recipe(TrainOptions, alone, "train")
    assert (recipe.train.updates, recipe.train.epochs) == (5, 0)
    assert with_recipe(TrainOptions, ["cub_ce_gzsl"], "train")[0].train.epochs == 2000


def test_epochs_between_evaluations_need_epochs() -> None:
    given = ["demo", "--train.eval-epochs", "2"]
    with pytest.raises(UserError, match=r"no effect: demo .*updates 600\. Set --train\.eval-every"):
        with_recipe(TrainOptions, given, "train")
    recipe, _ = with_recipe(TrainOptions, [*given, "--train.epochs", "4"], "train")
    assert recipe.train.eval_epochs == 2


@pytest.mark.parametrize("given", [["--data", "photos"], ["--data=photos"]])
@pytest.mark.parametrize("name", ["my_folder", "my_domains", "cub_ce_gzsl", "my_voc"])
def test_data_is_short_for_its_root(name: str, given: list[str]) -> None:
    recipe = find_recipe(name)
    for kind in (TrainOptions, CompareOptions, CheckOptions, SweepOptions):
        words = [*given, "--model", "resnet50"]
        options = parse(kind, words, "any", **Settings.fields_of(recipe))
        assert (options.data.root, options.model) == ("photos", "resnet50")
        assert options.data == recipe.changed(data={"root": "photos"}).data
    with pytest.raises(SystemExit):
        parse(DemoOptions, given, "demo")


def test_paths_come_before_options(tmp_path: Path) -> None:
    paths, rest = leading_paths([str(tmp_path), str(tmp_path), "--to", "page"], "report")
    assert paths == [tmp_path, tmp_path] and rest == ["--to", "page"]
    assert leading_paths(["--help"], "report") == ([], ["--help"])
    with pytest.raises(UserError, match="`report` needs a run folder"):
        leading_paths(["--to", "page"], "report")
    with pytest.raises(UserError, match="There is no file nowhere"):
        leading_paths(["nowhere"], "data convert-pairs", "file")


def test_a_wrong_arm_is_answered_with_the_nearest() -> None:
    refuse_unknown_arms(["baseline", "mine"], further=["mine"])
    with pytest.raises(UserError, match="Did you mean batchformer"):
        refuse_unknown_arms(["batchfromer"])


def test_a_wrong_option_ends_with_2() -> None:
    with pytest.raises(SystemExit) as end:
        parse(DemoOptions, ["--seedz", "3"], "demo")
    assert end.value.code == 2
    assert parse(DemoOptions, ["--seeds", "3"], "demo").seeds == 3


@pytest.mark.parametrize(
    "option",
    [
        ["--hyper.smoothing", "0.1"],  # of cross_entropy
        ["--hyper.tau", "2"],
        ["--optim.betas", "0.5", "0.9"],  # of Adam
        ["--schedule.milestones", "3"],
        ["--data.train-list", "own.csv"],
    ],
)
def test_an_option_that_would_change_nothing_is_refused(option: list[str]) -> None:
    with pytest.raises(UserError, match=rf"{option[0]}: no effect .*--method balanced_softmax"):
        with_recipe(CompareOptions, ["demo", *option], "compare")


def test_options_that_another_option_brings_into_effect_are_taken() -> None:
    given = ["--method", "cross_entropy", "--hyper.smoothing", "0.1", "--optim.name", "adam"]
    given += ["--optim.betas", "0.5", "0.9", "--hyper.tau", "1", "--train.workers", "2"]
    recipe, _ = with_recipe(CompareOptions, ["demo", *given], "compare")
    assert recipe.hyper.smoothing == 0.1 and recipe.optim.betas == (0.5, 0.9)


def test_no_recipe_sets_what_it_does_not_read() -> None:
    assert {name: found for name in RECIPES if (found := unread_settings(find_recipe(name)))} == {}
