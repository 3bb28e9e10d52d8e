"""IZF: the flow against its Jacobian, the losses by loops, and that unseen classes are learnt."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.losses.izf import centre_loss, flow_loss, negative_mmd
from batchformer.lab.methods import build_method
from batchformer.lab.models.flow import Flow, LinearMap
from helpers import linear_classes
from helpers.linear_classes import (
    ADAM,
    ATTRIBUTES,
    FEATURES,
    LABELS,
    SEEN,
    TRAINED,
    UNSEEN,
    changed,
    feed,
    generalized,
    optimizer_step,
    snapshot,
)

made = partial(linear_classes.made, "izf")


def batch(n: int = 16) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = feed(n, 1).batch(0)
    return rows


# The flow.


def trained_flow(channels: int, blocks: int = 3, deviation: float = 0.5) -> Flow:
    """A flow far from the identity."""
    torch.manual_seed(0)
    flow = Flow(channels, 16, blocks).double()
    for parameter in flow.parameters():
        nn.init.normal_(parameter, std=deviation)
    return flow


@pytest.mark.parametrize("channels", [2, 5, 6])
def test_the_log_determinant_is_that_of_the_jacobian(channels: int) -> None:
    flow, x = trained_flow(channels), torch.randn(4, channels, dtype=torch.float64)
    mapped, log_det = flow(x)
    for row in range(4):
        jacobian = torch.autograd.functional.jacobian(lambda one: flow(one[None])[0][0], x[row])  # type: ignore[no-untyped-call]
        torch.testing.assert_close(log_det[row], torch.linalg.slogdet(jacobian)[1])
    torch.testing.assert_close(flow.inverse(mapped), x)


def test_there_and_back_in_single_precision() -> None:
    flow = trained_flow(64, blocks=5, deviation=0.1).float()
    x = torch.randn(20, 64)
    with torch.autocast("cpu", torch.bfloat16):
        mapped, _ = flow(x)
        back = flow.inverse(mapped)
    assert mapped.dtype == torch.float32
    assert (back - x).abs().max() < 1e-4


def test_a_linear_map_starts_as_nearly_a_permutation() -> None:
    linear, x = LinearMap(7), torch.randn(4, 7)
    assert linear.matrix.abs().max() < 0.01
    nn.init.zeros_(linear.matrix)
    mapped, log_det = linear(x)
    assert not log_det.any() and torch.equal(linear.inverse(mapped), x)
    assert torch.equal(mapped.sort(1).values, x.sort(1).values) and not torch.equal(mapped, x)
    nn.init.normal_(linear.matrix, std=0.3)
    lower, upper = linear.triangles()
    assert torch.equal(lower, lower.tril()) and torch.equal(upper, upper.triu())
    mapped, log_det = linear(x)
    torch.testing.assert_close(mapped, x[:, linear.order] @ (lower @ upper).T)
    torch.testing.assert_close(log_det[0], torch.linalg.slogdet(lower @ upper)[1])


def test_a_flow_starts_with_standard_features() -> None:
    features = FEATURES * torch.linspace(1, 9, 12) - 3
    features[:, 4] = 7.0  # a channel that never changes
    flow = Flow(12, 16, 3)
    flow.standardise(features)
    mapped, _ = flow(features)
    # The couplings begin as nearly the identity.
    assert mapped.mean(0).abs().max() < 0.1
    spread = mapped.std(0, correction=0)
    assert ((spread - 1).abs() < 0.1).sum() == 11 and spread.min() < 0.1
    with pytest.raises(ValueError, match="two channels or more, got 1"):
        Flow(1, 16, 3)


# Losses.


def test_the_likelihood_of_a_flow() -> None:
    mapped, log_det = torch.randn(6, 5).double(), torch.randn(6).double()
    semantics = torch.randn(6, 2).double()
    expected = 0.0
    for y, c, d in zip(mapped, semantics, log_det, strict=True):
        of_class = MultivariateNormal(c, torch.eye(2).double()).log_prob(y[:2])
        free = MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double()).log_prob(y[2:])
        expected -= float(of_class + free + d) / 6
    assert flow_loss(mapped, log_det, semantics).item() == pytest.approx(expected)


def test_centres_by_a_loop() -> None:
    centres, x = torch.randn(4, 3).double(), torch.randn(7, 3).double()
    classes = torch.tensor([0, 2, 2, 0, 2, 3, 0])
    expected = sum(math.dist(centres[c], x[classes == c].mean(0)) for c in (0, 2, 3))
    centres.requires_grad_()
    loss = centre_loss(centres, x, classes)
    assert loss.item() == pytest.approx(expected)
    loss.backward()  # type: ignore[no-untyped-call]
    assert centres.grad is not None and not centres.grad[1].any(), "class 1 is not in the batch"
    exact = x[:1].clone().requires_grad_()
    centre_loss(exact, x[:1], torch.tensor([0])).backward()  # type: ignore[no-untyped-call]
    assert exact.grad is not None and exact.grad.isfinite().all()


def test_the_mmd_by_loops() -> None:
    real, other = torch.randn(2, 5, 3).double()

    def kernel(a: Tensor, b: Tensor) -> float:
        return 6 / (6 + math.dist(a, b) ** 2)

    between = sum(kernel(a, b) for a in real for b in other)
    inside = sum(
        kernel(rows[i], rows[j])
        for rows in (real, other)
        for i in range(5)
        for j in range(5)
        if i != j
    )
    assert negative_mmd(real, other).item() == pytest.approx(2 / 25 * between - inside / 20)
    other.requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: negative_mmd(real, rows), (other,))
    with pytest.raises(ValueError, match="at least two of each"):
        negative_mmd(real[:1], real[:1])


def test_products_are_not_of_half_precision() -> None:
    x, other, classes = torch.rand(9, 64), torch.rand(9, 64), torch.arange(9) % 4
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append((negative_mmd(x, other), centre_loss(other[:4], x, classes)))
    assert found[0] == found[1]


# The method.


def test_the_loss_by_hand() -> None:
    weights = {"likelihood": 3.0, "centring": 0.5, "separation": 0.7}
    method, rows = made(weights).train(), batch()
    x, y = rows["x"], rows["y"]
    attributes = 2 * math.sqrt(5) * F.normalize(ATTRIBUTES, dim=1)
    torch.manual_seed(4)
    found = method.step(rows)
    torch.manual_seed(4)
    other = UNSEEN[torch.randint(2, (16,))]
    fakes = method.flow.inverse(torch.cat((attributes[other], torch.randn(16, 7)), 1))
    mapped, log_det = method.flow(x)
    centres = method.flow.inverse(torch.cat((attributes[SEEN], torch.zeros(8, 7)), 1))
    places = torch.tensor([SEEN.tolist().index(c) for c in y.tolist()])
    flow = flow_loss(mapped, log_det, attributes[y])
    centre, apart = centre_loss(centres, x, places), negative_mmd(x, fakes)
    expected = {"loss": 3 * flow + 0.5 * centre + 0.7 * apart}
    expected |= {"flow": flow, "centre": centre, "apart": apart}
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_an_update_trains_the_flow_alone() -> None:
    method = made().train()
    optimizers, before = method.optimizers(ADAM), snapshot(method)
    method.update(batch(), optimizers, optimizer_step())
    assert changed(method, before) == {"flow"}
    (held,) = (g["params"] for g in optimizers["flow"].param_groups)
    assert {id(p) for p in held} == {id(p) for p in method.flow.parameters()}


def test_rows_of_the_classifier() -> None:
    method = made()
    rows, _ = method.classifier_rows()
    real = int(TRAINED.sum())
    assert rows.shape == (real + 2 * 40, 12) and torch.equal(rows[:real], FEATURES[TRAINED])
    mapped, _ = method.flow(rows[real:])
    wanted = method.attributes[UNSEEN.repeat_interleave(40)]
    torch.testing.assert_close(mapped[:, :5], wanted, atol=1e-4, rtol=1e-4)
    assert abs(mapped[:, 5:].mean()) < 0.2 and abs(mapped[:, 5:].std() - 1) < 0.2


def test_unseen_classes_come_to_be_known() -> None:
    method = made({"flow_blocks": 2, "classifier_epochs": 8, "classifier_lr": 0.01}).train()
    optimizers, batches = method.optimizers(replace(ADAM, lr=3e-3)), feed(64, 1)
    torch.manual_seed(0)
    for step in range(100):
        method.update(batches.batch(step), optimizers, optimizer_step())
    method.before_evaluation()
    tested = generalized(method)
    assert tested["unseen"] > 30 and tested["seen"] > 50, tested


def test_features_without_a_free_part_are_refused() -> None:
    with pytest.raises(ValueError, match="12 channels of features leave none beside 12 attributes"):
        build_method(
            "izf",
            features=FEATURES,
            labels=LABELS,
            attributes=torch.randn(10, 12),
            seen=SEEN,
            unseen=UNSEEN,
            module=ModuleConfig(),
            seed=0,
        )
