"""Influence by gradient against one backward pass for each loss, and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.gradient import batch_influence, feature_gradients, on_images
from batchformer.insight.relations import Relations
from batchformer.nn.module import BatchFormer

Images = tuple[Tensor, Tensor]
Make = Callable[..., Relations]


def joint_losses(relations: Relations, features: Tensor, labels: Tensor) -> Tensor:
    """Independent of the code under test: the module's own mix, and torch's cross-entropy."""
    assert relations.encoder is not None
    mixed = relations.classify(relations.encoder.mix(features))
    plain = relations.classify(features)
    logits = mixed if relations.mixed_only else (mixed + plain) / 2
    return F.cross_entropy(logits, labels, reduction="none")


def by_loops(relations: Relations, features: Tensor, labels: Tensor) -> Tensor:
    rows = []
    for i in range(len(labels)):
        leaf = features.detach().clone().requires_grad_()
        joint_losses(relations, leaf, labels)[i].backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        rows.append(leaf.grad)
    relations.module.zero_grad()
    return torch.stack(rows)


@pytest.mark.parametrize("mixed_only", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_are_those_of_one_loss_after_the_other(
    make_relations: Make, images: Images, mixed_only: bool, layers: int
) -> None:
    relations, (x, y) = make_relations(mixed_only, layers=layers), images
    features = relations.features(x).detach()
    expected = by_loops(relations, features, y)
    for block in (None, 1, 3, 7):
        got = torch.cat([part for _, part in feature_gradients(relations, features, y, block)])
        torch.testing.assert_close(got, expected)
    seen = batch_influence(relations, features, y)
    torch.testing.assert_close(seen.absolute, expected.abs().mean(2))
    torch.testing.assert_close(seen.length, expected.square().sum(2).sqrt())
    assert seen.absolute.fill_diagonal_(1).gt(0).all()


def test_the_control_in_which_nobody_meets_has_exactly_no_influence(
    make_relations: Make, images: Images
) -> None:
    relations, (x, y) = make_relations(attend="self"), images
    seen = batch_influence(relations, relations.features(x), y, steps=2)
    others = ~torch.eye(len(y), dtype=torch.bool)
    for values in (seen.absolute, seen.length, *seen.attention):
        assert torch.equal(values[others], torch.zeros_like(values[others]))
        assert values.diagonal().gt(0).all()
    assert not seen.following.any()


def test_dropout_is_off_in_training_too(make_relations: Make, images: Images) -> None:
    relations, (x, y) = make_relations(dropout=0.9), images
    features = relations.features(x).detach()
    calm = batch_influence(relations, features, y)
    relations.module.train()
    for _ in range(2):
        seen = batch_influence(relations, features, y)
        assert torch.equal(seen.absolute, calm.absolute)
        assert torch.equal(seen.attention, calm.attention)


def test_a_criterion_that_weighs_a_batch_is_asked_row_by_row(
    make_relations: Make, images: Images
) -> None:
    """The mean of torch's weighted loss divides by the weights of the batch; one row's cancels."""
    import dataclasses

    relations, (x, y) = make_relations(), images
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5, 2, 9]).double())
    other = dataclasses.replace(relations, loss=weighted)
    features = relations.features(x)
    expected, got = (batch_influence(r, features, y).absolute for r in (relations, other))
    torch.testing.assert_close(got, expected)


def test_gradients_on_images_are_those_of_one_loss_after_the_other(
    make_relations: Make, images: Images
) -> None:
    relations, (x, y) = make_relations(), images
    expected = []
    for i in range(len(y)):
        leaf = x.clone().requires_grad_()
        losses = joint_losses(relations, relations.features(leaf), y)
        expected.append(torch.autograd.grad(losses[i], leaf)[0])
    whole = torch.stack(expected)  # (N, N, 1, 6, 6)
    seen = batch_influence(relations, relations.features(x), y, steps=6)
    for block in (2, 7):
        absolute, length = on_images(relations, x, seen.following, block)
        assert absolute.shape == length.shape == (6, 7)
        for step in range(1, 7):
            for i in range(7):
                pair = whole[i, (i + step) % 7]
                torch.testing.assert_close(absolute[step - 1, i], pair.abs().mean())
                torch.testing.assert_close(length[step - 1, i], pair.norm())


def test_experts_are_positions_that_do_not_meet() -> None:
    """(N, E, C): the gradients of the mean over experts, by loops."""
    torch.manual_seed(1)
    encoder = BatchFormer(4, heads=2, batch_axis=1).double()
    heads = torch.randn(3, 4, 5, dtype=torch.float64)

    def classify(rows: Tensor) -> Tensor:
        return torch.einsum("nec,eck->nk", rows, heads) / 3

    loss = nn.CrossEntropyLoss()
    relations = Relations(encoder, lambda x: x, classify, loss, encoder)
    features, y = torch.randn(6, 3, 4, dtype=torch.float64), torch.arange(6) % 5
    expected = []
    for i in range(6):
        leaf = features.clone().requires_grad_()
        mixed = encoder.mix(leaf.transpose(0, 1)).transpose(0, 1)
        logits = (classify(mixed) + classify(leaf)) / 2
        expected.append(torch.autograd.grad(F.cross_entropy(logits[i], y[i]), leaf)[0])
    seen = batch_influence(relations, features, y, steps=1)
    flat = torch.stack(expected).flatten(2)
    torch.testing.assert_close(seen.absolute, flat.abs().mean(2))
    torch.testing.assert_close(seen.length, flat.norm(dim=2))
    torch.testing.assert_close(seen.following[0, 2], expected[1][2])
