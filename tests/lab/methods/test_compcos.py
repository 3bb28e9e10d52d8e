"""CompCos: its cosines, its margins by feasibility, and that unseen pairs are recognised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from batchformer import check
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.engine.cuda_graph import WARM_UP, Captured, Eager
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import build_method
from batchformer.lab.methods.compositional import CompCos, pair_feasibility
from batchformer.lab.metrics.compositional import CompositionalResult, compositional_scores
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import drawing
from batchformer.plug.preserve import seed_device

CPU = torch.device("cpu")
#: Nine pairs in the open world; the classes 0..4 of the batches are pairs 1, 2, 3, 4 and 6.
PAIRS = Compositions.of(
    train=[("a", "y"), ("a", "z"), ("b", "x"), ("b", "y"), ("c", "x")],
    val=[("b", "z")],
    test=[("a", "x")],
).opened()
SEEN = [1, 2, 3, 4, 6]
VECTORS = torch.randn(6, 7, generator=torch.Generator().manual_seed(5))
HYPER: dict[str, Any] = {"image_embedding": 10, "image_hidden": 12, "cosine_scale": 8.0}
MARGIN: dict[str, Any] = {
    "feasibility": "margin",
    "feasibility_margin": 0.4,
    "feasibility_epochs": 5,
}


def compcos(hyper: dict[str, Any] | None = None, **module: Any) -> Any:
    with drawing(0, "weights"):
        network = build_model("digits_net", 5)
    return build_method(
        "compcos",
        network=network,
        compositions=PAIRS,
        vectors=VECTORS,
        module=ModuleConfig(**module),
        seed=0,
        hyper=MethodConfig(**HYPER, **(hyper or {})),
    )


@pytest.fixture
def shown(batch: Any) -> dict[str, Tensor]:
    """Ten images, each of a seen pair."""
    return {"x": batch["x"], "y": torch.tensor(SEEN)[batch["y"]]}


def quiet(method: Any) -> Any:
    """In training, without dropout."""
    for module in method.train().modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    return method


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


@settings(max_examples=30, deadline=None)
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


def test_parts() -> None:
    method = compcos({"pair_dropout": 0.3})
    assert isinstance(method.network.get_classifier(), nn.Identity)
    assert method.attributes.equal(VECTORS[:3]) and method.objects.equal(VECTORS[3:])
    first, norm, _, dropout, last = method.embedder
    assert first.weight.shape == (12, 64) and norm.normalized_shape == (12,)
    assert dropout.p == 0.3 and last.weight.shape == (10, 12)
    composed = torch.stack(
        [
            torch.cat((VECTORS[a], VECTORS[3 + o]))
            for a, o in zip(PAIRS.attribute.tolist(), PAIRS.object.tolist(), strict=True)
        ]
    )
    expected = F.normalize(method.composition(composed), dim=1)
    torch.testing.assert_close(method.embedded_pairs(), expected)
    torch.testing.assert_close(method.embedded_pairs(method.seen), expected[SEEN])


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize("epoch", [None, 0, 2, 9])
def test_the_loss_by_hand(shown: Any, streams: str, epoch: int | None) -> None:
    """Without margins over seen pairs; with them over all, the unseen ones lowered."""
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = quiet(compcos({} if epoch is None else MARGIN, dropout=0.0, **module))
    method.begin_epoch(epoch or 0)
    with torch.no_grad():
        plain = method.network.forward_head(method.network.forward_features(shown["x"]))
    rows = [plain] if streams == "none" else [plain, method.encoder.mix(plain)]
    rows = rows[1:] if streams == "mixed_only" else rows
    pairs = method.embedded_pairs()
    feasible = by_loops(PAIRS, method.attributes.detach(), method.objects.detach())
    candidates = SEEN if epoch is None else list(range(9))
    losses = []
    for features in rows:
        for image, pair in zip(method.embedder(features), shown["y"].tolist(), strict=True):
            logits = {}
            for p in candidates:
                cosine = F.cosine_similarity(image, pairs[p], dim=0)
                if epoch is not None and p not in SEEN:
                    cosine = cosine + min(1, epoch / 5) * (-0.4 * feasible[p])
                logits[p] = 8.0 * cosine
            losses.append(torch.stack(list(logits.values())).logsumexp(0) - logits[pair])
    got = method.step(shown)
    assert set(got) == {"loss"}
    torch.testing.assert_close(got["loss"], torch.stack(losses).mean())


def test_margins_follow_the_embeddings_and_stay_in_place() -> None:
    method = compcos(MARGIN)
    place = method.margins.data_ptr()
    method.begin_epoch(0)
    assert not method.margins.any()
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
    method = compcos({**MARGIN, "feasibility_epochs": 0})
    method.begin_epoch(0)
    torch.testing.assert_close(method.margins[0], -0.4 * method.feasibility()[0])


def test_predictions_know_no_margin(batch: Any) -> None:
    method, other = compcos(MARGIN).eval(), compcos().eval()
    method.begin_epoch(50)
    assert method.margins.any() and method.predict(batch["x"]).equal(other.predict(batch["x"]))


@pytest.mark.parametrize("hyper", [{}, MARGIN], ids=["seen", "margin"])
@pytest.mark.parametrize("module", [{}, {"enabled": False}, {"trained": False}], ids=str)
def test_rates_and_every_parameter_once(
    shown: Any, module: Any, hyper: Any, assert_trained_once: Any
) -> None:
    method = compcos(hyper, lr_factor=0.5, **module)
    groups = {g["name"]: g for g in method.parameter_groups(OptimConfig(lr=2.0))}
    expected = {"model": 2.0} | ({} if module else {"batchformer": 1.0})
    assert {name: g["lr"] for name, g in groups.items()} == pytest.approx(expected)
    assert not any(p.requires_grad for p in method.network.parameters())
    assert {id(method.attributes), id(method.objects)} <= set(map(id, groups["model"]["params"]))
    assert_trained_once(method, shown)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_backbone_stays_as_it_is(shown: Any, mode: str) -> None:
    method = compcos({"frozen_mode": mode}).train()
    assert method.training and method.network.training == (mode == "train")
    assert method.embedder.training and method.encoder.training
    before = {k: v.clone() for k, v in method.network.state_dict().items()}
    trainable = {name for name, _ in method.network.named_parameters()}
    method.update(shown, method.optimizers(OptimConfig(lr=0.5)), OptimizerStep(TrainConfig(), CPU))
    moved = {k for k, v in method.network.state_dict().items() if not before[k].equal(v)}
    assert not moved & trainable and bool(moved) == (mode == "train")
    assert not method.attributes.equal(VECTORS[:3])


def test_prediction_is_that_without_an_encoder(batch: Any) -> None:
    own, other = compcos().eval(), compcos(enabled=False).eval()
    predicted = own.predict(batch["x"])
    assert predicted.shape == (10, 9) and predicted.equal(other.predict(batch["x"]))
    assert predicted.equal(own(batch["x"])) and predicted.abs().max() <= 8.0 + 1e-4
    extra = set(own.state_dict()) - set(other.state_dict())
    assert {key.split(".")[0] for key in extra} == {"encoder"}
    assert all(torch.equal(own.state_dict()[k], v) for k, v in other.state_dict().items())


def test_evaluations_see_the_weights_as_they_are(batch: Any, shown: Any) -> None:
    method, x = compcos(), batch["x"]
    with torch.no_grad():
        first = method.eval().predict(x)
    optimizers = method.train().optimizers(OptimConfig(lr=0.5))
    method.update(shown, optimizers, OptimizerStep(TrainConfig(), CPU))
    with torch.no_grad():
        second = method.eval().predict(x)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(second, method.predict(x).detach())


def test_what_is_deployed_predicts_the_same(batch: Any) -> None:
    method = compcos().eval()
    torch.testing.assert_close(method.deployed()(batch["x"]), method.predict(batch["x"]))


def test_it_is_acting(batch: Any) -> None:
    method = compcos()
    assert check(method, batch["x"], method.optimizers(OptimConfig())["main"]).passed


@pytest.mark.parametrize("hyper", [{}, MARGIN], ids=["seen", "margin"])
@pytest.mark.parametrize("train", [{"precision": "bf16"}, {"accumulate": 2}], ids=str)
def test_half_precision_and_accumulation(shown: Any, train: Any, hyper: Any) -> None:
    method = compcos(hyper).train()
    method.begin_epoch(3)
    optimizer_step = OptimizerStep(TrainConfig(batch_size=10, **train), CPU)
    losses = method.update(shown, method.optimizers(OptimConfig()), optimizer_step)
    assert losses["loss"].isfinite() and losses["loss"].dtype == torch.float32
    assert all(p.isfinite().all() for p in method.parameters())
    with torch.no_grad(), optimizer_step.autocast():
        assert method.eval().predict(shown["x"]).dtype == torch.float32


def test_resumed_within_an_epoch_equals_unbroken(assert_resumes: Any) -> None:
    """Embeddings move within the epoch; the margins are those of its beginning."""

    class Numbered(CompCos):
        def step(self, batch: Any) -> dict[str, Tensor]:
            return super().step({"x": batch["x"], "y": torch.tensor(SEEN)[batch["y"]]})

    def build() -> CompCos:
        with drawing(0, "weights"):
            network = build_model("digits_net", 5)
        hyper = MethodConfig(**HYPER, **MARGIN)
        return Numbered(network, PAIRS, VECTORS, seed=0, hyper=hyper, module=ModuleConfig())

    assert_resumes(build)


def test_an_embedding_without_channels_is_refused() -> None:
    network, hyper = build_model("digits_net", 5), MethodConfig()
    with pytest.raises(ValueError, match=r"hyper\.image-embedding is 0: set.*for example 7"):
        CompCos(network, PAIRS, VECTORS, seed=0, hyper=hyper, module=ModuleConfig())


#: Every attribute with every object; four of the sixteen pairs are never trained on.
UNSEEN = [(f"a{i}", f"o{i}") for i in range(4)]
GRID = Compositions.of(
    [(f"a{i}", f"o{j}") for i in range(4) for j in range(4) if i != j], [], UNSEEN
)


def images(pair: Tensor, seed: int) -> Tensor:
    """Pictures (N, 3, 4, 4): the attribute is a row of one channel, the object one of another."""
    x = 0.2 * torch.randn(len(pair), 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    rows = torch.arange(len(pair))
    x[rows, 0, GRID.attribute[pair]] += 1
    x[rows, 1, GRID.object[pair]] += 1
    return x


class Still(nn.Module):
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


def on_grid(hyper: dict[str, Any], **module: Any) -> CompCos:
    with drawing(0, "weights"):
        network = Still()
    settings = MethodConfig(image_embedding=16, image_hidden=64, cosine_scale=20.0, **hyper)
    options = ModuleConfig(**module)
    return CompCos(network, GRID, torch.eye(8), seed=0, hyper=settings, module=options)


def shown_at(step: int) -> dict[str, Tensor]:
    seen = GRID.seen.nonzero()[:, 0]
    generator = torch.Generator().manual_seed(step)
    pair = seen[torch.randint(len(seen), (48,), generator=generator)]
    return {"x": images(pair, step), "y": pair}


def trained(hyper: dict[str, Any], **module: Any) -> CompositionalResult:
    method = on_grid(hyper, **module).train()
    optimizers = method.optimizers(OptimConfig(name="adam", lr=1e-2, weight_decay=5e-5))
    optimizer_step = OptimizerStep(TrainConfig(), CPU)
    for step in range(120):
        seed_device(CPU, step)
        if step % 20 == 0:
            method.begin_epoch(step // 20)
        method.update(shown_at(step), optimizers, optimizer_step)
    pair = torch.arange(16).repeat(10)
    with torch.no_grad():
        scores = method.eval().predict(images(pair, 99_999))
    return compositional_scores(scores, pair, GRID, "test")


@pytest.mark.parametrize(("hyper", "enabled"), [({}, False), ({}, True), (MARGIN, True)], ids=str)
def test_pairs_never_seen_are_recognised(hyper: dict[str, Any], enabled: bool) -> None:
    """By chance one of four unseen pairs is right, and the area is about 2."""
    result = trained(hyper, enabled=enabled)
    assert result.unseen > 40 and result.seen > 70 and result.auc > 30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("hyper", [{}, MARGIN], ids=["seen", "margin"])
def test_recorded_updates_are_those_run_eagerly(hyper: dict[str, Any]) -> None:
    """Margins that change after the recording are among them."""
    device = torch.device("cuda")
    losses: dict[Any, list[float]] = {}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for kind in (Eager, Captured):
        method = on_grid(hyper, dropout=0.1).to(device).train()
        optimizers = method.optimizers(OptimConfig(name="adam", lr=1e-3))
        optimizer_step = OptimizerStep(TrainConfig(precision="bf16"), device)

        def work(
            batch: Any, method: Any = method, o: Any = optimizers, m: Any = optimizer_step
        ) -> Any:
            return method.update(batch, o, m)

        with torch.cuda.stream(stream):
            more = (method.phase, pytest.fail) if kind is Captured else ()
            updater: Any = kind(work, device, *more)
            losses[kind] = []
            for step in range(WARM_UP + 10):
                if step % 4 == 0:
                    method.begin_epoch(step // 4)
                on_device = {name: value.to(device) for name, value in shown_at(step).items()}
                losses[kind].append(float(updater(on_device, step)["loss"]))
        assert kind is Eager or len(updater.graphs) == 1
    assert losses[Captured] == pytest.approx(losses[Eager], rel=0.02)
