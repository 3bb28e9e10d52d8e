"""Cross-entropy: blind to class counts, and on mixed and smoothed targets where asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.transforms.mixup import draw_mix, mix_batch
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.erm import CrossEntropy
from batchformer.lab.models.build import build_model

CPU = torch.device("cpu")
MIXING = MethodConfig(mixup=0.8, cutmix=1.0, mix_switch=0.5, smoothing=0.1)


def method_with(hyper: MethodConfig | None = None, **module: Any) -> CrossEntropy:
    torch.manual_seed(0)
    counts = torch.tensor([9, 1, 1])
    settings = ModuleConfig(**module)
    return CrossEntropy(build_model("digits_net", 3), counts, module=settings, seed=0, hyper=hyper)


def batch_of(n: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(n, 1, 8, 8, generator=draw),
        "y": torch.randint(3, (n,), generator=draw),
    }


def seen_by(method: CrossEntropy, monkeypatch: pytest.MonkeyPatch, **train: Any) -> list[Any]:
    """The batches that `step` is given in one update from a given seed."""
    seen: list[Any] = []
    inner = method.step

    def step(batch: Any) -> dict[str, Tensor]:
        seen.append(batch)
        return inner(batch)

    monkeypatch.setattr(method, "step", step)
    optimizers = method.train().optimizers(OptimConfig(lr=1e-6))
    torch.manual_seed(5)
    method.update(batch_of(), optimizers, OptimizerStep(TrainConfig(**train), CPU))
    return seen


def test_the_baseline_loss_is_cross_entropy() -> None:
    method = method_with(enabled=False).eval()
    batch = batch_of()
    expected = F.cross_entropy(method.predict(batch["x"]), batch["y"])
    torch.testing.assert_close(method.step(batch)["loss"], expected)


def test_smoothing() -> None:
    method = method_with(MethodConfig(smoothing=0.3), enabled=False).eval()
    batch = batch_of()
    target = 0.7 * torch.eye(3)[batch["y"]] + 0.1
    expected = -(target * method.predict(batch["x"]).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(method.step(batch)["loss"], expected)


def test_without_mixing_the_batch_itself_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (seen,) = seen_by(method_with(), monkeypatch)
    assert torch.equal(seen["x"], batch_of()["x"]) and torch.equal(seen["y"], batch_of()["y"])


def test_the_mix_is_the_first_draw_whatever_the_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of()
    torch.manual_seed(5)
    x, y = mix_batch(batch["x"], batch["y"], draw_mix(8, 8, 0.8, 1.0, 0.5, CPU), 3)
    for module in ({"enabled": False}, {"dropout": 0.5}):
        (seen,) = seen_by(method_with(MIXING, **module), monkeypatch)
        assert torch.equal(seen["x"], x) and torch.equal(seen["y"], y)


def test_each_part_of_a_batch_is_mixed_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, parts = batch_of(), []
    torch.manual_seed(5)
    for x, y in zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True):
        parts.append(mix_batch(x, y, draw_mix(8, 8, 0.8, 1.0, 0.5, CPU), 3))
    for module in ({"enabled": False}, {"dropout": 0.5}):
        seen = seen_by(method_with(MIXING, **module), monkeypatch, accumulate=2)
        for part, (x, y) in zip(seen, parts, strict=True):
            assert torch.equal(part["x"], x) and torch.equal(part["y"], y)


def test_soft_targets_are_doubled_with_batchformer() -> None:
    method = method_with(MIXING, dropout=0.0).double().train()
    method.network.eval()
    batch = {key: v.double() if v.is_floating_point() else v for key, v in batch_of().items()}
    mixed = method.mixed(batch)
    assert mixed["y"].shape == (8, 3)
    assert torch.allclose(mixed["y"].sum(1), torch.ones(8, dtype=mixed["y"].dtype))
    assert method.encoder is not None
    total = 0.0
    with torch.no_grad():
        features = method.features(mixed["x"])
        for stream in (features, method.encoder(features)):
            for row, target in zip(method.classify(stream).log_softmax(1), mixed["y"], strict=True):
                smooth = 0.9 * target + 0.1 / 3
                total -= float((smooth * row).sum()) / 16
        assert float(method.step(mixed)["loss"]) == pytest.approx(total, rel=1e-6)
