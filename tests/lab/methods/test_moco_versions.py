"""What only one MoCo has: parts of a batch in MoCo-v2, heads and ViTs in MoCo-v3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import build_method
from batchformer.lab.methods import momentum as shuffled_norm
from batchformer.lab.methods.momentum import draw_order
from batchformer.lab.recipes import find_recipe

HYPER: dict[str, Any] = {
    "queue": 48,
    "dim": 4,
    "temperature": 0.2,
    "momentum": 0.9,
    "projection_hidden": 16,
}
N = 10


# MoCo-v2.


def test_the_head_has_biases_and_no_normalisation(make: Any) -> None:
    head = make("moco_v2", {**HYPER, "projection_layers": 3}).head
    kinds = [type(part) for part in head]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert head[0].weight.shape == (16, 64) and head[4].bias.shape == (4,)


@pytest.mark.parametrize("kind", ["first_release", "readme"])
def test_lists_of_the_other_moco_are_refused(make: Any, kind: str) -> None:
    with pytest.raises(
        ValueError, match=f"contrast-pairs {kind} is a list of the released MoCo-v3"
    ):
        make("moco_v2", {**HYPER, "contrast_pairs": kind})
    make("moco_v2", {**HYPER, "contrast_pairs": kind}, enabled=False)


def test_it_learns_to_tell_its_images_apart(make: Any, batch: Any) -> None:
    method = make("moco_v2", HYPER).train()
    optimizers = method.optimizers(OptimConfig(lr=0.05))
    same = {**batch, "view2": batch["x"]}
    torch.manual_seed(0)
    losses = []
    for _ in range(40):
        losses.append(
            method.update(same, optimizers, OptimizerStep(TrainConfig(), torch.device("cpu")))
        )
        method.after_update()
    assert losses[-1]["spread"] > 0.1
    assert all(value["loss"].isfinite() for value in losses)


def test_parts_of_keys_are_drawn_anew_and_of_queries_are_not(make: Any, batch: Any) -> None:
    method = make("moco_v2", {**HYPER, "norm_parts": 2}, enabled=False).double().train()
    x = batch["x"].double()
    with torch.no_grad():
        assert torch.equal(method.features(x), method.features(x))
        streams = [method.key_streams(x, draw_order(x, 2))["plain"] for _ in range(2)]
    assert not torch.allclose(*streams)
    method.eval()
    with torch.no_grad():
        torch.testing.assert_close(method.predict(x[:3]), method.predict(x)[:3])
        streams = [method.key_streams(x, draw_order(x, 2))["plain"] for _ in range(2)]
    torch.testing.assert_close(*streams)


def test_arms_assign_keys_to_parts_alike(make: Any, batch: Any) -> None:
    orders = []
    for enabled in (False, True):
        method = make("moco_v2", {**HYPER, "norm_parts": 2}, enabled=enabled).train()
        seen = method.key_streams

        def watch(x: Tensor, order: Tensor, seen: Any = seen) -> Any:
            orders.append(order)
            return seen(x, order)

        method.key_streams = watch
        torch.manual_seed(5)
        method.step(batch)
    assert torch.equal(*orders)


def test_batches_without_parts_of_one_size_are_refused(make: Any, batch: Any) -> None:
    with pytest.raises(ValueError, match="a batch of 10 rows cannot be divided into 4 equal parts"):
        make("moco_v2", {**HYPER, "norm_parts": 4}).train().step(batch)


@pytest.mark.parametrize(("ranks", "own"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_ranks_share_the_parts_of_imagenets_recipe(
    ranks: int, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MoCo's authors train on 8 GPUs, so that 32 samples are normalised together."""
    recipe = find_recipe("imagenet_moco_v2")
    monkeypatch.setattr(shuffled_norm, "world_size", lambda: ranks)
    assert shuffled_norm.parts_of_rank(recipe.hyper.norm_parts) == own
    assert recipe.train.batch_size // ranks // own == 32
    assert shuffled_norm.parts_of_rank(1) == 1


def test_ranks_that_parts_cannot_be_divided_among(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled_norm, "world_size", lambda: 16)
    with pytest.raises(
        ValueError, match=r"8 cannot be divided among 16 ranks: set a multiple of 16, or 1"
    ):
        shuffled_norm.parts_of_rank(8)
    assert shuffled_norm.parts_of_rank(16) == 1


# MoCo-v3.


def test_heads_normalise_both_streams_together(make: Any, batch: Any) -> None:
    method = make("moco_v3", HYPER, dropout=0.0).train()
    out = method.head(method.streams(method.features(batch["x"])))
    assert out.shape == (2 * N, 4)
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    assert out[:N].mean(0).abs().max() > 1e-3, "and not each by itself"
    assert method.queries(batch["x"]).shape == (2 * N, 4)


def test_a_vision_transformer(batch: Any) -> None:
    """The class token is its feature; its patch projection stays as it is."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, in_chans=1, depth=1, num_classes=5
    )
    hyper = MethodConfig(**{**HYPER, "projection_layers": 3})
    method: Any = build_method(
        "moco_v3", network=network, module=ModuleConfig(), seed=0, hyper=hyper, class_counts=None
    )
    assert sum(isinstance(part, torch.nn.Linear) for part in method.head) == 3
    x = torch.randn(6, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(method.eval().predict(x), network.forward_features(x)[:, 0])
    kept = {k: p.clone() for k, p in network.named_parameters()}
    method.train()
    optimizers = method.optimizers(OptimConfig(name="adamw", lr=1e-3, decayed="matrices"))
    optimizer_step = OptimizerStep(TrainConfig(), torch.device("cpu"))
    method.update({"x": x, "view2": x.flip(3)}, optimizers, optimizer_step)
    same = {k for k, p in network.named_parameters() if torch.equal(p, kept[k])}
    assert same == {"patch_embed.proj.weight", "patch_embed.proj.bias", "head.weight", "head.bias"}


def test_lars_trains_it(make: Any, batch: Any) -> None:
    method = make("moco_v3", {**HYPER, "momentum_schedule": "cosine"}).train()
    method.begin_training(30)
    optim = OptimConfig(name="lars", lr=1.0, trust=0.02, weight_decay=1e-6, decayed="matrices")
    optimizers = method.optimizers(optim)
    same = {**batch, "view2": batch["x"]}
    torch.manual_seed(0)
    losses = []
    for _ in range(30):
        losses.append(
            method.update(same, optimizers, OptimizerStep(TrainConfig(), torch.device("cpu")))
        )
        method.after_update()
    assert losses[-1]["loss"] < losses[0]["loss"] and losses[-1]["spread"] > 0.1
