"""Class context: running means of classes as further rows of the encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.cli.main import main
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.methods.class_context import ClassContext
from batchformer.lab.runs.compare import run
from helpers.lab_runs import digits_method, short

CPU = torch.device("cpu")
K = 6
COUNTS = torch.tensor([50, 20, 10, 5, 2, 1])
#: Class 5 is in no batch and class 4 in the second alone.
LABELS = (torch.tensor([0, 0, 1, 2, 0, 3, 1]), torch.tensor([4, 0, 1, 1, 0, 3, 0]))


def method_with(
    name: str = "balanced_softmax", hyper: MethodConfig | None = None, **module: Any
) -> Any:
    return digits_method(name, COUNTS, hyper, **{"context": "classes", **module})


def context_of(method: Any) -> ClassContext:
    assert isinstance(method.encoder, ClassContext)
    return method.encoder


def batches(dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(7, 1, 8, 8, generator=draw).to(dtype), "y": y} for y in LABELS]


def test_means_are_those_of_a_loop() -> None:
    draw = torch.Generator().manual_seed(0)
    context = ClassContext(4, heads=2, classes=K, momentum=0.8)
    means: list[list[float] | None] = [None] * K
    for step in range(12):
        features = torch.randn(5, 4, generator=draw)
        labels = torch.randint(K - 1, (5,), generator=draw)
        shares = torch.rand(5, K, generator=draw)
        shares[:, K - 1] = 0.0
        soft = step % 3 == 2
        context.update_means(features, shares if soft else labels)
        for k in range(K):
            weights = [float(shares[n, k]) if soft else float(labels[n] == k) for n in range(5)]
            if not sum(weights):
                continue
            rows = [[w * f for f in row] for w, row in zip(weights, features.tolist(), strict=True)]
            mean = [sum(column) / sum(weights) for column in zip(*rows, strict=True)]
            old = means[k] or mean
            means[k] = [0.8 * o + 0.2 * m for o, m in zip(old, mean, strict=True)]
    assert context.seen.tolist() == [mean is not None for mean in means] == [True] * 5 + [False]
    for mean, expected in zip(context.means, means, strict=True):
        wanted = torch.zeros(4) if expected is None else torch.tensor(expected)
        torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-6)
    assert not context.means.requires_grad and context.means.dtype == torch.float32


@pytest.mark.parametrize("name", ["balanced_softmax", "cross_entropy"])
@pytest.mark.parametrize("attend", ["batch", "self"])
def test_the_step_is_that_of_the_stock_layer_with_seen_classes_alone(
    name: str, attend: str
) -> None:
    """Loss and all gradients in float64; unseen classes are left out there, and masked here."""
    method = method_with(name, dropout=0.0, attend=attend).double().train()
    method.network.eval()
    network: Any = method.network
    stock = nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0, dtype=torch.float64)
    stock.load_state_dict(context_of(method).layers[0].state_dict())
    means: dict[int, Tensor] = {}
    for batch, unseen in zip(batches(torch.float64), (2, 1), strict=True):
        losses = method.step(batch)
        got = torch.autograd.grad(losses["loss"], [*method.parameters()])
        features = network.forward_features(batch["x"])
        for k in range(K):
            if (batch["y"] == k).any():
                mean = features[batch["y"] == k].mean(0).detach()
                means[k] = 0.9 * means[k] + 0.1 * mean if k in means else mean
        seen = sorted(means)
        assert len(seen) == K - unseen
        rows = torch.cat((features, torch.stack([means[k] for k in seen])))
        mask = ~torch.eye(len(rows), dtype=torch.bool) if attend == "self" else None
        mixed = stock(rows[:, None], src_mask=mask)[:, 0]
        shift = COUNTS.double().log() if name == "balanced_softmax" else 0.0
        logits = network.fc(torch.cat((features, mixed[:7])))
        loss = F.cross_entropy(logits + shift, torch.cat((batch["y"], batch["y"])))
        own = F.cross_entropy(network.fc(mixed[7:]), torch.tensor(seen))
        torch.testing.assert_close(losses["class_loss"], own)
        torch.testing.assert_close(losses["loss"], loss + 0.1 * own)
        parameters = [*network.parameters(), *stock.parameters()]
        expected = torch.autograd.grad(loss + 0.1 * own, parameters)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attend", ["batch", "self"])
def test_unseen_classes_have_no_influence(attend: str) -> None:
    found = []
    for value in (0.0, 100.0):
        method = method_with(dropout=0.0, attend=attend).double().train()
        method.network.eval()
        context_of(method).means[4:] = value
        loss = method.step(batches(torch.float64)[0])["loss"]
        found.append((loss, *torch.autograd.grad(loss, [*method.parameters()])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("attend", ["batch", "self"])
def test_a_mean_reaches_samples_but_not_in_the_control(attend: str) -> None:
    method = method_with(dropout=0.0, attend=attend).train()
    method.step(batches()[0])
    context = context_of(method)
    x = torch.randn(5, 64)
    before, classes = context.mix_with_classes(x)
    context.means[1] += 1.0
    after, changed = context.mix_with_classes(x)
    moved = (before != after).any(1)
    assert not moved.any() if attend == "self" else moved.all()
    moved = (classes != changed).any(1)
    assert moved.tolist() == ([False, True] + [False] * 4 if attend == "self" else [True] * 6)


def test_arms_begin_alike_and_the_control_draws_alike() -> None:
    plain = method_with(context="none")
    ends = []
    for attend in ("batch", "self"):
        method = method_with(attend=attend).train()
        state = method.state_dict()
        assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
        assert {*state} - {*plain.state_dict()} == {"encoder.means", "encoder.seen"}
        torch.manual_seed(0)
        method.step(batches()[0])
        ends.append((torch.get_rng_state(), context_of(method).means))
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])


def test_the_settings_of_the_context() -> None:
    method = method_with(dropout=0.0, context_momentum=0.5, context_weight=2.0).train()
    plain = method_with(dropout=0.0, context_momentum=0.5, context_weight=0.0).train()
    for batch in batches():
        losses, without = method.step(batch), plain.step(batch)
        torch.testing.assert_close(losses["loss"], without["loss"] + 2 * losses["class_loss"])
    assert context_of(method).momentum == 0.5
    with pytest.raises(ValueError, match="needs the number of classes, got classes=0"):
        ClassContext(8, classes=0)


def test_eval_moves_no_mean() -> None:
    method = method_with()
    method.train().step(batches()[0])
    before = context_of(method).means.clone()
    method.eval().step(batches()[1])
    assert torch.equal(before, context_of(method).means)


def test_mixed_targets_weigh_the_features() -> None:
    hyper = MethodConfig(cutmix=1.0)
    method = method_with(hyper=hyper, dropout=0.0).double().train()
    method.network.eval()
    torch.manual_seed(2)
    mixed = method.mixed(batches(torch.float64)[0])
    features = method.features(mixed["x"])
    losses = method.step(mixed)
    shares = mixed["y"].double()
    for k in range(4):
        expected = (shares[:, k : k + 1] * features).sum(0) / shares[:, k].sum()
        torch.testing.assert_close(context_of(method).means[k], expected.detach())
    assert torch.isfinite(losses["loss"]) and context_of(method).seen.tolist()[4:] == [False] * 2


def test_means_are_wide_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    method = method_with(dropout=0.0).train()
    seen: list[Tensor] = []
    inner = ClassContext.update_means

    def listen(self: ClassContext, features: Tensor, targets: Tensor) -> None:
        seen.append(features)
        inner(self, features, targets)

    monkeypatch.setattr(ClassContext, "update_means", listen)
    with torch.autocast("cpu", torch.bfloat16):
        method.step(batches()[0])["loss"].backward()  # type: ignore[no-untyped-call]
    means = context_of(method).means
    assert means.dtype == torch.float32 and seen[0].dtype == torch.bfloat16
    expected = seen[0][LABELS[0] == 0].double().mean(0)
    torch.testing.assert_close(means[0].double(), expected, rtol=1e-6, atol=1e-6)


def test_the_demo_runs_with_the_arms_and_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = short(updates=8, batch_size=16, eval_every=0, log_every=1, figures=True)
    seen = {}
    for arm in ("class_context", "class_context_self"):
        folder = run(recipe, arm, 0, root=tmp_path, device=CPU, quiet=True)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert all("class_loss" in record for record in records if "loss" in record)
        seen[arm] = np.load(folder / "insight.npz")["attention_context"]
    given, samples = seen["class_context"].T
    assert (given > 0).all() and (given < samples).all()
    assert (seen["class_context_self"][:, 0] == 0).all()
    main(["show", "attention", str(tmp_path / "demo")])
    told = capsys.readouterr()
    assert "class_context: flow between shot groups" in told.out and "no figures" not in told.err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("attend", ["batch", "self"])
def test_the_gpu_computes_what_the_cpu_computes(attend: Any) -> None:
    """64 channels, for which a fused kernel without masks would be chosen."""
    torch.manual_seed(0)
    context = ClassContext(64, dropout=0.0, attend=attend, classes=100)
    context.update_means(torch.randn(80, 64), torch.arange(80) % 40)
    x, weight = torch.randn(512, 64), torch.randn(612, 64)
    found = []
    for device in ("cpu", "cuda"):
        context.to(device)
        rows = x.to(device).requires_grad_()
        mixed = torch.cat(context.mix_with_classes(rows))
        total = (mixed * weight.to(device)).sum()
        parts = torch.autograd.grad(total, [rows, *context.parameters()])
        found.append([part.cpu() for part in (mixed.detach(), *parts)])
    for on_cpu, on_gpu in zip(*found, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=2e-3, atol=2e-3)
