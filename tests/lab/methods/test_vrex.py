"""V-REx's loss by hand, and when its weight sets in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize("groups", [2, 5])
def test_the_loss_by_hand(make: Any, batch: Any, streams: str, groups: int) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = make("vrex", {"penalty": 3.0}, {"groups": groups}, dropout=0.0, **module)
    method.network.eval()
    plain = method.network.forward_features(batch["x"])
    mixed = plain if streams == "none" else method.encoder.mix(plain)
    parts = (plain, mixed) if streams == "shared" else (mixed,)
    losses = [
        F.cross_entropy(method.network.fc(rows), batch["y"], reduction="none") for rows in parts
    ]
    n = 10 // groups
    domains = [
        sum(loss[g * n : (g + 1) * n].sum() for loss in losses) / (n * len(losses))
        for g in range(groups)
    ]
    mean = sum(domains) / groups
    variance = sum((d - mean) ** 2 for d in domains) / groups
    got = method.step(batch)
    # The mean over all rows is the mean of the domains' means, as blocks are equal.
    torch.testing.assert_close(got["ce"], mean)
    torch.testing.assert_close(got["penalty"], variance)
    torch.testing.assert_close(got["loss"], mean + 3 * variance)


def test_the_variance_does_not_weigh_the_streams(make: Any, batch: Any) -> None:
    def losses(**module: Any) -> Any:
        method = make("vrex", {}, {"groups": 2}, dropout=0.0, **module)
        method.network.eval()
        return method.step(batch)

    even, plain_alone = losses(), losses(mixed_weight=0.0)
    torch.testing.assert_close(even["penalty"], plain_alone["penalty"])
    assert not torch.isclose(even["ce"], plain_alone["ce"])


def test_the_weight_sets_in_and_is_a_phase(make: Any) -> None:
    method = make("vrex", {"penalty": 3.0, "penalty_from": 1}, {"groups": 2})
    phases = []
    for epoch in (0, 1, 0):
        method.begin_epoch(epoch)
        phases.append(method.phase())
    assert phases == [1.0, 3.0, 1.0]


def test_resumed_equals_unbroken_across_the_change(make: Any, assert_resumes: Any) -> None:
    hyper = {"penalty": 3.0, "penalty_from": 3}
    assert_resumes(lambda: make("vrex", hyper, {"groups": 2}))
