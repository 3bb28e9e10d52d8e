"""IRM's loss by hand, its groupings, and when its weight sets in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def in_eval_norms(method: Any) -> Any:
    method.network.eval()
    return method


def penalty_of(domains: list[tuple[Tensor, Tensor]]) -> Tensor:
    products = []
    for z, y in domains:
        slopes = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            w = torch.ones((), requires_grad=True)
            loss = F.cross_entropy(w * z[half], y[half])
            slopes += torch.autograd.grad(loss, w, create_graph=True)
        products.append(slopes[0] * slopes[1])
    return torch.stack(products).mean()


@pytest.mark.parametrize("grouping", ["by_domain", "official"])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_loss_and_its_gradients_by_hand(
    make: Any, batch: Any, grouping: Any, enabled: bool
) -> None:
    hyper = {"penalty": 2.0, "irm_grouping": grouping}
    method = in_eval_norms(make("irm", hyper, {"groups": 2}, dropout=0.0, enabled=enabled))
    plain, y = method.network.forward_features(batch["x"]), batch["y"]
    rows = torch.cat((plain, method.encoder.mix(plain))) if enabled else plain
    labels = y.repeat(len(rows) // 10)
    z = method.network.fc(rows)
    if not enabled:
        picks = [range(5), range(5, 10)]
    elif grouping == "by_domain":
        picks = [[*range(5), *range(10, 15)], [*range(5, 10), *range(15, 20)]]
    else:
        picks = [range(10), range(10, 20)]
    penalty = penalty_of([(z[list(p)], labels[list(p)]) for p in picks])
    ce = F.cross_entropy(z, labels)
    losses = method.step(batch)
    torch.testing.assert_close(losses["ce"], ce)
    torch.testing.assert_close(losses["penalty"], penalty)
    torch.testing.assert_close(losses["loss"], ce + 2 * penalty)
    parameters = [p for p in method.parameters() if p.requires_grad]
    own = torch.autograd.grad(losses["loss"], parameters)
    expected = torch.autograd.grad(ce + 2 * penalty, parameters)
    for a, b in zip(own, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_groupings_differ_with_two_streams_alone(make: Any, batch: Any) -> None:
    def penalty(grouping: str, **module: Any) -> Tensor:
        hyper = {"irm_grouping": grouping}
        method = in_eval_norms(make("irm", hyper, {"groups": 2}, dropout=0.0, **module))
        value: Tensor = method.step(batch)["penalty"]
        return value

    assert not torch.isclose(penalty("official"), penalty("by_domain"), rtol=1e-3)
    for module in ({"enabled": False}, {"streams": "mixed_only"}):
        assert torch.equal(penalty("official", **module), penalty("by_domain", **module))


def test_the_weight_sets_in_and_is_a_phase(make: Any, batch: Any) -> None:
    hyper = {"penalty": 5.0, "penalty_from": 2}
    method = in_eval_norms(make("irm", hyper, {"groups": 2}, dropout=0.0))
    phases = []
    for epoch in (0, 1, 2, 9, 0):
        method.begin_epoch(epoch)
        phases.append(method.phase())
        losses = method.step(batch)
        torch.testing.assert_close(
            losses["loss"], losses["ce"] + method.phase() * losses["penalty"]
        )
    assert phases == [1.0, 1.0, 5.0, 5.0, 1.0]


def test_without_a_delay_the_weight_is_there_from_the_start(make: Any) -> None:
    assert make("irm", {"penalty": 5.0}, {"groups": 2}).phase() == 5.0
    assert make("irm", {"penalty": 5.0, "penalty_from": 1}, {"groups": 2}).phase() == 1.0


def test_resumed_equals_unbroken_across_the_change(make: Any, assert_resumes: Any) -> None:
    hyper = {"penalty": 5.0, "penalty_from": 3}
    assert_resumes(lambda: make("irm", hyper, {"groups": 2}))
