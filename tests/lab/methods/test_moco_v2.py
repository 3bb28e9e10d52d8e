"""MoCo-v2: its loss number by number, and what enters the queue."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import momentum as shuffled_norm
from batchformer.lab.methods.momentum import draw_order
from batchformer.lab.recipes import find_recipe

HYPER: dict[str, Any] = {
    "queue": 48,
    "dim": 4,
    "temperature": 0.2,
    "momentum": 0.9,
    "projection_hidden": 16,
}
N = 10


def known(make: Any, hyper: dict[str, Any] | None = None, **module: Any) -> Any:
    """In double precision, without dropout, normalised by fixed statistics."""
    method = make("moco_v2", {**HYPER, **(hyper or {})}, dropout=0.0, **module).double().train()
    for part in method.modules():
        if isinstance(part, _BatchNorm):
            part.eval()
    return method


def shifted(batch: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    x, view2 = batch["x"].double(), batch["view2"].double()
    return {"x": x + 0.5 * step, "view2": view2 - 0.5 * step, "y": batch["y"]}


def made_of(method: Any, images: Tensor, slow: bool) -> dict[str, list[list[float]]]:
    """Directions by stream, layer by layer."""
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
            hidden = torch.relu(stream @ head[0].weight.T + head[0].bias)
            out = hidden @ head[2].weight.T + head[2].bias
            rows[name] = (out / out.square().sum(1, keepdim=True).sqrt()).tolist()
    return rows


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def by_hand(q: Any, k: Any, pairs: list[str], queue: list[list[float]]) -> float:
    terms = []
    for pair in pairs:
        for query, key in zip(q[pair[0]], k[pair[1]], strict=True):
            scores = [dot(query, other) / 0.2 for other in [key, *queue]]
            terms.append(math.log(math.fsum(map(math.exp, scores))) - scores[0])
    return math.fsum(terms) / len(terms)


CASES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"enabled": False}, ["aa"]),
    ({}, {}, ["aa", "ab", "ba", "bb"]),
    ({"contrast_pairs": "plain"}, {}, ["aa"]),
    ({}, {"streams": "mixed_only"}, ["aa"]),
    ({}, {"attend": "self"}, ["aa", "ab", "ba", "bb"]),
]


@pytest.mark.parametrize(("hyper", "module", "pairs"), CASES, ids=str)
def test_the_loss_by_hand_over_three_steps(
    make: Any, batch: Any, hyper: dict[str, Any], module: dict[str, Any], pairs: list[str]
) -> None:
    method = known(make, hyper, **module)
    # The two encoders differ, as they will.
    with torch.no_grad():
        for parameter in [*method.key_network.parameters(), *method.key_head.parameters()]:
            parameter.mul_(0.9)
    held: list[list[float]] = []
    for step in range(3):
        part = shifted(batch, step)
        q, k = made_of(method, part["x"], False), made_of(method, part["view2"], True)
        losses = method.step(part)
        assert set(losses) == {"loss", "positive", "spread"}
        assert losses["loss"].item() == pytest.approx(by_hand(q, k, pairs, held[-48:]), abs=1e-9)
        cosines = [dot(query, key) for query, key in zip(q["a"], k["a"], strict=True)]
        assert losses["positive"].item() == pytest.approx(math.fsum(cosines) / N)
        plain = torch.tensor(q["a"], dtype=torch.float64)
        spread = plain.std(0, correction=0).mean()
        assert losses["spread"].item() == pytest.approx(spread.item())
        held += [row for stream in sorted(k) for row in k[stream]]
    assert losses["loss"] > 0


@pytest.mark.parametrize("enqueued", ["both", "plain", "mixed"])
def test_the_queue_keeps_the_newest_of_its_streams(make: Any, batch: Any, enqueued: str) -> None:
    method = known(make, {"enqueued": enqueued, "queue": 24})
    chosen = {"both": "ab", "plain": "a", "mixed": "b"}[enqueued]
    ring: list[list[float] | None] = [None] * 24
    place = 0
    for step in range(4):
        part = shifted(batch, step)
        keys = made_of(method, part["view2"], True)
        method.step(part)
        for row in [row for stream in chosen for row in keys[stream]]:
            ring[place] = row
            place = (place + 1) % 24
        assert int(method.queue.position) == place
        for index, wanted in enumerate(ring):
            assert bool(method.queue.valid[index]) == (wanted is not None)
            if wanted is not None:
                assert method.queue.keys[index].tolist() == pytest.approx(wanted, abs=1e-9)


def test_the_baseline_enqueues_its_only_stream(make: Any, batch: Any) -> None:
    for enqueued in ("both", "mixed"):
        method = known(make, {"enqueued": enqueued}, enabled=False)
        method.step(shifted(batch, 0))
        assert int(method.queue.position) == N


def test_the_sum_is_of_four_terms(make: Any, batch: Any) -> None:
    def loss(scale: str, pairs: str = "all") -> float:
        method = known(make, {"contrast_pairs": pairs}, loss_scale=scale)
        method.step(shifted(batch, 0))
        return method.step(shifted(batch, 1))["loss"].item()  # type: ignore[no-any-return]

    assert loss("sum") == pytest.approx(4 * loss("mean"))
    assert loss("sum", "plain") == pytest.approx(loss("mean", "plain"))


def test_a_step_leaves_gradients_that_the_queue_had_a_part_in(make: Any, batch: Any) -> None:
    """New keys enter the queue before the backward pass, which needs it as it was."""
    method = known(make)
    method.step(shifted(batch, 0))
    part = shifted(batch, 1)
    weight = method.head[2].weight
    method.step(part)["loss"].backward()
    slope = weight.grad[1, 3].item()
    state = {k: v.clone() for k, v in known(make).state_dict().items()}
    values = []
    for shift in (1e-5, -1e-5):
        other = known(make)
        other.load_state_dict(state)
        other.step(shifted(batch, 0))
        with torch.no_grad():
            other.head[2].weight[1, 3] += shift
        values.append(other.step(part)["loss"].item())
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)


def test_the_head_has_biases_and_no_normalisation(make: Any) -> None:
    head = make("moco_v2", {**HYPER, "projection_layers": 3}).head
    kinds = [type(part) for part in head]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert head[0].weight.shape == (16, 64) and head[4].bias.shape == (4,)


@pytest.mark.parametrize("kind", ["first_release", "readme"])
def test_lists_of_the_other_moco_are_refused(make: Any, kind: str) -> None:
    with pytest.raises(
        ValueError, match=f"contrast-pairs {kind} is a list of the released MoCo-v3"
    ):
        make("moco_v2", {**HYPER, "contrast_pairs": kind})
    make("moco_v2", {**HYPER, "contrast_pairs": kind}, enabled=False)


def test_it_learns_to_tell_its_images_apart(make: Any, batch: Any) -> None:
    method = make("moco_v2", HYPER).train()
    optimizers = method.optimizers(OptimConfig(lr=0.05))
    same = {**batch, "view2": batch["x"]}
    torch.manual_seed(0)
    losses = []
    for _ in range(40):
        losses.append(
            method.update(same, optimizers, OptimizerStep(TrainConfig(), torch.device("cpu")))
        )
        method.after_update()
    assert losses[-1]["spread"] > 0.1
    assert all(value["loss"].isfinite() for value in losses)


#: Rows of a part, of the ten that a batch has.
HALF = N // 2


def normalised_in(make: Any, parts: int, **module: Any) -> Any:
    """Two encoders that differ, in double precision, in training."""
    method = make("moco_v2", {**HYPER, "norm_parts": parts}, dropout=0.0, **module)
    with torch.no_grad():
        for parameter in [*method.key_network.parameters(), *method.key_head.parameters()]:
            parameter.mul_(0.9)
    return method.double().train()


def of_parts(method: Any, network: Any, x: Tensor, parts: list[Tensor]) -> Tensor:
    """Features (N, C) of a network that sees one part of the rows at a time."""
    features: Any = [None] * N
    for rows in parts:
        made = copy.deepcopy(network).forward_features(x[rows])
        for row, feature in zip(rows.tolist(), made, strict=True):
            features[row] = feature
    return torch.stack(features)


@pytest.mark.parametrize("enabled", [False, True])
def test_parts_are_what_a_loop_over_them_computes(make: Any, batch: Any, enabled: bool) -> None:
    method, plain = (normalised_in(make, parts, enabled=enabled) for parts in (2, 1))
    plain.queue.push(torch.eye(4).double(), torch.zeros(4, dtype=torch.int64))
    method.load_state_dict(plain.state_dict())
    part = shifted(batch, 0)
    torch.manual_seed(3)
    order = torch.rand(N).argsort()
    contiguous = [torch.arange(HALF), torch.arange(HALF, N)]
    # A copy of the network has gradients of its own: the loop's are taken from one that is shared.
    shared = plain.network
    features = torch.cat([shared.forward_features(part["x"][rows]) for rows in contiguous])
    keys = of_parts(plain, plain.key_network, part["view2"], [order[0::2], order[1::2]])
    plain.features = lambda _: features
    plain.keys = lambda _: plain.key_head(plain.streams(keys)).detach()
    expected = plain.step(part)
    expected["loss"].backward()
    torch.manual_seed(3)
    found = method.step(part)
    found["loss"].backward()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    torch.testing.assert_close(method.queue.keys, plain.queue.keys)
    wanted = dict(plain.named_parameters())
    for name, parameter in method.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, wanted[name].grad, msg=name)
    assert any(p.grad is not None for p in method.network.parameters())


def through_front(head: Any, streams: Tensor, parts: list[Tensor]) -> Tensor:
    """What a head with a front makes of streams (S * N, C), normalised one part at a time."""
    first = streams @ head[0].weight.T + head[0].bias
    rows = first.view(-1, N, first.shape[1]).clone()
    for part in parts:
        own = rows[:, part].flatten(0, 1)
        centred = own - own.mean(0)
        scaled = centred / (own.var(0, unbiased=False) + 1e-5).sqrt()
        rows[:, part] = scaled.view(len(rows), len(part), -1)
    made: Tensor = head[3:](rows.flatten(0, 1).relu())
    return made


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("enabled", [False, True])
def test_all_arms_may_have_a_front_that_is_normalised_in_the_same_parts(
    make: Any, batch: Any, enabled: bool, count: int
) -> None:
    hyper = {**HYPER, "projection_front": True, "norm_parts": count}
    method = make("moco_v2", hyper, dropout=0.0, enabled=enabled).double().train()
    plain = make("moco_v2", {**hyper, "norm_parts": 1}, enabled=enabled).double().train()
    plain.load_state_dict(method.state_dict())
    x = batch["x"].double()
    with torch.no_grad():
        wanted = method.streams(method.features(x))
        contiguous = list(torch.arange(N).chunk(count))
        expected = through_front(method.head, wanted, contiguous)
        torch.testing.assert_close(method.queries(x), expected)
        order = torch.randperm(N) if count > 1 else torch.arange(N)
        parts = [order[part::count] for part in range(count)]
        keys = method.streams(of_parts(plain, plain.key_network, x, parts))
        expected = F.normalize(through_front(method.key_head, keys, parts)).view(-1, N, 4)
        found = method.key_streams(x, order if count > 1 else None)
        torch.testing.assert_close(torch.stack(list(found.values())), expected)


def test_parts_of_keys_are_dealt_anew_and_of_queries_are_not(make: Any, batch: Any) -> None:
    method, x = normalised_in(make, 2, enabled=False), batch["x"].double()
    with torch.no_grad():
        assert torch.equal(method.features(x), method.features(x))
        streams = [method.key_streams(x, draw_order(x, 2))["plain"] for _ in range(2)]
    assert not torch.allclose(*streams)
    method.eval()
    with torch.no_grad():
        torch.testing.assert_close(method.predict(x[:3]), method.predict(x)[:3])
        streams = [method.key_streams(x, draw_order(x, 2))["plain"] for _ in range(2)]
    torch.testing.assert_close(*streams)


def test_arms_deal_keys_alike(make: Any, batch: Any) -> None:
    orders = []
    for enabled in (False, True):
        method = make("moco_v2", {**HYPER, "norm_parts": 2}, enabled=enabled).train()
        seen = method.key_streams

        def watch(x: Tensor, order: Tensor, seen: Any = seen) -> Any:
            orders.append(order)
            return seen(x, order)

        method.key_streams = watch
        torch.manual_seed(5)
        method.step(batch)
    assert torch.equal(*orders)


def test_batches_without_parts_of_one_size_are_refused(make: Any, batch: Any) -> None:
    with pytest.raises(ValueError, match="a batch of 10 rows cannot be divided into 4 equal parts"):
        make("moco_v2", {**HYPER, "norm_parts": 4}).train().step(batch)


@pytest.mark.parametrize(("ranks", "own"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_ranks_share_the_parts_of_imagenets_recipe(
    ranks: int, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MoCo's authors train on 8 GPUs, so that 32 samples are normalised together."""
    recipe = find_recipe("imagenet_moco_v2")
    monkeypatch.setattr(shuffled_norm, "world_size", lambda: ranks)
    assert shuffled_norm.parts_of_rank(recipe.hyper.norm_parts) == own
    assert recipe.train.batch_size // ranks // own == 32
    assert shuffled_norm.parts_of_rank(1) == 1


def test_ranks_that_parts_cannot_be_divided_among(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled_norm, "world_size", lambda: 16)
    with pytest.raises(
        ValueError, match=r"8 cannot be divided among 16 ranks: set a multiple of 16, or 1"
    ):
        shuffled_norm.parts_of_rank(8)
    assert shuffled_norm.parts_of_rank(16) == 1
