"""Settings of contrastive learning on ImageNet, as MoCo's authors publish them."""

from __future__ import annotations

import pytest

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import ContrastConfig, LongTailConfig
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.contrastive import IMAGES

LEARNT = ["imagenet_moco_v2", "imagenet_moco_v3", "imagenet_moco_v3_vit_small"]
PROBED = ["imagenet_moco_v2", "imagenet_moco_v3"]


def test_moco_v2() -> None:
    recipe = find_recipe("imagenet_moco_v2")
    hyper, optim, train = recipe.hyper, recipe.optim, recipe.train
    assert (recipe.model, train.batch_size, train.epochs) == ("resnet50", 256, 200)
    assert (hyper.queue, hyper.dim, hyper.momentum, hyper.temperature) == (65_536, 128, 0.999, 0.2)
    assert (hyper.projection_layers, hyper.projection_hidden) == (2, 2048)
    assert hyper.momentum_schedule == "constant"
    assert (hyper.norm_parts, train.sync_norm) == (8, False), "on 8 GPUs, keys shuffled"
    assert (optim.name, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.03, 0.9, 1e-4)
    rates = [lr_factor(recipe.schedule, update, 1000, 5) for update in (0, 4, 5, 500)]
    assert rates[0] == rates[1] == 1 > rates[2] and rates[3] == pytest.approx(0.5)


def test_moco_v3() -> None:
    recipe = find_recipe("imagenet_moco_v3")
    hyper, optim, train = recipe.hyper, recipe.optim, recipe.train
    assert (recipe.model, train.batch_size, train.epochs) == ("resnet50", 4096, 100)
    assert (hyper.dim, hyper.momentum, hyper.temperature) == (256, 0.99, 1.0)
    assert (hyper.projection_layers, hyper.projection_hidden) == (2, 4096)
    assert hyper.momentum_schedule == "cosine" and hyper.zero_init_last
    assert (optim.name, optim.momentum, optim.weight_decay) == ("lars", 0.9, 1e-6)
    assert optim.lr == pytest.approx(9.6) and optim.trust == 0.001 and optim.decayed == "matrices"
    per_epoch = IMAGES // 4096
    assert train.in_updates(per_epoch).updates == 31_200
    rates = [lr_factor(recipe.schedule, e * per_epoch, 31_200, per_epoch) for e in (0, 5, 10, 55)]
    assert rates == pytest.approx([0, 0.5, 1, 0.5])


@pytest.mark.parametrize("name", LEARNT)
def test_batchformer_learns_at_the_rate_of_the_network(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.module.lr_factor == 1 and recipe.train.drop_last
    assert isinstance(recipe.data, ContrastConfig) and recipe.data.size == 224
    assert recipe.train.sync_norm == (recipe.method == "moco_v3")
    assert recipe.data.views == ("moco_v2" if "v2" in name else "byol")


@pytest.mark.parametrize(
    ("name", "lr", "batch", "epochs", "top1"),
    [
        ("imagenet_moco_v2_probe", 30.0, 256, 100, (67.5, 68.4)),
        ("imagenet_moco_v3_probe", 0.4, 1024, 90, (68.9, 69.8)),
    ],
)
def test_probes(name: str, lr: float, batch: int, epochs: int, top1: tuple[float, float]) -> None:
    recipe = find_recipe(name)
    optim, train, data = recipe.optim, recipe.train, recipe.data
    assert (optim.name, optim.momentum, optim.weight_decay) == ("sgd", 0.9, 0.0)
    assert (optim.lr, train.batch_size, train.epochs) == (pytest.approx(lr), batch, epochs)
    assert train.eval_epochs == 1 and train.select_on == "last"
    assert isinstance(data, LongTailConfig)
    assert (data.name, data.augment, data.scores) == ("imagenet", "resized", "top")
    assert tuple(recipe.paper[arm]["top1"] for arm in ("baseline", "batchformer")) == top1
    assert recipe.table.startswith("T8")


def test_rates_of_the_probes() -> None:
    drops = find_recipe("imagenet_moco_v2_probe").schedule
    assert [lr_factor(drops, e * 7, 700, 7) for e in (0, 59, 60, 79, 80, 99)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    cosine = find_recipe("imagenet_moco_v3_probe").schedule
    assert [lr_factor(cosine, u, 90 * 7, 7) for u in (0, 6, 45 * 7)] == pytest.approx([1, 1, 0.5])


@pytest.mark.parametrize("name", PROBED)
@pytest.mark.parametrize("kind", ["probe", "knn"])
def test_features_are_those_of_the_same_arm_and_network(name: str, kind: str) -> None:
    recipe, learnt = find_recipe(f"{name}_{kind}"), find_recipe(name)
    assert recipe.start == name and recipe.model == learnt.model
    assert isinstance(learnt.data, ContrastConfig)
    views = learnt.data.views if kind == "knn" else "none"
    assert recipe.data == learnt.data.images(scores="top", views=views)
    assert recipe.hyper.probe_scale == "none", "by the protocol of MoCo"
    assert with_arm(recipe, "random_weights").start == ""
    assert with_arm(recipe, "batchformer").start == name
