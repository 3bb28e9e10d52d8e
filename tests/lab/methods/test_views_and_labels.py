"""Several mixed streams, labels that follow attention, and dropout in place of the encoder."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from batchformer import check
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.losses.attention_labels import permute_others
from batchformer.lab.runs.compare import run
from helpers.lab_runs import digits_method, short

CPU = torch.device("cpu")
K = 6
COUNTS = torch.tensor([50, 20, 10, 5, 2, 1])
Y = torch.tensor([0, 0, 1, 2, 0, 3, 1])
#: What the arms change.
ARMS: dict[str, dict[str, Any]] = {
    "attention_labels": {"mixed_labels": "attention"},
    "attention_labels_random": {"mixed_labels": "random"},
    "views": {"attend": "self", "views": 4},
    "dropout_stream": {"encoder": "dropout"},
    "norm_stream": {"encoder": "norm", "dropout": 0.0},
    "norm_dropout_stream": {"encoder": "norm"},
    "class_context": {"context": "classes"},
    "class_context_self": {"context": "classes", "attend": "self"},
}


def method_with(
    name: str = "balanced_softmax", hyper: MethodConfig | None = None, **module: Any
) -> Any:
    return digits_method(name, COUNTS, hyper, **module).train()


def in_float64(name: str, **module: Any) -> tuple[Any, dict[str, Tensor]]:
    """A method whose features depend on the sample alone, and a batch."""
    method = method_with(name, **module).double()
    method.network.eval()
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return method, {"x": x, "y": Y}


def stock_layers(method: Any) -> list[nn.TransformerEncoderLayer]:
    """Torch's layers with the weights of the encoder; a copy."""
    copies = []
    for layer in method.encoder.layers:
        p = method.encoder.dropout
        copies.append(nn.TransformerEncoderLayer(64, 4, 64, dropout=p, dtype=torch.float64))
        copies[-1].load_state_dict(layer.state_dict())
    return copies


def soft_loss(name: str, logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy against (N, K) shares, written out; Balanced Softmax adds log counts."""
    z = logits + COUNTS.double().log() if name == "balanced_softmax" else logits
    return -(targets * (z - z.logsumexp(1, keepdim=True))).sum(1).mean()


def assert_same_gradients(loss: Tensor, mine: Any, expected: Tensor, theirs: Any) -> None:
    torch.testing.assert_close(loss, expected)
    got = torch.autograd.grad(loss, list(mine), allow_unused=True)
    wanted = torch.autograd.grad(expected, list(theirs), allow_unused=True)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["balanced_softmax", "cross_entropy"])
@pytest.mark.parametrize(
    ("layers", "share", "streams"), [(1, 1, "shared"), (2, 0.25, "mixed_only")]
)
def test_labels_follow_the_attention_of_the_stock_layer(
    name: str, layers: int, share: float, streams: str
) -> None:
    """Loss and all gradients in float64; no gradient passes through the labels."""
    module = {"dropout": 0.0, "layers": layers, "label_share": share, "streams": streams}
    method, batch = in_float64(name, mixed_labels="attention", **module)
    network: Any = method.network
    stock = stock_layers(method)
    features = network.forward_features(batch["x"])
    rows = features[:, None]
    for layer in stock:
        weights = layer.self_attn(rows, rows, rows, need_weights=True)[1][0]
        rows = layer(rows)
    labels = torch.zeros(7, K, dtype=torch.float64)
    for n, m in itertools.product(range(7), range(7)):
        labels[n, Y[m]] += share * float(weights[n, m].detach())
        labels[n, Y[n]] += (1 - share) * (n == m)
    expected = soft_loss(name, network.fc(rows[:, 0]), labels)
    if streams == "shared":
        expected = (expected + soft_loss(name, network.fc(features), F.one_hot(Y, K))) / 2
    theirs = [*network.parameters(), *(p for layer in stock for p in layer.parameters())]
    assert_same_gradients(method.step(batch)["loss"], method.parameters(), expected, theirs)


@pytest.mark.parametrize("labels", ["attention", "random"])
def test_with_no_share_of_these_labels_it_is_batchformer(labels: str) -> None:
    """Dropout included, which draws the same masks."""
    losses = []
    for module in ({}, {"mixed_labels": labels, "label_share": 0.0}):
        method, batch = in_float64("balanced_softmax", **module)
        torch.manual_seed(3)
        losses.append(method.step(batch)["loss"])
    torch.testing.assert_close(*losses)


class Listening(nn.Module):
    """A criterion that keeps its targets."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.criterion, self.targets = criterion, list[Tensor]()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        self.targets.append(targets)
        loss: Tensor = self.criterion(logits, targets)
        return loss


def labels_of(method: Any, batch: dict[str, Tensor]) -> Tensor:
    method.criterion = Listening(method.criterion)
    torch.manual_seed(0)
    method.step(batch)
    labels, plain = method.criterion.targets
    assert torch.equal(plain, batch["y"]) and not labels.requires_grad
    return labels


def test_labels_are_of_weights_before_dropout_and_the_control_permutes_them() -> None:
    """With a class for each sample, the labels are the weights themselves."""
    found = {}
    for labels, dropout in (("attention", 0.0), ("attention", 0.5), ("random", 0.5)):
        method, batch = in_float64("cross_entropy", mixed_labels=labels, dropout=dropout)
        six = {"x": batch["x"][:K], "y": torch.arange(K)}
        found[labels, dropout] = labels_of(method, six)
    weights, control = found["attention", 0.5], found["random", 0.5]
    torch.testing.assert_close(weights, found["attention", 0.0])
    torch.testing.assert_close(weights.sum(1), torch.ones(K, dtype=torch.float64))
    assert torch.equal(control.diagonal(), weights.diagonal())
    assert torch.equal(control.sort(1).values, weights.sort(1).values)
    assert not torch.equal(control, weights)


def test_mixed_targets_and_half_precision_keep_labels_wide() -> None:
    method = method_with(mixed_labels="attention")
    shares = torch.rand(7, K).softmax(1)
    batch = {"x": torch.randn(7, 1, 8, 8), "y": shares}
    with torch.autocast("cpu", torch.bfloat16):
        labels = labels_of(method, batch)
    assert labels.dtype == torch.float32
    torch.testing.assert_close(labels.sum(1), torch.ones(7))
    lowest, highest = shares.aminmax(dim=0)
    assert ((labels >= lowest - 1e-5) & (labels <= highest + 1e-5)).all(), "means of labels"


def test_every_permutation_of_the_others_is_equally_likely() -> None:
    torch.manual_seed(0)
    weights = torch.arange(1.0, 17.0).view(4, 4)
    seen: list[Counter[Any]] = [Counter() for _ in range(4)]
    together = set()
    for _ in range(1_200):
        rows = permute_others(weights).tolist()
        for n, row in enumerate(rows):
            assert row.pop(n) == weights[n, n]
            seen[n][tuple(row)] += 1
        together.add((*rows[0], *rows[1]))
    assert len(together) == 6 * 6, "rows are permuted independently"
    for n in range(4):
        others = [float(w) for m, w in enumerate(weights[n]) if m != n]
        assert seen[n].keys() == set(itertools.permutations(others))
        assert stats.chisquare(list(seen[n].values())).pvalue > 1e-3
    assert permute_others(torch.ones(1, 1)).tolist() == [[1.0]]


@pytest.mark.parametrize("attend", ["self", "batch"])
def test_views_are_passes_of_the_stock_layer_that_weigh_as_one(attend: str) -> None:
    """Loss and all gradients in float64, with dropout: the stock layer draws the same masks."""
    method, batch = in_float64("balanced_softmax", attend=attend, views=3, mixed_weight=0.5)
    (stock,) = stock_layers(method)
    network: Any = method.network
    torch.manual_seed(5)
    loss = method.step(batch)["loss"]
    mask = ~torch.eye(7, dtype=torch.bool) if attend == "self" else None
    features = network.forward_features(batch["x"])
    torch.manual_seed(5)
    mixed = [stock(features[:, None], src_mask=mask)[:, 0] for _ in range(3)]
    assert not torch.equal(mixed[0], mixed[1])
    plain, *views = (
        soft_loss("balanced_softmax", network.fc(rows), F.one_hot(Y, K))
        for rows in (features, *mixed)
    )
    expected = (plain + 0.5 * sum(views) / 3) / 1.5
    theirs = [*network.parameters(), *stock.parameters()]
    assert_same_gradients(loss, method.parameters(), expected, theirs)


@pytest.mark.parametrize("encoder", ["dropout", "norm"])
@pytest.mark.parametrize("name", ["balanced_softmax", "cross_entropy"])
def test_a_stream_of_dropout_has_no_encoder(name: str, encoder: str) -> None:
    method, batch = in_float64(name, encoder=encoder, dropout=0.25)
    network: Any = method.network
    torch.manual_seed(5)
    loss = method.step(batch)["loss"]
    torch.manual_seed(5)
    features = network.forward_features(batch["x"])
    kept = torch.empty_like(features).bernoulli_(0.75)
    mixed = features * kept / 0.75
    if encoder == "norm":
        centred = mixed - mixed.mean(1, keepdim=True)
        mixed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    streams = (features, mixed)
    expected = sum(soft_loss(name, network.fc(rows), F.one_hot(Y, K)) for rows in streams) / 2
    assert_same_gradients(loss, method.parameters(), expected, network.parameters())
    assert method.state_dict().keys() == method_with(name, enabled=False).state_dict().keys()
    relations = method.relations()
    assert relations is not None and relations.encoder is None


@pytest.mark.parametrize("arm", ARMS)
def test_nothing_is_left_at_test_and_check_passes(arm: str) -> None:
    method, plain = method_with(**ARMS[arm]), method_with(enabled=False)
    x = torch.randn(8, 1, 8, 8)
    result = check(method, x, method.optimizers(OptimConfig())["main"])
    assert result.passed, str(result)
    assert torch.equal(method.eval().predict(x), plain.eval().predict(x))
    assert torch.equal(method(x), plain.predict(x))
    batch = {"x": x, "y": torch.arange(8) % K}
    assert torch.equal(method.step(batch)["loss"], plain.step(batch)["loss"])
    assert [*method.deployed().state_dict()] == [*plain.deployed().state_dict()]


@pytest.mark.parametrize("arm", ARMS)
def test_an_update_reads_nothing_back(arm: str) -> None:
    """With tensors that have no values; whatever asks for one fails, as it would in a graph."""
    method = method_with(hyper=MethodConfig(cutmix=1.0, mix_prob=0.5), **ARMS[arm])
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch = {"x": torch.zeros(8, 1, 8, 8), "y": torch.zeros(8, dtype=torch.int64)}
        with torch.autocast("cpu", torch.bfloat16):
            loss = method.step(method.mixed(batch))["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        with pytest.raises(DataDependentOutputException):
            float(loss.detach())


@pytest.mark.parametrize("arm", ARMS)
def test_resumed_equals_uninterrupted(arm: str, assert_resumes: Any) -> None:
    assert_resumes(lambda: method_with(**ARMS[arm]))


@pytest.mark.parametrize(
    "arm", [*list(ARMS)[:4], "mates", "baseline_mates", "baseline_dropout", "baseline_norm"]
)
def test_the_demo_runs_with_the_arm_and_is_looked_at(
    arm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = short(updates=3, batch_size=16, eval_every=0, figures=True)
    folder = run(recipe, arm, 0, root=tmp_path, device=CPU)
    assert (folder / "insight.npz").exists() and "no figures" not in capsys.readouterr().err
