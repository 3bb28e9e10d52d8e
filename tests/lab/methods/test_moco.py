"""What both MoCos have in common, and what one alone has; test_moco_reference has their losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.methods import momentum as shuffled_norm
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes import find_recipe

HYPER: dict[str, Any] = {
    "queue": 32,
    "dim": 4,
    "temperature": 0.2,
    "momentum": 0.9,
    "projection_hidden": 16,
}
BOTH = ["moco_v2", "moco_v3"]


@pytest.mark.parametrize("name", BOTH)
def test_what_is_deployed(make: Any, batch: Any, update: Any, name: str) -> None:
    method = make(name, HYPER)
    update(method, batch, times=2)
    method.eval()
    x = batch["x"]
    with torch.no_grad():
        assert torch.equal(method.predict(x), method.network.forward_features(x))
    assert method.deployed() is method.network
    probe = build_model("digits_net", 5)
    probe.load_state_dict(method.network.state_dict())


@pytest.mark.parametrize("name", BOTH)
def test_under_autocast_the_module_still_learns(
    make: Any, batch: Any, update: Any, name: str
) -> None:
    """Keys come after the queries, or their cast of its weights would cut gradients off."""
    method = make(name, HYPER)
    update(method, batch)  # the first queue of MoCo-v2 is empty, and asks for nothing
    method.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        losses = method.step(batch)
    losses["loss"].backward()
    assert all(value.dtype == torch.float32 for value in losses.values())
    assert all(p.grad is not None for p in method.encoder.parameters())


@pytest.mark.parametrize("name", BOTH)
def test_a_rising_momentum_needs_the_length_of_the_training(
    make: Any, batch: Any, update: Any, name: str
) -> None:
    method = make(name, {**HYPER, "momentum_schedule": "cosine"})
    with pytest.raises(RuntimeError, match=r"call begin_training\(updates\)"):
        update(method, batch)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(("name", "parts"), [*((name, 1) for name in BOTH), ("moco_v2", 2)])
@pytest.mark.parametrize(
    "optim",
    [OptimConfig(lr=0.05), OptimConfig(name="lars", lr=0.5, trust=0.02, decayed="matrices")],
    ids=lambda optim: optim.name,
)
def test_captured_updates_equal_eager_ones(
    make: Any,
    assert_captured_equals_eager: Any,
    name: str,
    parts: int,
    enabled: bool,
    optim: OptimConfig,
) -> None:
    hyper = {**HYPER, "momentum_schedule": "cosine", "norm_parts": parts}
    images = torch.randn(12, 2, 10, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    eager, captured = assert_captured_equals_eager(
        lambda: make(name, hyper, enabled=enabled),
        lambda step: dict(zip(("x", "view2"), images[step], strict=True)),
        optim,
    )
    assert int(captured.updates) == 12 and float(captured.momentum()) == pytest.approx(1)
    for one, two in zip(captured.key_head.parameters(), eager.key_head.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


# MoCo-v2.


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


def test_a_vision_transformer(make: Any, update: Any) -> None:
    """The class token is its feature; its patch projection stays as it is."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, in_chans=1, depth=1, num_classes=5
    )
    method = make("moco_v3", {**HYPER, "projection_layers": 3}, {"network": network})
    assert sum(isinstance(part, torch.nn.Linear) for part in method.head) == 3
    x = torch.randn(6, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(method.eval().predict(x), network.forward_features(x)[:, 0])
    kept = {k: p.clone() for k, p in network.named_parameters()}
    optim = OptimConfig(name="adamw", lr=1e-3, decayed="matrices")
    update(method, {"x": x, "view2": x.flip(3)}, optim)
    same = {k for k, p in network.named_parameters() if torch.equal(p, kept[k])}
    assert same == {"patch_embed.proj.weight", "patch_embed.proj.bias", "head.weight", "head.bias"}
