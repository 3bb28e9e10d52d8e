"""CGE and CompCos: their losses by hand, what is trained, and that unseen pairs are recognised."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import WeightEMA
from batchformer.lab.methods import build_method
from batchformer.lab.methods.compositional import Cge, CompCos, pair_feasibility
from batchformer.lab.metrics.compositional import CompositionalScores
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import drawing
from batchformer.plug.preserve import seed_device

CPU = torch.device("cpu")
#: Pairs 0 and 5 are unseen; the classes 0..4 of the batches are pairs 1, 2, 3, 4 and 6.
CLOSED = Compositions.of(
    train=[("a", "y"), ("a", "z"), ("b", "x"), ("b", "y"), ("c", "x")],
    val=[("b", "z")],
    test=[("a", "x")],
)
SEEN = [1, 2, 3, 4, 6]
#: Seven pairs for CGE, nine in the open world for CompCos.
PAIRS = {"cge": CLOSED, "compcos": CLOSED.opened()}
VECTORS = torch.randn(6, 7, generator=torch.Generator().manual_seed(5))
HYPER: dict[str, dict[str, Any]] = {
    "cge": {"graph_hidden": 12},
    "compcos": {"image_embedding": 10, "image_hidden": 12, "cosine_scale": 8.0},
}
EMBEDDED = {"image_embedding": 20}
MARGIN: dict[str, Any] = {
    "feasibility": "margin",
    "feasibility_margin": 0.4,
    "feasibility_epochs": 5,
}
#: Both methods with their variants.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("cge", {}), ("cge", EMBEDDED)),
    *(("compcos", {}), ("compcos", MARGIN)),
]


def made(
    name: str, hyper: dict[str, Any] | None = None, vectors: Tensor = VECTORS, **module: Any
) -> Any:
    with drawing(0, "weights"):
        network = build_model("digits_net", 5)
    return build_method(
        name,
        network=network,
        compositions=PAIRS[name],
        vectors=vectors,
        module=ModuleConfig(**module),
        seed=0,
        hyper=MethodConfig(**{**HYPER[name], **(hyper or {})}),
    )


@pytest.fixture
def shown(batch: Any) -> dict[str, Tensor]:
    """Ten images, each of a seen pair."""
    return {"x": batch["x"], "y": torch.tensor(SEEN)[batch["y"]]}


def updated(method: Any, batch: Any, **train: Any) -> dict[str, Tensor]:
    step = OptimizerStep(TrainConfig(batch_size=10, **train), CPU)
    losses: dict[str, Tensor] = method.train().update(
        batch, method.optimizers(OptimConfig(lr=0.5)), step
    )
    return losses


def streams_of(method: Any, x: Tensor, streams: str) -> list[Tensor]:
    """The features of each stream that is trained on."""
    plain = method.network.forward_head(method.network.forward_features(x))
    if streams == "none":
        return [plain]
    mixed = method.encoder.mix(plain)
    return [mixed] if streams == "mixed_only" else [plain, mixed]


def module_of(streams: str) -> dict[str, Any]:
    return {"enabled": False} if streams == "none" else {"streams": streams}


# What both have in common.


@pytest.mark.parametrize("name", PAIRS)
def test_predictions_are_over_all_pairs(batch: Any, name: str) -> None:
    method = made(name).eval()
    predicted = method.predict(batch["x"])
    assert predicted.shape == (10, len(PAIRS[name])) and predicted.equal(method(batch["x"]))
    if name == "cge":
        features = method.network.forward_head(method.network.forward_features(batch["x"]))
        torch.testing.assert_close(predicted, features @ method.graph(method.nodes)[6:].T)
    else:
        assert predicted.abs().max() <= 8.0 + 1e-4, "cosines times the scale"


@pytest.mark.parametrize(("name", "hyper"), VARIANTS, ids=str)
def test_what_is_deployed_predicts_the_same(batch: Any, name: str, hyper: Any) -> None:
    method = made(name, hyper)
    network = method.eval().deployed()
    torch.testing.assert_close(network(batch["x"]), method.predict(batch["x"]))
    assert not network.training and isinstance(method.network.get_classifier(), nn.Identity)
    assert name == "compcos" or method.train().deployed().training


@pytest.mark.parametrize(("name", "hyper"), VARIANTS[1:], ids=str)
def test_predictions_are_single_in_half_precision(batch: Any, name: str, hyper: Any) -> None:
    method = made(name, hyper).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert method.predict(batch["x"]).dtype == torch.float32


@pytest.mark.parametrize("name", PAIRS)
def test_rates(name: str) -> None:
    method = made(name, {**EMBEDDED, "backbone_lr_factor": 0.1}, lr_factor=0.5)
    groups = {g["name"]: g for g in method.parameter_groups(OptimConfig(lr=2.0))}
    expected = {"model": 2.0, "batchformer": 1.0} | ({"backbone": 0.2} if name == "cge" else {})
    assert {group: g["lr"] for group, g in groups.items()} == pytest.approx(expected)
    if name == "cge":
        backbone = set(map(id, groups["backbone"]["params"]))
        assert backbone == set(map(id, method.network.parameters()))
    else:
        assert not any(p.requires_grad for p in method.network.parameters())
        own = {id(method.attributes), id(method.objects)}
        assert own <= set(map(id, groups["model"]["params"]))


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_embedded_once_for_an_evaluation(batch: Any, shown: Any, name: str) -> None:
    method, x = made(name), batch["x"]
    calls: list[int] = []
    embedded = method.embedded_pairs
    method.__dict__["embedded_pairs"] = lambda *numbers: calls.append(1) or embedded(*numbers)
    with torch.no_grad():
        first = method.eval().predict(x)
        assert method.predict(x).equal(first) and len(calls) == 1
    del method.__dict__["embedded_pairs"]
    updated(method, shown)
    fresh = copy.deepcopy(method).eval()
    with torch.no_grad():
        second = method.eval().predict(x)
        assert not torch.allclose(second, first)
    # With gradients nothing is kept, so these are computed from the weights as they are.
    torch.testing.assert_close(second, fresh.predict(x))
    assert fresh.predict(x).requires_grad


def test_kept_pairs_do_not_outlive_their_weights(batch: Any, shown: Any) -> None:
    method, other, x = made("cge").eval(), made("cge"), batch["x"]
    with torch.no_grad():
        for weight in other.graph.parameters():
            weight.mul_(-1).add_(0.1)
        expected, first = other.eval().predict(x), method.predict(x)
        assert not torch.allclose(first, expected)
        # Within another module, such as a running mean.
        nn.ModuleList([method]).load_state_dict(nn.ModuleList([other]).state_dict())
        assert method.predict(x).equal(expected)
        assert method.double().predict(x.double()).dtype == torch.float64
    # A running mean is evaluated again and again, and never set to training.
    method = made("cge")
    mean: Any = WeightEMA(method, 0.5)
    with torch.no_grad():
        before = mean.module.eval().predict(x)
    mean.update_parameters(method)
    updated(method, shown)
    mean.update_parameters(method)
    with torch.no_grad():
        after = mean.module.eval().predict(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, copy.deepcopy(mean.module).predict(x).detach())


def test_too_few_vectors_are_refused() -> None:
    words = r"each of the 6 attributes and objects.*got \(5, 7\)"
    with pytest.raises(ValueError, match=words):
        made("cge", vectors=VECTORS[1:])


# CGE.


@pytest.mark.parametrize("embedding", [0, 20])
def test_parts_of_cge(embedding: int) -> None:
    method = made("cge", {"image_embedding": embedding, "pair_dropout": 0.3})
    assert isinstance(method.network.get_classifier(), nn.Identity)
    assert method.graph.first.weight.shape == (12, 7) and method.graph.dropout.p == 0.3
    assert method.embedded_pairs().shape == (7, embedding or 64)
    torch.testing.assert_close(method.embedded_pairs().norm(dim=1), torch.ones(7))
    # Neither word vectors nor numbers of pairs are part of the state.
    parts = {key.split(".")[0] for key in method.state_dict()}
    assert parts == {"network", "encoder", "graph"} | ({"embedder"} if embedding else set())


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize("embedding", [0, 20])
def test_the_loss_of_cge_by_hand(shown: Any, streams: str, embedding: int, quiet: Any) -> None:
    method = made("cge", {"image_embedding": embedding}, dropout=0.0, **module_of(streams))
    nodes = quiet(method).graph(method.nodes)
    losses = []
    for features in streams_of(method, shown["x"], streams):
        if embedding:
            linear = method.embedder[0]
            features = (features @ linear.weight.T + linear.bias).clamp_min(0)
        for image, pair in zip(features, shown["y"].tolist(), strict=True):
            # Images are not normalised, and unseen pairs are no candidates.
            scores = {p: image @ nodes[6 + p] for p in SEEN}
            every = torch.stack(list(scores.values()))
            losses.append(every.logsumexp(0) - scores[pair])
    got = method.step(shown)
    assert set(got) == {"loss"}
    torch.testing.assert_close(got["loss"], torch.stack(losses).mean())


def test_the_backbone_of_cge_normalises_by_the_batch(shown: Any) -> None:
    method = made("cge").train()
    before = method.network.bn1.running_mean.clone()
    method.step(shown)
    assert not method.network.bn1.running_mean.equal(before)


# CompCos.


def by_loops(pairs: Compositions, attributes: Tensor, objects: Tensor) -> list[float]:
    """Feasibility, pair by pair and neighbour by neighbour."""
    trained = [pair for pair, seen in zip(pairs.names, pairs.seen.tolist(), strict=True) if seen]
    of = dict(zip(pairs.attributes, attributes.double(), strict=True))
    to = dict(zip(pairs.objects, objects.double(), strict=True))
    found = []
    for attribute, thing in pairs.names:
        if (attribute, thing) in trained:
            found.append(1.0)
            continue
        near, like = -1.0, -1.0
        for a, o in trained:
            if a == attribute:
                near = max(near, float(F.cosine_similarity(to[o], to[thing], dim=0)))
            if o == thing:
                like = max(like, float(F.cosine_similarity(of[a], of[attribute], dim=0)))
        found.append((near + like) / 2)
    return found


@settings(max_examples=30)
@given(
    chosen=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=20),
    opened=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_feasibility_equals_the_loops(
    chosen: set[tuple[int, int]], opened: bool, seed: int
) -> None:
    """Attributes and objects that were never trained on are among them."""
    named = [(f"a{i}", f"o{j}") for i, j in sorted(chosen)]
    pairs = Compositions.of(named[::2], [], named)
    pairs = pairs.opened() if opened else pairs
    generator = torch.Generator().manual_seed(seed)
    attributes = torch.randn(len(pairs.attributes), 3, generator=generator)
    objects = torch.randn(len(pairs.objects), 3, generator=generator)
    got = pair_feasibility(pairs, attributes, objects)
    assert got.tolist() == pytest.approx(by_loops(pairs, attributes, objects), abs=1e-5)


def test_parts_of_compcos() -> None:
    method, pairs = made("compcos", {"pair_dropout": 0.3}), PAIRS["compcos"]
    assert isinstance(method.network.get_classifier(), nn.Identity)
    assert method.attributes.equal(VECTORS[:3]) and method.objects.equal(VECTORS[3:])
    first, norm, _, dropout, last = method.embedder
    assert first.weight.shape == (12, 64) and norm.normalized_shape == (12,)
    assert dropout.p == 0.3 and last.weight.shape == (10, 12)
    composed = torch.cat((VECTORS[pairs.attribute], VECTORS[3 + pairs.object]), 1)
    expected = F.normalize(method.composition(composed), dim=1)
    torch.testing.assert_close(method.embedded_pairs(), expected)
    torch.testing.assert_close(method.embedded_pairs(method.seen), expected[SEEN])


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize("epoch", [None, 0, 2, 9])
def test_the_loss_of_compcos_by_hand(
    shown: Any, streams: str, epoch: int | None, quiet: Any
) -> None:
    """Over seen pairs; with margins, after the first epoch, over all, the unseen ones lowered."""
    hyper = {} if epoch is None else MARGIN
    method = quiet(made("compcos", hyper, dropout=0.0, **module_of(streams)))
    method.begin_epoch(epoch or 0)
    pairs = method.embedded_pairs()
    feasible = by_loops(PAIRS["compcos"], method.attributes.detach(), method.objects.detach())
    candidates = list(range(9)) if epoch else SEEN
    losses = []
    for features in streams_of(method, shown["x"], streams):
        for image, pair in zip(method.embedder(features), shown["y"].tolist(), strict=True):
            logits = {}
            for p in candidates:
                cosine = F.cosine_similarity(image, pairs[p], dim=0)
                if epoch and p not in SEEN:
                    cosine = cosine + min(1, epoch / 5) * (-0.4 * feasible[p])
                logits[p] = 8.0 * cosine
            losses.append(torch.stack(list(logits.values())).logsumexp(0) - logits[pair])
    got = method.step(shown)
    assert set(got) == {"loss"}
    torch.testing.assert_close(got["loss"], torch.stack(losses).mean())


def test_margins_follow_the_embeddings_and_stay_in_place() -> None:
    method = made("compcos", MARGIN)
    place = method.margins.data_ptr()
    method.begin_epoch(10)
    unseen = [p for p in range(9) if p not in SEEN]
    full = method.margins.clone()
    torch.testing.assert_close(full[unseen], -0.4 * method.feasibility()[unseen])
    assert not full[SEEN].any() and (method.feasibility()[SEEN] == 1).all()
    with torch.no_grad():
        method.attributes.copy_(method.attributes.flip(0))
    method.begin_epoch(10)  # called twice as an epoch begins, and once more on resuming within it
    assert method.margins.equal(full)
    method.begin_epoch(11)
    torch.testing.assert_close(method.margins[unseen], -0.4 * method.feasibility()[unseen])
    assert not torch.allclose(method.margins, full) and method.margins.data_ptr() == place


def test_without_growth_margins_are_full_at_once() -> None:
    method = made("compcos", {**MARGIN, "feasibility_epochs": 0})
    method.begin_epoch(0)
    torch.testing.assert_close(method.margins[0], -0.4 * method.feasibility()[0])


def test_predictions_know_no_margin(batch: Any) -> None:
    method, other = made("compcos", MARGIN).eval(), made("compcos").eval()
    method.begin_epoch(50)
    assert method.margins.any() and method.predict(batch["x"]).equal(other.predict(batch["x"]))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_backbone_of_compcos_stays_as_it_is(shown: Any, mode: str) -> None:
    method = made("compcos", {"frozen_mode": mode}).train()
    assert method.training and method.network.training == (mode == "train")
    assert method.embedder.training and method.encoder.training
    before = {k: v.clone() for k, v in method.network.state_dict().items()}
    trainable = {name for name, _ in method.network.named_parameters()}
    updated(method, shown)
    moved = {k for k, v in method.network.state_dict().items() if not before[k].equal(v)}
    assert not moved & trainable and bool(moved) == (mode == "train")
    assert not method.attributes.equal(VECTORS[:3])


# Both learn to recognise pairs that they never saw.

#: Every attribute with every object; four of the sixteen pairs are never trained on.
UNSEEN = [(f"a{i}", f"o{i}") for i in range(4)]
GRID = Compositions.of(
    [(f"a{i}", f"o{j}") for i in range(4) for j in range(4) if i != j], [], UNSEEN
)
LEARNING: dict[str, dict[str, Any]] = {
    "cge": {"graph_hidden": 64, "backbone_lr_factor": 1.0},
    "compcos": {"image_embedding": 16, "image_hidden": 64, "cosine_scale": 20.0},
}


def images(pair: Tensor, seed: int) -> Tensor:
    """Pictures (N, 3, 4, 4): the attribute is a row of one channel, the object one of another."""
    x = 0.2 * torch.randn(len(pair), 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    rows = torch.arange(len(pair))
    x[rows, 0, GRID.attribute[pair]] += 1
    x[rows, 1, GRID.object[pair]] += 1
    return x


class Small(nn.Module):
    """A random network with timm's contract."""

    num_features = 64

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(48, 64), nn.Linear(64, 2)

    def forward_features(self, x: Tensor) -> Tensor:
        return F.relu(self.hidden(x.flatten(1)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x if pre_logits else self.fc(x)

    def get_classifier(self) -> nn.Module:
        return self.fc


def on_grid(name: str, hyper: dict[str, Any], **module: Any) -> Any:
    with drawing(0, "weights"):
        network = Small()
    config, options = MethodConfig(**{**LEARNING[name], **hyper}), ModuleConfig(**module)
    kind: Any = {"cge": Cge, "compcos": CompCos}[name]
    return kind(network, GRID, torch.eye(8), seed=0, hyper=config, module=options)


def shown_at(step: int) -> dict[str, Tensor]:
    seen = GRID.seen.nonzero()[:, 0]
    generator = torch.Generator().manual_seed(step)
    pair = seen[torch.randint(len(seen), (48,), generator=generator)]
    return {"x": images(pair, step), "y": pair}


@pytest.mark.parametrize(
    ("name", "hyper", "enabled"),
    [
        ("cge", {}, False),
        ("cge", {"image_embedding": 16}, True),
        ("compcos", {}, False),
        ("compcos", MARGIN, True),
    ],
    ids=str,
)
def test_pairs_never_seen_are_recognised(name: str, hyper: Any, enabled: bool) -> None:
    """By chance one of four unseen pairs is right, and the area is about 2."""
    method = on_grid(name, hyper, enabled=enabled).train()
    optimizers = method.optimizers(OptimConfig(name="adam", lr=1e-2, weight_decay=5e-5))
    optimizer_step = OptimizerStep(TrainConfig(), CPU)
    for step in range(80):
        seed_device(CPU, step)
        if step % 20 == 0:
            method.begin_epoch(step // 20)
        method.update(shown_at(step), optimizers, optimizer_step)
    pair = torch.arange(16).repeat(10)
    found = CompositionalScores(GRID, "test")
    with torch.no_grad():
        found.update(method.eval().predict(images(pair, 99_999)), pair)
    result = found.result()
    assert result.unseen > 40 and result.seen > 70 and result.auc > 30, result.metrics()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("name", "hyper"), [("cge", {"image_embedding": 16}), ("compcos", {}), ("compcos", MARGIN)]
)
def test_captured_updates_are_those_run_eagerly(
    assert_captured_equals_eager: Any, name: str, hyper: dict[str, Any]
) -> None:
    """Margins that change after the capture are among them."""
    adam = OptimConfig(name="adam", lr=1e-3)
    assert_captured_equals_eager(
        lambda: on_grid(name, hyper, dropout=0.1), shown_at, adam, rel=0.02, precision="bf16"
    )
