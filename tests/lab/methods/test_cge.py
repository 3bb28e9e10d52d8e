"""CGE: what it compares, what is trained at which rate, and that unseen pairs are recognised."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import check
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.engine.cuda_graph import WARM_UP, Captured, Eager
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.stage import WeightEMA
from batchformer.lab.methods import build_method
from batchformer.lab.methods.compositional import Cge
from batchformer.lab.metrics.compositional import CompositionalResult, compositional_scores
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import drawing
from batchformer.plug.preserve import seed_device

CPU = torch.device("cpu")
#: Pairs 0 and 5 are unseen; the classes 0..4 of the batches are pairs 1, 2, 3, 4 and 6.
PAIRS = Compositions.of(
    train=[("a", "y"), ("a", "z"), ("b", "x"), ("b", "y"), ("c", "x")],
    val=[("b", "z")],
    test=[("a", "x")],
)
SEEN = [1, 2, 3, 4, 6]
VECTORS = torch.randn(6, 7, generator=torch.Generator().manual_seed(5))
HYPER: dict[str, Any] = {"graph_hidden": 12}


def cge(hyper: dict[str, Any] | None = None, network: Any = None, **module: Any) -> Any:
    if network is None:
        with drawing(0, "weights"):
            network = build_model("digits_net", 5)
    return build_method(
        "cge",
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
    """In training, without dropout and with stored statistics."""
    for module in method.train().modules():
        if isinstance(module, (nn.Dropout, nn.modules.batchnorm._BatchNorm)):
            module.eval()
    return method


@pytest.mark.parametrize("embedding", [0, 20])
def test_parts(embedding: int) -> None:
    method = cge({"image_embedding": embedding, "pair_dropout": 0.3})
    assert isinstance(method.network.get_classifier(), nn.Identity)
    out = embedding or 64
    assert method.graph.first.weight.shape == (12, 7)
    assert method.graph.second.weight.shape == (out, 12) and method.graph.dropout.p == 0.3
    assert isinstance(method.embedder, nn.Sequential if embedding else nn.Identity)
    assert method.embedded_pairs().shape == (7, out) and method.nodes.shape == (13, 7)
    torch.testing.assert_close(method.embedded_pairs().norm(dim=1), torch.ones(7))
    # Neither word vectors nor numbers of pairs are part of the state.
    parts = {key.split(".")[0] for key in method.state_dict()}
    assert parts == {"network", "encoder", "graph"} | ({"embedder"} if embedding else set())


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize("embedding", [0, 20])
def test_the_loss_by_hand(shown: Any, streams: str, embedding: int) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = quiet(cge({"image_embedding": embedding}, dropout=0.0, **module))
    plain = method.network.forward_head(method.network.forward_features(shown["x"]))
    rows = {"none": [plain]}.get(streams) or [plain, method.encoder.mix(plain)]
    rows = rows[1:] if streams == "mixed_only" else rows
    nodes = method.graph(method.nodes)
    losses = []
    for features in rows:
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


@pytest.mark.parametrize("module", [{}, {"enabled": False}, {"trained": False}], ids=str)
def test_rates_and_every_parameter_once(shown: Any, module: Any, assert_trained_once: Any) -> None:
    method = cge({"image_embedding": 20, "backbone_lr_factor": 0.1}, lr_factor=0.5, **module)
    groups = {g["name"]: g for g in method.parameter_groups(OptimConfig(lr=2.0))}
    expected = {"backbone": 0.2, "model": 2.0} | ({} if module else {"batchformer": 1.0})
    assert {name: g["lr"] for name, g in groups.items()} == pytest.approx(expected)
    assert set(map(id, groups["backbone"]["params"])) == set(map(id, method.network.parameters()))
    assert_trained_once(method, shown)


def test_the_backbone_normalises_by_the_batch() -> None:
    method = cge(network=Shapes()).train()
    before = method.network.norm.running_mean.clone()
    method.step({"x": torch.randn(4, 3, 6, 6), "y": torch.tensor(SEEN[:4])})
    assert not method.network.norm.running_mean.equal(before)


def test_prediction_is_that_without_an_encoder(batch: Any) -> None:
    own, other = cge().eval(), cge(enabled=False).eval()
    predicted = own.predict(batch["x"])
    assert predicted.shape == (10, 7) and predicted.equal(other.predict(batch["x"]))
    assert predicted.equal(own(batch["x"]))
    features = own.network.forward_head(own.network.forward_features(batch["x"]))
    torch.testing.assert_close(predicted, features @ own.graph(own.nodes)[6:].T)
    extra = set(own.state_dict()) - set(other.state_dict())
    assert {key.split(".")[0] for key in extra} == {"encoder"}
    assert all(torch.equal(own.state_dict()[k], v) for k, v in other.state_dict().items())


def test_pairs_are_embedded_once_for_an_evaluation(batch: Any, shown: Any) -> None:
    method, x = cge(), batch["x"]
    calls: list[int] = []
    method.graph.register_forward_hook(lambda *_: calls.append(1))
    optimizers = method.optimizers(OptimConfig(lr=0.5))
    with torch.no_grad():
        method.eval()
        first = method.predict(x)
        assert method.predict(x).equal(first) and len(calls) == 1
    method.train()
    method.update(shown, optimizers, OptimizerStep(TrainConfig(), CPU))
    fresh = copy.deepcopy(method).eval()
    with torch.no_grad():
        second = method.eval().predict(x)
        assert not torch.allclose(second, first)
    # With gradients nothing is kept, so these are computed from the weights as they are.
    torch.testing.assert_close(second, fresh.predict(x))
    assert fresh.predict(x).requires_grad


def test_kept_pairs_do_not_outlive_their_weights(batch: Any, shown: Any) -> None:
    method, other, x = cge().eval(), cge(), batch["x"]
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
    method = cge()
    mean: Any = WeightEMA(method, 0.5)
    optimizers, optimizer_step = (
        method.optimizers(OptimConfig(lr=0.5)),
        OptimizerStep(TrainConfig(), CPU),
    )
    with torch.no_grad():
        before = mean.module.eval().predict(x)
    mean.update_parameters(method)
    method.train().update(shown, optimizers, optimizer_step)
    mean.update_parameters(method)
    with torch.no_grad():
        after = mean.module.eval().predict(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, copy.deepcopy(mean.module).predict(x).detach())


@pytest.mark.parametrize("embedding", [0, 20])
def test_what_is_deployed_predicts_the_same(batch: Any, embedding: int) -> None:
    method = cge({"image_embedding": embedding})
    network = method.eval().deployed()
    torch.testing.assert_close(network(batch["x"]), method.predict(batch["x"]))
    assert not network.training and isinstance(method.network.get_classifier(), nn.Identity)
    assert method.train().deployed().training


def test_it_is_acting(batch: Any) -> None:
    method = cge()
    assert check(method, batch["x"], method.optimizers(OptimConfig())["main"]).passed


@pytest.mark.parametrize("train", [{"precision": "bf16"}, {"accumulate": 2}], ids=str)
def test_half_precision_and_accumulation(shown: Any, train: Any) -> None:
    method = cge({"image_embedding": 20}).train()
    optimizer_step = OptimizerStep(TrainConfig(batch_size=10, **train), CPU)
    losses = method.update(shown, method.optimizers(OptimConfig()), optimizer_step)
    assert losses["loss"].isfinite() and losses["loss"].dtype == torch.float32
    assert all(p.isfinite().all() for p in method.parameters())
    with torch.no_grad(), optimizer_step.autocast():
        assert method.eval().predict(shown["x"]).dtype == torch.float32


def test_resumed_equals_unbroken(assert_resumes: Any) -> None:
    class Numbered(Cge):
        def step(self, batch: Any) -> dict[str, Tensor]:
            return super().step({"x": batch["x"], "y": torch.tensor(SEEN)[batch["y"]]})

    def build() -> Cge:
        with drawing(0, "weights"):
            network = build_model("digits_net", 5)
        hyper, module = MethodConfig(**HYPER), ModuleConfig()
        return Numbered(network, PAIRS, VECTORS, seed=0, hyper=hyper, module=module)

    assert_resumes(build)


def test_wrong_word_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"each of the 6 attributes and objects.*got \(5, 7\)"):
        Cge(build_model("digits_net", 5), PAIRS, VECTORS[1:], seed=0, module=ModuleConfig())


COLOURS = {"blue": (0, 0, 1), "green": (0, 1, 0), "red": (1, 0, 0), "white": (1, 1, 1)}


def shapes() -> dict[str, Tensor]:
    """Four shapes of 6 x 6."""
    bar, cross, frame, square = (torch.zeros(6, 6) for _ in range(4))
    bar[2:4] = cross[2:4] = cross[:, 2:4] = square[1:5, 1:5] = 1
    frame.fill_(1)[1:5, 1:5] = 0
    return {"bar": bar, "cross": cross, "frame": frame, "square": square}


#: Every colour with every shape; four of the sixteen pairs are never trained on.
UNSEEN = list(zip(COLOURS, shapes(), strict=True))
COLOURED = Compositions.of(
    [(c, s) for c in COLOURS for s in shapes() if (c, s) not in UNSEEN], [], UNSEEN
)


def images(pair: Tensor, seed: int) -> Tensor:
    """Noisy pictures (N, 3, 6, 6) of pairs (N,)."""
    colours = torch.tensor([COLOURS[colour] for colour, _ in COLOURED.names]).float()
    drawn = torch.stack([shapes()[shape] for _, shape in COLOURED.names])
    clean = colours[pair][:, :, None, None] * drawn[pair][:, None]
    generator = torch.Generator().manual_seed(seed)
    return clean + 0.2 * torch.randn(clean.shape, generator=generator)


class Shapes(nn.Module):
    """A small network with timm's contract."""

    num_features = 32

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.hidden, self.fc = nn.Linear(72, 32), nn.Linear(32, 2)

    def forward_features(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        features = F.relu(self.hidden(x.flatten(1)))
        return features if pre_logits else self.fc(features)

    def get_classifier(self) -> nn.Module:
        return self.fc


def on_shapes(embedding: int, **module: Any) -> Cge:
    with drawing(0, "weights"):
        network = Shapes()
    hyper = MethodConfig(graph_hidden=64, backbone_lr_factor=1.0, image_embedding=embedding)
    return Cge(network, COLOURED, torch.eye(8), seed=0, hyper=hyper, module=ModuleConfig(**module))


def coloured(step: int) -> dict[str, Tensor]:
    seen = COLOURED.seen.nonzero()[:, 0]
    generator = torch.Generator().manual_seed(step)
    pair = seen[torch.randint(len(seen), (48,), generator=generator)]
    return {"x": images(pair, step), "y": pair}


def trained(embedding: int, **module: Any) -> CompositionalResult:
    method = on_shapes(embedding, **module).train()
    optimizers = method.optimizers(OptimConfig(name="adam", lr=1e-2, weight_decay=5e-5))
    optimizer_step = OptimizerStep(TrainConfig(), CPU)
    for step in range(120):
        seed_device(CPU, step)
        method.update(coloured(step), optimizers, optimizer_step)
    pair = torch.arange(16).repeat(10)
    with torch.no_grad():
        scores = method.eval().predict(images(pair, 99_999))
    return compositional_scores(scores, pair, COLOURED, "test")


@pytest.mark.parametrize(("embedding", "enabled"), [(0, False), (0, True), (16, True)])
def test_pairs_never_seen_are_recognised(embedding: int, enabled: bool) -> None:
    """By chance one of four unseen pairs is right, and the area is about 2."""
    result = trained(embedding, enabled=enabled)
    assert result.unseen > 40 and result.seen > 70 and result.auc > 30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_updates_are_those_run_eagerly() -> None:
    device = torch.device("cuda")
    losses: dict[Any, list[float]] = {}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for kind in (Eager, Captured):
        method = on_shapes(16, dropout=0.1).to(device).train()
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
                on_device = {name: value.to(device) for name, value in coloured(step).items()}
                losses[kind].append(float(updater(on_device, step)["loss"]))
        assert kind is Eager or len(updater.graphs) == 1
    assert losses[Captured] == pytest.approx(losses[Eager], rel=0.02)
