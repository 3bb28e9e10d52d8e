"""What both MoCos have in common: the momentum encoder, one module for both, what is trained."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.cuda_graph import Captured, Eager
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.moco import collapse_metrics, is_vision_transformer, unit_rows
from batchformer.lab.models.build import build_model

HYPER = {
    "queue": 32,
    "dim": 4,
    "temperature": 0.2,
    "momentum": 0.9,
    "projection_hidden": 16,
}
BOTH = ["moco_v2", "moco_v3"]
CPU = torch.device("cpu")


def updated(method: Any, batch: Any, times: int = 1, lr: float = 0.1) -> Any:
    """After so many updates; the first queue of MoCo-v2 is empty, and asks for nothing."""
    optimizers = method.train().optimizers(OptimConfig(lr=lr))
    for _ in range(times):
        method.update(batch, optimizers, OptimizerStep(TrainConfig(), CPU))
        method.after_update()
    return method


def parameters_of(*modules: Any) -> list[Tensor]:
    return [p for module in modules for p in module.parameters()]


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", BOTH)
def test_the_module_is_trained_by_gradients_alone(
    make: Any, batch: Any, name: str, trained: bool
) -> None:
    method = updated(make(name, HYPER, trained=trained), batch)
    method.zero_grad()
    method.step(batch)["loss"].backward()
    for key, parameter in method.encoder.named_parameters():
        if trained and parameter.ndim > 1:
            assert parameter.grad is not None and parameter.grad.any(), key
        elif not trained:
            assert parameter.grad is None, key
    before = [p.clone() for p in method.encoder.parameters()]
    method.after_update()
    assert all(map(torch.equal, method.encoder.parameters(), before)), "it follows nobody"
    held = {id(p) for p in parameters_of(method.key_network, method.key_head)}
    assert not held & {id(p) for p in method.encoder.parameters()}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "module", [{}, {"enabled": False}, {"trained": False}, {"streams": "mixed_only"}], ids=str
)
def test_only_the_queries_way_is_trained(
    make: Any, batch: Any, assert_trained_once: Any, name: str, module: dict[str, Any]
) -> None:
    method = make(name, HYPER, **module)
    assert_trained_once(method, batch)
    trained = {k.split(".")[0] for k, p in method.named_parameters() if p.requires_grad}
    wanted = {"network", "head"} | ({"predictor"} if name == "moco_v3" else set())
    learns = module.get("enabled", True) and module.get("trained", True)
    assert trained == wanted | ({"encoder"} if learns else set())
    assert not any(p.requires_grad for p in method.network.get_classifier().parameters())


@pytest.mark.parametrize("name", BOTH)
def test_what_is_deployed(make: Any, batch: Any, name: str) -> None:
    method = updated(make(name, HYPER), batch, 2).eval()
    x = batch["x"]
    with torch.no_grad():
        assert torch.equal(method.predict(x), method.network.forward_features(x))
    assert method.deployed() is method.network
    probe = build_model("digits_net", 5)
    probe.load_state_dict(method.network.state_dict())


@pytest.mark.parametrize("name", BOTH)
def test_keys_are_normalised_by_their_own_batch(make: Any, batch: Any, name: str) -> None:
    method = make(name, HYPER).train()
    before = method.key_network.bn1.running_mean.clone(), method.network.bn1.running_mean.clone()
    keys = method.keys(batch["view2"])
    assert not keys.requires_grad and keys.shape == (20, 4)
    assert not torch.equal(method.key_network.bn1.running_mean, before[0])
    assert torch.equal(method.network.bn1.running_mean, before[1])


@pytest.mark.parametrize("name", BOTH)
def test_under_autocast_the_module_still_learns(make: Any, batch: Any, name: str) -> None:
    """Keys come after the queries, or their cast of its weights would cut gradients off."""
    method = updated(make(name, HYPER), batch)
    method.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        losses = method.step(batch)
    losses["loss"].backward()
    assert all(value.dtype == torch.float32 for value in losses.values())
    assert all(p.grad is not None for p in method.encoder.parameters())


def test_what_is_watched_by_hand() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = (unit_rows(torch.randn(400, 16, generator=draw)) for _ in range(2))
    seen = collapse_metrics(q, k)
    cosines = [float(a @ b) for a, b in zip(q, k, strict=True)]
    assert float(seen["positive"]) == pytest.approx(sum(cosines) / 400, abs=1e-6)
    assert float(seen["spread"]) == pytest.approx(1 / math.sqrt(16), rel=0.02)
    alike = collapse_metrics(q[:1].repeat(9, 1), q[:1].repeat(9, 1))
    assert float(alike["spread"]) == pytest.approx(0, abs=1e-6)
    assert float(alike["positive"]) == pytest.approx(1)


@pytest.mark.parametrize("name", BOTH)
def test_what_has_no_sense_is_refused(make: Any, batch: Any, name: str) -> None:
    with pytest.raises(ValueError, match="adds its terms"):
        make(name, HYPER, loss_scale="official")
    with pytest.raises(ValueError, match="no weight of its own"):
        make(name, HYPER, mixed_weight=0.5)
    with pytest.raises(ValueError, match="there is one stream"):
        make(name, {**HYPER, "contrast_pairs": "plain"}, streams="mixed_only")
    with pytest.raises(ValueError, match="there is one stream"):
        make(name, {**HYPER, "enqueued": "mixed"}, streams="mixed_only")
    make(name, HYPER, loss_scale="official", mixed_weight=0.5, enabled=False)
    method = make(name, {**HYPER, "momentum_schedule": "cosine"})
    with pytest.raises(RuntimeError, match=r"call begin_training\(updates\)"):
        updated(method, batch)


def test_vision_transformers_are_known() -> None:
    timm = pytest.importorskip("timm")
    small = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
    assert is_vision_transformer(small) and not is_vision_transformer(build_model("digits_net", 3))


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
    make: Any, name: str, parts: int, enabled: bool, optim: OptimConfig
) -> None:
    device = torch.device("cuda")
    ends = []
    for kind in (Eager, Captured):
        hyper = {**HYPER, "momentum_schedule": "cosine", "norm_parts": parts}
        method = make(name, hyper, enabled=enabled).to(device).train()
        method.begin_training(12)
        optimizers = method.optimizers(optim)
        machinery = OptimizerStep(TrainConfig(), device)

        def work(batch: Any, m: Any = method, o: Any = optimizers, k: Any = machinery) -> Any:
            losses = m.update(batch, o, k)
            m.after_update()
            return losses

        said: list[str] = []
        updater: Any = (
            Eager(work, device)
            if kind is Eager
            else Captured(work, device, method.phase, said.append)
        )
        draw = torch.Generator().manual_seed(2)
        images = torch.randn(12, 2, 10, 1, 8, 8, generator=draw).to(device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses = [
                float(updater({"x": x, "view2": view2}, seed=k)["loss"])
                for k, (x, view2) in enumerate(images)
            ]
        assert not said and method.why_eager() is None
        if kind is Captured:
            assert updater.graphs
        assert int(method.updates) == 12 and float(method.momentum()) == pytest.approx(1)
        torch.cuda.synchronize()
        ends.append((losses, [p.clone() for p in method.key_head.parameters()]))
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-3, abs=1e-4)
    for captured, eager in zip(ends[1][1], ends[0][1], strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-3, atol=1e-4)
