"""MoCo-v3: its loss number by number for every list of pairs, its heads, and ViTs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import build_method

HYPER: dict[str, Any] = {
    "dim": 4,
    "temperature": 0.7,
    "momentum": 0.9,
    "projection_hidden": 16,
}
N = 10


def known(make: Any, hyper: dict[str, Any] | None = None, **module: Any) -> Any:
    """In double precision, without dropout, normalised by fixed statistics; encoders differ."""
    method = make("moco_v3", {**HYPER, **(hyper or {})}, dropout=0.0, **module).double().train()
    draw = torch.Generator().manual_seed(5)
    for part in method.modules():
        if isinstance(part, _BatchNorm):
            part.eval()
            part.running_mean.normal_(generator=draw).mul_(0.1)  # type: ignore[union-attr]
            part.running_var.uniform_(0.5, 2, generator=draw)  # type: ignore[union-attr]
    with torch.no_grad():
        for parameter in [*method.key_network.parameters(), *method.key_head.parameters()]:
            parameter.mul_(0.9)
    return method


def doubled(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": batch["x"].double(), "view2": batch["view2"].double(), "y": batch["y"]}


def normalised(rows: Tensor, norm: Any) -> Tensor:
    rows = (rows - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return rows if norm.weight is None else rows * norm.weight + norm.bias


def made_of(method: Any, images: Tensor, slow: bool) -> dict[str, list[list[float]]]:
    """Rows by stream, layer by layer."""
    network, head = (method.key_network, method.key_head) if slow else (method.network, method.head)
    with torch.no_grad():
        features = network.forward_features(images)
        found = {"a": features}
        if method.encoder is not None:
            mixed = method.encoder.mix(features)
            only = method.config.streams == "mixed_only"
            found = {"a": mixed} if only else {"a": features, "b": mixed}
        rows = {}
        for name, stream in found.items():
            hidden = torch.relu(normalised(stream @ head[0].weight.T, head[1]))
            out = normalised(hidden @ head[3].weight.T, head[4])
            if not slow:
                answer = method.predictor
                hidden = torch.relu(normalised(out @ answer[0].weight.T, answer[1]))
                out = hidden @ answer[3].weight.T
            rows[name] = out.tolist()
    return rows


def cosine(a: list[float], b: list[float]) -> float:
    def dot(x: list[float], y: list[float]) -> float:
        return math.fsum(p * q for p, q in zip(x, y, strict=True))

    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def ctr(q: list[list[float]], k: list[list[float]]) -> float:
    total = 0.0
    for i, query in enumerate(q):
        scores = [cosine(query, key) / 0.7 for key in k]
        total += math.log(math.fsum(map(math.exp, scores))) - scores[i]
    return 2 * 0.7 * total / len(q)


#: Settings, the pairs of each view, and what all is divided by; "o" are a view's own mixed queries.
CASES: list[tuple[dict[str, Any], dict[str, Any], str, str, float]] = [
    ({}, {"enabled": False}, "aa", "aa", 1),
    ({}, {"enabled": False, "loss_scale": "sum"}, "aa", "aa", 1),
    ({}, {}, "aa ab ba bb", "aa ab ba bb", 4),
    ({}, {"loss_scale": "sum"}, "aa ab ba bb", "aa ab ba bb", 1),
    ({}, {"attend": "self"}, "aa ab ba bb", "aa ab ba bb", 4),
    ({}, {"streams": "mixed_only"}, "aa", "aa", 1),
    ({"contrast_pairs": "plain"}, {}, "aa", "aa", 1),
    ({"contrast_pairs": "first_release"}, {}, "aa ab ba ba", "aa ab aa ab", 4),
    (
        {"contrast_pairs": "first_release"},
        {"loss_scale": "sum"},
        "aa ab ba ba",
        "aa ab aa ab",
        1,
    ),
    ({"contrast_pairs": "readme"}, {}, "aa ab ba ba ao", "aa ab aa ab ao", 5),
    (
        {"contrast_pairs": "readme"},
        {"loss_scale": "sum"},
        "aa ab ba ba ao",
        "aa ab aa ab ao",
        5,
    ),
]


@pytest.mark.parametrize(("hyper", "module", "first", "second", "divisor"), CASES, ids=str)
def test_the_loss_by_hand(
    make: Any,
    batch: Any,
    hyper: dict[str, Any],
    module: dict[str, Any],
    first: str,
    second: str,
    divisor: float,
) -> None:
    method = known(make, hyper, **module)
    part = doubled(batch)
    q1, q2 = (made_of(method, part[view], False) for view in ("x", "view2"))
    k1, k2 = (made_of(method, part[view], True) for view in ("x", "view2"))
    expected = 0.0
    for pairs, q, k in ((first, q1, k2), (second, q2, k1)):
        keys = {**k, "o": q.get("b", [])}
        expected += math.fsum(ctr(q[pair[0]], keys[pair[1]]) for pair in pairs.split())
    losses = method.step(part)
    assert set(losses) == {"loss", "positive", "spread"}
    assert losses["loss"].item() == pytest.approx(expected / divisor, abs=1e-9)
    cosines = [cosine(q, k) for q, k in zip(q1["a"], k2["a"], strict=True)]
    assert losses["positive"].item() == pytest.approx(math.fsum(cosines) / N)
    plain = torch.tensor(q1["a"], dtype=torch.float64)
    spread = (plain / plain.norm(dim=1, keepdim=True)).std(0, correction=0).mean()
    assert losses["spread"].item() == pytest.approx(spread.item())


def test_own_mixed_queries_get_no_gradient_as_keys(make: Any, batch: Any) -> None:
    """Of the fifth term, only the plain queries are trained."""
    method = known(make, {"contrast_pairs": "readme"})
    q, k = (torch.randn(2 * N, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    queries = dict(zip(("plain", "mixed"), q.chunk(2), strict=True))
    keys = dict(zip(("plain", "mixed"), k.detach().chunk(2), strict=True))
    method.view_loss(2, queries, keys, [N]).backward()  # no pair of view 2 has mixed queries
    assert q.grad is not None and q.grad[:N].any() and not q.grad[N:].any()


def test_heads_normalise_both_streams_together(make: Any, batch: Any) -> None:
    method = make("moco_v3", HYPER, dropout=0.0).train()
    out = method.head(method.streams(method.features(batch["x"])))
    assert out.shape == (2 * N, 4)
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    assert out[:N].mean(0).abs().max() > 1e-3, "and not each by itself"
    assert method.queries(batch["x"]).shape == (2 * N, 4)


def test_views_change_places(make: Any, batch: Any) -> None:
    for hyper, same in (({}, True), ({"contrast_pairs": "first_release"}, False)):
        method, part = known(make, hyper), doubled(batch)
        swapped = {**part, "x": part["view2"], "view2": part["x"]}
        a, b = (method.step(p)["loss"].item() for p in (part, swapped))
        assert (a == pytest.approx(b)) == same


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
