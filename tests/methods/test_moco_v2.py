"""MoCo-v2: its loss number by number, and what enters the queue."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.engine.config import OptimConfig, TrainConfig
from batchformer.engine.mechanics import Mechanics

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
            method.update(same, optimizers, Mechanics(TrainConfig(), torch.device("cpu")))
        )
        method.after_update()
    assert losses[-1]["spread"] > 0.1
    assert all(value["loss"].isfinite() for value in losses)
