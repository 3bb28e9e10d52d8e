"""CORAL's loss by hand, with and without BatchFormer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from batchformer.lab.losses.domains import coral


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize("groups", [2, 5])
def test_the_loss_by_hand(make: Any, batch: Any, streams: str, groups: int) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = make("coral", {"penalty": 0.7}, {"groups": groups}, dropout=0.0, **module)
    method.network.eval()
    plain = method.network.forward_features(batch["x"])
    mixed = plain if streams == "none" else method.encoder.mix(plain)
    n = 10 // groups
    domains = []
    for g in range(groups):
        block = slice(g * n, (g + 1) * n)
        both = torch.cat((plain[block], mixed[block]))
        domains.append(both if streams == "shared" else mixed[block])
    penalty = coral(torch.stack(domains))
    rows = torch.cat((plain, mixed)) if streams == "shared" else mixed
    ce = F.cross_entropy(method.network.fc(rows), batch["y"].repeat(len(rows) // 10))
    losses = method.step(batch)
    assert set(losses) == {"loss", "ce", "penalty"}
    torch.testing.assert_close(losses["ce"], ce)
    torch.testing.assert_close(losses["penalty"], penalty)
    torch.testing.assert_close(losses["loss"], ce + 0.7 * penalty)


def test_scales_of_the_streams_are_of_the_cross_entropy_alone(make: Any, batch: Any) -> None:
    def losses(**module: Any) -> Any:
        method = make("coral", {"penalty": 1.0}, {"groups": 2}, dropout=0.0, **module)
        method.network.eval()
        return method.step(batch)

    mean, official = losses(), losses(loss_scale="official")
    torch.testing.assert_close(official["ce"], 3 * mean["ce"])
    torch.testing.assert_close(official["penalty"], mean["penalty"])


def test_the_penalty_sees_the_features_that_the_head_sees(make: Any, batch: Any) -> None:
    method = make("coral", {"feature_dropout": 0.5}, {"groups": 2}, enabled=False)
    method.network.eval()
    seen = []
    head = method.network.fc
    head.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    penalty = method.step(batch)["penalty"]
    torch.testing.assert_close(penalty, coral(seen[0].view(2, 5, 64)))
    assert (seen[0] == 0).float().mean() > 0.4


def test_the_weight_is_that_of_all_epochs(make: Any) -> None:
    method = make("coral", {"penalty": 0.3, "penalty_from": 5}, {"groups": 2})
    assert method.phase() == 0.3
    for epoch in (0, 4, 5):
        method.begin_epoch(epoch)
        assert method.phase() == 0.3


def test_domains_grow_alike(make: Any, batch: Any) -> None:
    """A heavy penalty draws the moments of two domains together; none lets them part."""

    def distance(penalty: float) -> float:
        torch.manual_seed(0)
        method = make("coral", {"penalty": penalty}, {"groups": 2}, enabled=False)
        x = torch.cat((batch["x"][:5], batch["x"][5:] + 2))
        optimizer = torch.optim.SGD(method.parameters(), 0.05)
        for module in method.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        for _ in range(30):
            losses = method.step({**batch, "x": x})
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
        return method.step({**batch, "x": x})["penalty"].item()

    assert distance(10.0) < 0.2 * distance(0.0)
