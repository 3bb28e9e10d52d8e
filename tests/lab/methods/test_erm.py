"""Cross-entropy, Balanced Softmax and LDAM, on mixed and smoothed targets where asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.transforms.mixup import draw_mix, mix_batch
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.erm import reweighting_warning
from batchformer.lab.models.heads import CosineClassifier
from helpers.lab_runs import digits_method

CPU = torch.device("cpu")
COUNTS = torch.tensor([40, 9, 1])
MIXING = MethodConfig(mixup=0.8, cutmix=1.0, mix_switch=0.5, smoothing=0.1)


def method_with(
    hyper: MethodConfig | None = None, name: str = "cross_entropy", **module: Any
) -> Any:
    return digits_method(name, COUNTS, hyper, **module)


def batch_of(n: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(n, 1, 8, 8, generator=draw),
        "y": torch.randint(3, (n,), generator=draw),
    }


def seen_by(method: Any, monkeypatch: pytest.MonkeyPatch, **train: Any) -> list[Any]:
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


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_baseline_loss_is_cross_entropy_with_smoothed_targets(smoothing: float) -> None:
    method = method_with(MethodConfig(smoothing=smoothing), enabled=False).eval()
    batch = batch_of()
    target = (1 - smoothing) * torch.eye(3)[batch["y"]] + smoothing / 3
    expected = -(target * method.predict(batch["x"]).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(method.step(batch)["loss"], expected)


def test_without_mixing_the_batch_itself_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (seen,) = seen_by(method_with(), monkeypatch)
    assert torch.equal(seen["x"], batch_of()["x"]) and torch.equal(seen["y"], batch_of()["y"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_part_is_mixed_by_the_first_draw_whatever_the_arm(
    monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    batch, parts = batch_of(), []
    torch.manual_seed(5)
    for x, y in zip(batch["x"].chunk(accumulate), batch["y"].chunk(accumulate), strict=True):
        parts.append(mix_batch(x, y, draw_mix(8, 8, 0.8, 1.0, 0.5, CPU), 3))
    for module in ({"enabled": False}, {"dropout": 0.5}):
        seen = seen_by(method_with(MIXING, **module), monkeypatch, accumulate=accumulate)
        for part, (x, y) in zip(seen, parts, strict=True):
            assert torch.equal(part["x"], x) and torch.equal(part["y"], y)


def test_soft_targets_are_doubled_with_batchformer() -> None:
    method = method_with(MIXING, dropout=0.0).double().train()
    method.network.eval()
    batch = {key: v.double() if v.is_floating_point() else v for key, v in batch_of().items()}
    mixed = method.mixed(batch)
    assert mixed["y"].shape == (8, 3)
    assert torch.allclose(mixed["y"].sum(1), torch.ones(8, dtype=mixed["y"].dtype))
    total = 0.0
    with torch.no_grad():
        features = method.features(mixed["x"])
        for stream in (features, method.encoder(features)):
            for row, target in zip(method.classify(stream).log_softmax(1), mixed["y"], strict=True):
                smooth = 0.9 * target + 0.1 / 3
                total -= float((smooth * row).sum()) / 16
        assert float(method.step(mixed)["loss"]) == pytest.approx(total, rel=1e-6)


ARMS: dict[str, dict[str, Any]] = {"baseline": {"enabled": False}, "batchformer": {"dropout": 0.0}}


@pytest.mark.parametrize("arm", ARMS)
def test_the_loss_weighs_both_labels_by_the_pixels_that_are_seen(arm: str) -> None:
    """Written out pixel by pixel and row by row; both streams have the mixed targets."""
    hyper = MethodConfig(cutmix=1.0, mix_prob=0.5)
    method = method_with(hyper, "balanced_softmax", **ARMS[arm]).double().train()
    method.network.eval()
    batch = batch_of()
    batch["x"] = batch["x"].double()
    cut = 0
    for seed in range(6):
        torch.manual_seed(seed)
        mixed = method.mixed(batch)
        own = mixed["x"] == batch["x"]
        assert (own | (mixed["x"] == batch["x"].flip(0))).all(), "each pixel is of one image"
        share = float(own[0].double().mean())
        cut += share < 1
        logits = method.predict(mixed["x"]).detach()
        if method.encoder is not None:
            features = method.encoder.mix(method.features(mixed["x"]))
            logits = torch.cat((logits, method.classify(features).detach()))
        total = 0.0
        for row, scores in enumerate(logits):
            n = row % 8
            log_p = (scores + COUNTS.log()).log_softmax(0)
            total -= share * float(log_p[batch["y"][n]])
            total -= (1 - share) * float(log_p[batch["y"][7 - n]])
        loss = method.step(mixed)["loss"].item()
        assert loss == pytest.approx(total / len(logits), rel=1e-6)
    assert 0 < cut < 6, "some batches are cut and some are not"


def test_a_share_of_the_batches_is_cut_by_boxes_that_do_not_depend_on_it() -> None:
    whole = 0
    for seed in range(400):
        torch.manual_seed(seed)
        always = draw_mix(8, 8, 0.0, 1.0, 0.5, CPU)
        torch.manual_seed(seed)
        sometimes = draw_mix(8, 8, 0.0, 1.0, 0.5, CPU, 0.5)
        uncut = bool((sometimes.own == 1).all())
        assert uncut or torch.equal(always.own, sometimes.own)
        assert float(sometimes.share) == float(sometimes.own.mean())
        whole += uncut
    # A share below one eighth squared leaves no box, so a few more than half are whole.
    assert whole / 400 == pytest.approx(0.5 + 0.5 / 64, abs=4 * 0.025)


@pytest.mark.parametrize("arm", ["baseline", "batchformer"])
def test_probability_zero_is_no_cutmix_to_the_bit(arm: str) -> None:
    ends = []
    for hyper in (MethodConfig(), MethodConfig(cutmix=1.0, mix_prob=0.0)):
        method = method_with(hyper, "balanced_softmax", enabled=arm == "batchformer").train()
        optimizers = method.optimizers(OptimConfig(lr=0.1))
        for step in range(3):
            torch.manual_seed(step)
            method.update(batch_of(), optimizers, OptimizerStep(TrainConfig(), CPU))
        ends.append(method.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


# LDAM against the loss composed by hand, its head, and when weights begin.


LDAM_COUNTS = torch.tensor([50.0, 20.0, 10.0, 5.0, 1.0])


@pytest.mark.parametrize("reweighted", [False, True])
def test_the_loss_of_both_streams_by_hand(
    make: Any, batch: Any, reweighted: bool, quiet: Any
) -> None:
    method = quiet(make("ldam", {"reweight_epoch": 3}, dropout=0.0))
    method.begin_epoch(3 if reweighted else 2)
    features = method.network.forward_features(batch["x"])
    rows = torch.cat((features, method.encoder.mix(features)))
    cosines = F.normalize(rows) @ F.normalize(method.network.fc.weight).T
    y = batch["y"].repeat(2)
    margins = 0.5 * (1 / LDAM_COUNTS) ** 0.25
    lowered = cosines - F.one_hot(y, 5) * margins
    effective = (1 - 0.9999 ** LDAM_COUNTS.double()) / (1 - 0.9999)
    weights = (1 / effective) * 5 / (1 / effective).sum()
    losses = F.cross_entropy(30 * lowered, y, reduction="none").double()
    w = weights[y] if reweighted else torch.ones(20)
    expected = (w * losses).sum() / w.sum()
    torch.testing.assert_close(method.step(batch)["loss"].double(), expected, rtol=1e-6, atol=0)


def test_margin_and_scale_are_settings(make: Any, batch: Any, quiet: Any) -> None:
    method = quiet(make("ldam", {"margin": 0.0, "scale": 2.0}, enabled=False))
    logits = method.network(batch["x"])
    assert isinstance(method.network.fc, CosineClassifier) and logits.abs().max() <= 2.001
    torch.testing.assert_close(
        method.step(batch)["loss"], F.cross_entropy(logits, batch["y"]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("method", "epochs", "said"),
    [
        ("ldam", 3, "epoch 5, and this training has 3"),
        ("ride", 5, "has 5"),  # epochs count from 0: the last is 4
        ("ldam", 5.1, ""),
        ("ride", 200, ""),
        ("cross_entropy", 3, ""),
    ],
)
def test_a_training_that_ends_before_it_is_told(method: str, epochs: float, said: str) -> None:
    words = reweighting_warning(method, MethodConfig(reweight_epoch=5), epochs)
    assert (said in words) if said else words == ""
