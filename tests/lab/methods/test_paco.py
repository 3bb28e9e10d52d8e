"""PaCo against its loss composed by hand, its two encoders and its queue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.losses.paco import paco

COUNTS = torch.tensor([50, 20, 10, 5, 1])
HYPER = {"queue": 16, "dim": 4, "alpha": 0.1, "temperature": 0.2, "momentum": 0.9}


def projected(projection: Any, rows: Tensor) -> Tensor:
    hidden = F.relu(projection.norm(projection.hidden(rows)))
    return F.normalize(projection.output(hidden), dim=1)


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
def test_the_loss_by_hand_over_three_updates(
    make: Any, batch: Any, streams: str, quiet: Any
) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = quiet(make("paco", HYPER, dropout=0.0, **module))
    held: list[tuple[Tensor, int]] = []

    def rows(features: Tensor) -> Tensor:
        if streams == "none":
            return features
        mixed = method.encoder.mix(features)
        return mixed if streams == "mixed_only" else torch.cat((features, mixed))

    for shift in (0.0, 0.5, 1.0):
        part = {**batch, "x": batch["x"] + shift, "view2": batch["view2"] - shift}
        queries = rows(method.network.forward_features(part["x"]))
        keys = projected(
            method.key_projection, rows(method.key_network.forward_features(part["view2"]))
        )
        y = batch["y"].repeat(2 if streams == "shared" else 1)
        newest = held[-16:]
        queue = torch.stack([k for k, _ in newest]) if newest else torch.zeros(0, 4)
        labels = torch.tensor([label for _, label in newest], dtype=torch.int64)
        expected = paco(
            projected(method.projection, queries),
            keys,
            queue,
            method.network.fc(queries),
            y,
            labels,
            COUNTS,
            alpha=0.1,
            temperature=0.2,
            queue_valid=torch.ones(len(newest), dtype=torch.bool),
        )
        torch.testing.assert_close(method.step(part)["loss"], expected)
        held += list(zip(keys.detach(), y.tolist(), strict=True))


def test_the_slower_encoder_and_projection_follow_after_each_update(
    make: Any, batch: Any, update: Any
) -> None:
    method = make("paco", HYPER)
    fast = [*method.network.parameters(), *method.projection.parameters()]
    slow = [*method.key_network.parameters(), *method.key_projection.parameters()]
    expected = [weight.double().clone() for weight in slow]
    for _ in range(3):
        update(method, batch, OptimConfig(lr=0.5))
        leading = [weight.detach().double() for weight in fast]
        expected = [0.9 * a + 0.1 * b for a, b in zip(expected, leading, strict=True)]
    for own, other, wanted in zip(slow, fast, expected, strict=True):
        torch.testing.assert_close(own.double(), wanted, rtol=1e-4, atol=1e-5)
        assert own is not other and not torch.equal(own, other)


def test_scales_are_of_the_mean_over_both_halves(make: Any, batch: Any, quiet: Any) -> None:
    def loss(**module: Any) -> Tensor:
        built: Tensor = quiet(make("paco", HYPER, dropout=0.0, **module)).step(batch)["loss"]
        return built

    torch.testing.assert_close(loss(loss_scale="sum"), 2 * loss())


def test_batches_without_parts_of_one_size_are_refused(make: Any, batch: Any) -> None:
    with pytest.raises(ValueError, match="a batch of 10 rows cannot be divided into 4 equal parts"):
        make("paco", {**HYPER, "norm_parts": 4}).train().step(batch)
