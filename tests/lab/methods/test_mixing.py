"""CutMix with Balanced Softmax, with a probability; cross-entropy's own mixing is in test_erm."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer import check
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.transforms.mixup import draw_mix
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.long_tailed import balanced_softmax
from batchformer.lab.methods import build_method
from batchformer.lab.methods.erm import MixingClassifier
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.compare import run
from batchformer.nn.randomness import drawing

CPU = torch.device("cpu")
COUNTS = torch.tensor([40, 9, 1])
ARMS: dict[str, dict[str, Any]] = {"baseline": {"enabled": False}, "batchformer": {"dropout": 0.0}}


def method_with(hyper: MethodConfig, **module: Any) -> MixingClassifier:
    with drawing(0, "weights"):
        network = build_model("digits_net", 3)
    built = build_method(
        "balanced_softmax",
        network=network,
        module=ModuleConfig(**module),
        seed=0,
        class_counts=COUNTS,
        hyper=hyper,
    )
    assert isinstance(built, MixingClassifier)
    return built


def batch_of(n: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(n, 1, 8, 8, generator=draw),
        "y": torch.randint(3, (n,), generator=draw),
    }


@pytest.mark.parametrize("arm", ARMS)
def test_the_loss_weighs_both_labels_by_the_pixels_that_are_seen(arm: str) -> None:
    """Written out pixel by pixel and row by row; both streams have the mixed targets."""
    method = method_with(MethodConfig(cutmix=1.0, mix_prob=0.5), **ARMS[arm]).double().train()
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


def test_soft_targets_are_the_weighted_loss_of_both_labels() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=draw, dtype=torch.float64)
    y, partner = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 1, 0, 0, 2, 1])
    soft = 0.3 * torch.eye(3).double()[y] + 0.7 * torch.eye(3).double()[partner]
    expected = 0.3 * balanced_softmax(logits, y, COUNTS)
    expected += 0.7 * balanced_softmax(logits, partner, COUNTS)
    torch.testing.assert_close(balanced_softmax(logits, soft, COUNTS), expected)


def test_the_expected_share() -> None:
    """Beta(1, 1) is uniform: average the clipped box over its shares and its centres."""
    areas = []
    for part in range(400):
        side = int(8 * ((part + 0.5) / 400) ** 0.5)
        covered = [
            sum(c - side // 2 <= p < c + (side + 1) // 2 for p in range(8)) for c in range(8)
        ]
        areas.append((sum(covered) / 64) ** 2)
    expected = 1 - 0.5 * sum(areas) / len(areas)
    torch.manual_seed(0)
    draws = [draw_mix(8, 8, 0.0, 1.0, 0.5, CPU, 0.5) for _ in range(2000)]
    shares = torch.stack([mix.share for mix in draws])
    error = float(shares.std()) / 2000**0.5
    assert float(shares.mean()) == pytest.approx(expected, abs=4 * error)
    # A share below one eighth squared leaves no box, so a few more than half are whole.
    whole = 0.5 + 0.5 / 64
    assert float((shares == 1).double().mean()) == pytest.approx(whole, abs=4 * 0.0112)
    assert all(bool((mix.own == 1).all()) for mix in draws if mix.share == 1)


def test_boxes_do_not_depend_on_the_probability() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        always = draw_mix(8, 8, 0.0, 1.0, 0.5, CPU)
        torch.manual_seed(seed)
        sometimes = draw_mix(8, 8, 0.0, 1.0, 0.5, CPU, 0.5)
        assert torch.equal(always.own, sometimes.own) or bool((sometimes.own == 1).all())


@pytest.mark.parametrize("arm", ["baseline", "batchformer"])
def test_probability_zero_is_no_cutmix_to_the_bit(arm: str) -> None:
    ends = []
    for hyper in (MethodConfig(), MethodConfig(cutmix=1.0, mix_prob=0.0)):
        method = method_with(hyper, enabled=arm == "batchformer").train()
        optimizers = method.optimizers(OptimConfig(lr=0.1))
        for step in range(3):
            torch.manual_seed(step)
            method.update(batch_of(), optimizers, OptimizerStep(TrainConfig(), CPU))
        ends.append(method.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_arms_of_a_seed_train_on_the_same_images_and_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []
    mixed = MixingClassifier.mixed

    def record(self: MixingClassifier, batch: Batch, parts: int = 1) -> Batch:
        seen.append(mixed(self, batch, parts))
        return seen[-1]

    monkeypatch.setattr(MixingClassifier, "mixed", record)
    demo = find_recipe("demo")
    train = dataclasses.replace(demo.train, updates=6, batch_size=16, eval_every=0)
    hyper = MethodConfig(cutmix=1.0, mix_prob=0.5)
    recipe = dataclasses.replace(demo, train=train, hyper=hyper)
    for arm in ("baseline", "batchformer", "batchformer_self"):
        run(recipe, arm, 3, root=tmp_path, device=CPU, quiet=True)
    assert len(seen) == 18
    for first, *others in zip(seen[:6], seen[6:12], seen[12:], strict=True):
        for other in others:
            assert torch.equal(first["x"], other["x"]) and torch.equal(first["y"], other["y"])
    kinds = {bool((batch["y"].amax(1) == 1).all()) for batch in seen}
    assert kinds == {True, False}, "some batches are cut and some are not"


def test_check_passes() -> None:
    method = method_with(MethodConfig(cutmix=1.0, mix_prob=0.5))
    assert check(method, batch_of()["x"], method.optimizers(OptimConfig())["main"]).passed
