"""Whole updates of MoCo with BatchFormer against a reference in float64, written from the papers.

The reference has its own loss, heads, normalisation, queue, LARS, SGD and momentum, and torch's
encoder, with the batch as its sequence, for the module. Its parts are named as the method's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.moco import Moco, MocoV2, MocoV3

N, CHANNELS, HIDDEN, DIM, QUEUE, UPDATES = 12, 8, 16, 6, 40, 4
TEMPERATURE, MOMENTUM, MODULE_LR_FACTOR = 0.2, 0.9, 0.5
HYPER: dict[str, Any] = {"temperature": TEMPERATURE, "momentum": MOMENTUM, "dim": DIM}
HYPER |= {"projection_layers": 2, "projection_hidden": HIDDEN}
LARS = OptimConfig(name="lars", lr=0.6, weight_decay=1e-3, decayed="matrices", trust=0.02)
SGD = OptimConfig(name="sgd", lr=0.1, weight_decay=1e-2)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Float64 for all that is drawn or made; dtype and generator are given back as they were."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield
    torch.set_default_dtype(before)


class Network(nn.Module):
    """Two normalised convolutions and a classifier, with timm's contract."""

    num_features = CHANNELS

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, CHANNELS, 3, bias=False), nn.BatchNorm2d(CHANNELS)
        self.classifier = nn.Linear(CHANNELS, 5)

    def forward_features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x.mean((2, 3))

    def get_classifier(self) -> nn.Module:
        return self.classifier


def normalised(norm: Any, maps: Tensor, parts: list[Tensor]) -> Tensor:
    """Maps (N, C, H, W), those of each part by its own statistics, and their mean kept."""
    kept = torch.stack([norm.running_mean, norm.running_var]).repeat(len(parts), 1, 1)
    each = zip([maps[part] for part in parts], *kept.unbind(1), strict=True)
    done = [F.batch_norm(x, mean, var, norm.weight, norm.bias, True) for x, mean, var in each]
    norm.running_mean, norm.running_var = kept.mean(0)
    norm.num_batches_tracked += 1
    return torch.cat(done)[torch.cat(parts).argsort()]


class Reference(nn.Module):
    """A method's state, beginning with its weights; heads have the names of the method's."""

    def __init__(self, method: Moco, head: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = nn.Identity()
        if method.encoder is not None:
            layer = nn.TransformerEncoderLayer(CHANNELS, 4, CHANNELS, method.config.dropout)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.network, self.head, self.predictor = Network(), head, predictor
        self.updates = nn.Buffer(torch.tensor(0))
        self.mixed_only = method.config.streams == "mixed_only"
        self.load_state_dict(method.state_dict(), strict=False)
        self.network.classifier.requires_grad_(False)
        self.encoder.requires_grad_(method.config.trained)
        self.key_network = copy.deepcopy(self.network).requires_grad_(False)
        self.key_head = copy.deepcopy(head).requires_grad_(False)
        self.trained: dict[str, Any] = {n: p for n, p in self.named_parameters() if p.requires_grad}
        self.velocities = {name: torch.zeros_like(p) for name, p in self.trained.items()}

    def rows(self, slow: bool, images: Tensor, parts: list[Tensor]) -> Tensor:
        """Rows (2N, D) of images by either side, plain then mixed; (N, D) without an encoder."""
        network, head = (self.key_network, self.key_head) if slow else (self.network, self.head)
        maps = torch.relu(normalised(network.norm1, network.conv1(images), parts))
        maps = torch.relu(normalised(network.norm2, network.conv2(maps), parts))
        streams = [maps.mean((2, 3))]
        if not isinstance(self.encoder, nn.Identity):  # a sequence of N in a batch of one
            streams.append(self.encoder(streams[0].unsqueeze(1)).squeeze(1))
        streams = streams[self.mixed_only :]
        if not isinstance(head[1], nn.BatchNorm1d) or len(parts) == 1:
            return head(torch.cat(streams))  # type: ignore[no-any-return]
        # The streams of a part are normalised together.
        both = [torch.cat([part + N * stream for stream in range(len(streams))]) for part in parts]
        made: Tensor = head[2:](normalised(head[1], head[0](torch.cat(streams)), both))
        return made

    def update(self, loss: Tensor, optim: OptimConfig) -> None:
        """Let the weights descend, and those of the keys' side follow them."""
        self.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.updates.add_(1)
        kept = MOMENTUM
        if optim is LARS:
            # MoCo-v3 moves the keys' side at the beginning of the next update, with its momentum.
            kept = 1 - (1 - MOMENTUM) * (1 + math.cos(math.pi * int(self.updates) / UPDATES)) / 2
        with torch.no_grad():
            for name, weight in self.trained.items():
                step = descent(weight, weight.grad, optim)
                velocity = self.velocities[name].mul_(0.9).add_(step)
                factor = MODULE_LR_FACTOR if name.startswith("encoder.") else 1.0
                weight.sub_(optim.lr * factor * velocity)
            for slow, fast in ((self.key_network, self.network), (self.key_head, self.head)):
                for key, query in zip(slow.parameters(), fast.parameters(), strict=True):
                    key.copy_(kept * key + (1 - kept) * query)


def descent(weight: Tensor, gradient: Tensor, optim: OptimConfig) -> Tensor:
    """What enters the velocity; LARS neither decays nor adapts vectors, SGD decays all."""
    if optim is LARS and weight.ndim == 1:
        return gradient
    decayed = gradient + optim.weight_decay * weight
    return decayed * (optim.trust * float(weight.norm() / decayed.norm()) if optim is LARS else 1)


def by_stream(rows: Tensor) -> dict[str, Tensor]:
    """Unit rows of the first stream, "a", and of the second one, "b"."""
    return dict(zip("ab", F.normalize(rows).split(N), strict=False))


def watched(loss: Tensor, query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """The loss, the mean cosine of pairs, and how far queries spread."""
    spread = query.std(0, correction=0).mean()
    return {"loss": loss, "positive": (query * key).sum(1).mean(), "spread": spread}


class ReferenceV3(Reference):
    """The queries of each view against the keys of the other; "o" is a view's own stream "b"."""

    def __init__(self, method: MocoV3, pairs: tuple[str, str], divisor: int) -> None:
        def layers(into: int) -> list[nn.Module]:
            hidden = nn.Linear(into, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN), nn.ReLU()
            return [*hidden, nn.Linear(HIDDEN, DIM, bias=False)]

        head = nn.Sequential(*layers(CHANNELS), nn.BatchNorm1d(DIM, affine=False))
        super().__init__(method, head, nn.Sequential(*layers(DIM)))
        self.pairs, self.divisor = pairs, divisor

    def losses(self, views: Tensor) -> dict[str, Tensor]:
        whole = [torch.arange(N)]
        queries = [by_stream(self.predictor(self.rows(False, view, whole))) for view in views]
        with torch.no_grad():
            keys = [by_stream(self.rows(True, view, whole)) for view in views.flip(0)]
        terms = []
        for pairs, query, key in zip(self.pairs, queries, keys, strict=True):
            against = {**key, "o": query.get("b", query["a"]).detach()}
            for a, b in pairs.split():
                scores = query[a] @ against[b].T / TEMPERATURE
                terms.append((scores.logsumexp(1) - scores.diag()).mean())
        loss = 2 * TEMPERATURE * torch.stack(terms).sum() / self.divisor
        return watched(loss, queries[0]["a"], keys[0]["a"])


class ReferenceV2(Reference):
    """Queries of one view against keys of the other and a queue of earlier ones."""

    def __init__(self, method: MocoV2, pairs: str, times: int) -> None:
        first = nn.Linear(CHANNELS, CHANNELS), nn.BatchNorm1d(CHANNELS), nn.ReLU()
        layers = nn.Linear(CHANNELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM)
        front = first if method.hyper.projection_front else ()
        super().__init__(method, nn.Sequential(*front, *layers), nn.Identity())
        self.parts, self.enqueued = method.hyper.norm_parts, method.hyper.enqueued
        self.pairs, self.times, self.queue = pairs, times, torch.zeros(0, DIM)

    def losses(self, views: Tensor) -> dict[str, Tensor]:
        samples, parts = torch.arange(N), self.parts
        order = torch.rand(N).argsort() if parts > 1 else samples
        interleaved = [samples[part::parts] for part in range(parts)]
        queries = by_stream(self.rows(False, views[0], list(samples.chunk(parts))))
        with torch.no_grad():
            keys = by_stream(self.rows(True, views[1][order], interleaved))
            keys = {name: stream[order.argsort()] for name, stream in keys.items()}
        losses = []
        for a, b in self.pairs.split():
            own = (queries[a] * keys[b]).sum(1, keepdim=True)
            scores = torch.cat([own, queries[a] @ self.queue.T], 1) / TEMPERATURE
            losses.append(scores.logsumexp(1) - scores[:, 0])
        chosen = {"plain": "a", "mixed": "b"}.get(self.enqueued, "ab") if len(keys) == 2 else "a"
        self.queue = torch.cat([self.queue, *(keys[name] for name in chosen)])[-QUEUE:]
        return watched(self.times * torch.cat(losses).mean(), queries["a"], keys["a"])


def standing(of: nn.Module, losses: dict[str, Tensor]) -> dict[str, Any]:
    """What an update leaves: its losses, and gradients, weights and statistics by name."""
    gradients = {name: p.grad for name, p in of.named_parameters() if p.grad is not None}
    state = {name: value for name, value in of.state_dict().items() if "queue." not in name}
    told = {name: value.detach() for name, value in losses.items()}
    return {"losses": told, "gradients": gradients, "state": state}


def assert_updates_agree(method: Moco, reference: Any, optim: OptimConfig) -> None:
    method.train().begin_training(UPDATES)
    optimizers = method.optimizers(optim)
    optimizer_step = OptimizerStep(TrainConfig(batch_size=N, updates=UPDATES), torch.device("cpu"))
    for number, views in enumerate(torch.randn(UPDATES, 2, N, 3, 8, 8)):
        torch.manual_seed(number)
        losses = method.update({"x": views[0], "view2": views[1]}, optimizers, optimizer_step)
        method.after_update()
        torch.manual_seed(number)
        told = reference.losses(views)
        reference.update(told["loss"], optim)
        got, expected = standing(method, losses), standing(reference, told)
        if isinstance(method, MocoV2):
            oldest = -int(method.queue.position)
            got["queue"] = method.queue.keys.roll(oldest, 0)[method.queue.valid.roll(oldest, 0)]
            expected["queue"] = reference.queue
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


#: BatchFormer's settings, MoCo's, the pairs of each view, and what all is divided by.
ALL = "aa ab ba bb"
V3: list[tuple[dict[str, Any], dict[str, Any], tuple[str, str], int]] = [
    ({"enabled": False}, {}, ("aa", "aa"), 1),
    ({"enabled": False, "loss_scale": "sum"}, {}, ("aa", "aa"), 1),
    ({"dropout": 0.0}, {}, (ALL, ALL), 4),
    ({}, {}, (ALL, ALL), 4),
    ({"trained": False}, {}, (ALL, ALL), 4),
    ({"loss_scale": "sum"}, {}, (ALL, ALL), 1),
    ({"streams": "mixed_only"}, {}, ("aa", "aa"), 1),
    ({}, {"contrast_pairs": "plain"}, ("aa", "aa"), 1),
]
for scale, (few, many) in {"mean": (4, 5), "sum": (1, 5)}.items():
    first, second = "aa ab ba ba", "aa ab aa ab"
    V3.append(({"loss_scale": scale}, {"contrast_pairs": "first_release"}, (first, second), few))
    own = f"{first} ao", f"{second} ao"
    V3.append(({"loss_scale": scale}, {"contrast_pairs": "readme"}, own, many))


@pytest.mark.parametrize(("module", "hyper", "pairs", "divisor"), V3, ids=str)
def test_moco_v3(
    module: dict[str, Any], hyper: dict[str, Any], pairs: tuple[str, str], divisor: int
) -> None:
    options = ModuleConfig(**module, lr_factor=MODULE_LR_FACTOR)
    config = MethodConfig(**HYPER, **hyper, momentum_schedule="cosine")
    method = MocoV3(Network(), options, 0, config)
    assert_updates_agree(method, ReferenceV3(method, pairs, divisor), LARS)


#: BatchFormer's settings, MoCo's, the pairs, and how often their mean is taken.
V2: list[tuple[dict[str, Any], dict[str, Any], str, int]] = [
    *(
        (module, {"norm_parts": parts, "projection_front": front}, pairs, 1)
        for module, pairs in (({"enabled": False}, "aa"), ({"dropout": 0.0}, ALL), ({}, ALL))
        for parts in (1, 3)
        for front in (False, True)
    ),
    ({"loss_scale": "sum"}, {}, ALL, 4),
    ({"streams": "mixed_only"}, {}, "aa", 1),
    ({"loss_scale": "sum"}, {"contrast_pairs": "plain", "enqueued": "plain"}, "aa", 1),
    ({}, {"enqueued": "mixed"}, ALL, 1),
    ({"enabled": False}, {"enqueued": "mixed"}, "aa", 1),
]


@pytest.mark.parametrize(("module", "hyper", "pairs", "times"), V2, ids=str)
def test_moco_v2(module: dict[str, Any], hyper: dict[str, Any], pairs: str, times: int) -> None:
    options = ModuleConfig(**module, lr_factor=MODULE_LR_FACTOR)
    method = MocoV2(Network(), options, 0, MethodConfig(**HYPER, **hyper, queue=QUEUE))
    assert_updates_agree(method, ReferenceV2(method, pairs, times), SGD)
