"""MDD: its parts, what each of them is trained by, and that it adapts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.losses.domains import mdd
from batchformer.lab.methods.domains import Mdd
from batchformer.lab.models.build import build_model

HYPER: dict[str, Any] = {"bottleneck": 16, "reversal": 0.5, "reversal_updates": 10, "penalty": 0.7}
CPU = torch.device("cpu")


@pytest.fixture
def pairs(batch: Any) -> dict[str, Tensor]:
    """Ten samples of the source and six of the target."""
    return {"x": batch["x"], "y": batch["y"], "x_target": batch["view2"][:6]}


def backbone_gradients(method: Any, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(method.network.parameters())))


def test_parts_and_their_initial_values(make: Any) -> None:
    method = make("mdd", {**HYPER, "bottleneck": 128})
    linear, norm, _, dropout = method.bottleneck
    assert linear.weight.shape == (128, 64) and isinstance(norm, nn.BatchNorm1d)
    assert linear.weight.std().item() == pytest.approx(0.005, rel=0.05)
    assert (linear.bias == 0.1).all() and dropout.p == 0.5
    for head in (method.head, method.adversary):
        first, _, dropout, last = head
        assert first.weight.shape == (128, 128) and last.weight.shape == (5, 128)
        assert first.weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert last.weight.std().item() == pytest.approx(0.01, rel=0.15)
        assert not first.bias.any() and not last.bias.any() and dropout.p == 0.5
    assert not torch.equal(method.head[0].weight, method.adversary[0].weight)


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "convnext_atto"])
def test_what_is_deployed_is_one_network_that_predicts(name: str) -> None:
    options: dict[str, Any] = {"hyper": MethodConfig(bottleneck=16), "module": ModuleConfig()}
    network: Any = build_model(name, 5)
    method = Mdd(network, torch.ones(5), seed=0, **options).eval()
    before = method.state_dict()
    deployed = method.deployed().eval()
    x = torch.randn(2, 3, 32, 32)
    expected = method.head(method.bottleneck(network.forward_head(network.forward_features(x))))
    assert torch.equal(method.predict(x), expected) and expected.shape == (2, 5)
    torch.testing.assert_close(deployed(x), method.predict(x))
    assert not any("adversary" in key or "encoder" in key for key in deployed.state_dict())
    assert isinstance(network.get_classifier(), nn.Identity)
    assert method.state_dict().keys() == before.keys(), "the method itself stays as it is"


def test_rates(make: Any) -> None:
    method = make("mdd", {**HYPER, "backbone_lr_factor": 0.1}, lr_factor=0.5)
    groups = {g["name"]: g for g in method.parameter_groups(OptimConfig(lr=2.0))}
    rates = {name: g["lr"] for name, g in groups.items()}
    assert rates == pytest.approx({"backbone": 0.2, "model": 2.0, "batchformer": 1.0})
    backbone = {id(p) for p in groups["backbone"]["params"]}
    assert backbone == set(map(id, method.network.parameters()))


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
def test_the_loss_by_hand(make: Any, pairs: Any, streams: str, quiet: Any) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = quiet(make("mdd", HYPER, dropout=0.0, **module))
    plain = method.network.forward_features(torch.cat((pairs["x"], pairs["x_target"])))
    parts = [plain]
    if streams != "none":
        # Source and target attend to one another.
        mixed = method.encoder.mix(plain)
        parts = [plain, mixed] if streams == "shared" else [mixed]
    source = method.bottleneck(torch.cat([rows[:10] for rows in parts]))
    target = method.bottleneck(torch.cat([rows[10:] for rows in parts]))
    ce = F.cross_entropy(method.head(source), pairs["y"].repeat(len(parts)))
    discrepancy = mdd(
        method.head(source), method.adversary(source), method.head(target),
        method.adversary(target), 4.0,
    )  # fmt: skip
    losses = method.step(pairs)
    assert set(losses) == {"loss", "ce", "penalty"}
    torch.testing.assert_close(losses["ce"], ce)
    torch.testing.assert_close(losses["penalty"], -discrepancy)
    torch.testing.assert_close(losses["loss"], ce - 0.7 * discrepancy)


def test_both_domains_are_normalised_together(make: Any, pairs: Any) -> None:
    method = make("mdd", HYPER, enabled=False).train()
    seen = []
    method.bottleneck[1].register_forward_hook(lambda module, args, out: seen.append(out))
    method.step(pairs)
    assert seen[0].shape == (16, 16)
    torch.testing.assert_close(seen[0].mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    assert seen[0][:10].mean(0).abs().max() > 1e-2


def test_the_reversal_rises_on_the_device_with_each_update(make: Any, pairs: Any) -> None:
    method = make("mdd", HYPER)
    place = method.updates.data_ptr()
    optimizers = method.optimizers(OptimConfig(lr=1e-3))
    optimizer_step = OptimizerStep(TrainConfig(), CPU)
    for t in range(4):
        expected = 2 * 0.5 / (1 + math.exp(-t / 10)) - 0.5
        assert method.reversal().item() == pytest.approx(expected, abs=1e-7)
        method.update(pairs, optimizers, optimizer_step)
        method.after_update()
    assert method.updates.data_ptr() == place and "updates" in method.state_dict()
    method.updates.fill_(10**6)
    assert method.reversal().item() == pytest.approx(0.5)


def test_at_first_the_adversary_does_not_train_the_backbone(
    make: Any, pairs: Any, quiet: Any
) -> None:
    method = quiet(make("mdd", {**HYPER, "penalty": 100.0}, dropout=0.0))
    losses = method.step(pairs)
    whole = backbone_gradients(method, losses["loss"])
    alone = backbone_gradients(method, method.step(pairs)["ce"])
    for a, b in zip(whole, alone, strict=True):
        torch.testing.assert_close(a, b)
    adversary = torch.autograd.grad(method.step(pairs)["loss"], method.adversary[3].weight)[0]
    assert adversary.any()


def test_the_backbone_lowers_the_discrepancy_that_the_adversary_raises(
    make: Any, pairs: Any, quiet: Any
) -> None:
    """The gradient of the backbone is minus the coefficient times the true one."""
    method = quiet(make("mdd", HYPER, dropout=0.0)).double()
    pairs = {k: v.double() if v.is_floating_point() else v for k, v in pairs.items()}
    method.updates.fill_(7)
    told = backbone_gradients(method, method.step(pairs)["penalty"])
    weights = list(method.network.parameters())
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]

    def penalty_at(h: float) -> float:
        with torch.no_grad():
            for w, d in zip(weights, directions, strict=True):
                w.add_(d, alpha=h)
            value = float(method.step(pairs)["penalty"])
            for w, d in zip(weights, directions, strict=True):
                w.sub_(d, alpha=h)
        return value

    h = 1e-6
    true = (penalty_at(h) - penalty_at(-h)) / (2 * h)
    along = sum((g * d).sum().item() for g, d in zip(told, directions, strict=True))
    assert abs(true) > 1e-6
    assert along == pytest.approx(-method.reversal().item() * true, rel=1e-3)


def test_batches_without_a_target_are_refused(make: Any, batch: Any) -> None:
    with pytest.raises(ValueError, match=r"this one has x, y.*data\.adapt"):
        make("mdd", HYPER).step({"x": batch["x"], "y": batch["y"]})
