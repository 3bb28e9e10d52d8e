"""Recipes of plain recognition say what the protocol says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchformer.cli import main as cli
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.paper import ROWS, rows_without_recipe

PER_EPOCH = 1251  # of 1,281,167 images in batches of 1024, the last one left out


def data_of(recipe: Recipe) -> LongTailConfig:
    assert isinstance(recipe.data, LongTailConfig)
    return recipe.data


def test_resnet50_is_the_row_of_the_paper() -> None:
    recipe = find_recipe("imagenet_resnet50")
    assert recipe.model == "resnet50" and recipe.method == "cross_entropy"
    assert recipe.train.epochs == 200 and data_of(recipe).scores == "top"
    assert dict(recipe.paper["baseline"]) == dict(recipe.paper["batchformer"]) == {"top1": 78.9}
    assert (recipe.module.heads, recipe.module.dropout, recipe.module.lr_factor) == (4, 0.5, 0.1)
    rows = [row for row in ROWS if row.table == "ImageNet"]
    assert {row.recipe for row in rows} == {"imagenet_resnet50"} and len(rows) == 2
    assert not [row for row in rows_without_recipe() if row.task == "recognition"]


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_deit(size: str) -> None:
    recipe = find_recipe(f"imagenet_deit_{size}")
    assert recipe.model == f"deit_{size}_patch16_224" and recipe.train.epochs == 300
    assert (recipe.optim.name, recipe.optim.weight_decay) == ("adamw", 0.05)
    assert recipe.optim.lr == pytest.approx(5e-4 * recipe.train.batch_size / 512)
    hyper = recipe.hyper
    assert (hyper.mixup, hyper.cutmix, hyper.mix_switch, hyper.smoothing) == (0.8, 1.0, 0.5, 0.1)
    assert hyper.drop_path == 0.1 and recipe.train.ema == 0.99996
    assert (data_of(recipe).sampler, data_of(recipe).augment) == ("repeated", "deit")
    updates = 300 * PER_EPOCH

    def rate(epoch: int) -> float:
        factor = lr_factor(recipe.schedule, epoch * PER_EPOCH, updates, PER_EPOCH)
        return recipe.optim.lr * factor

    assert rate(0) == pytest.approx(1e-6) and rate(5) == pytest.approx(recipe.optim.lr)
    assert rate(1) == pytest.approx(1e-6 + (recipe.optim.lr - 1e-6) / 5)
    assert 1e-5 < rate(299) < 1.1e-5


def test_digits_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "digits_recognition", "--seeds", "1", "--device", "cpu", "--quiet"]
    arguments += ["--train.updates", "6", "--train.eval-every", "3", "--runs", str(tmp_path)]
    cli.main(arguments)
    assert "Top-1" in capsys.readouterr().out
    for arm in ("baseline", "batchformer"):
        folder = tmp_path / "digits_recognition" / arm / "seed0"
        metrics = json.loads((folder / "result.json").read_text())["metrics"]
        assert list(metrics) == ["top1", "top5", "mean_class", "ece"]
        assert 0 <= metrics["top1"] <= metrics["top5"] <= 100
    counts = json.loads((folder / "config.json").read_text())["data"]
    assert counts["largest_class"] == counts["smallest_class"] == 124
