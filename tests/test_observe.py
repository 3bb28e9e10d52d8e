"""The looking itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer import BatchFormer, attach
from batchformer.observe import attention_alone, moved_rows, observe, reached_by, rows_of, with_copy
from batchformer.probe import as_batch


def test_moved_rows_counts_all_but_the_first_and_ignores_rounding() -> None:
    before = torch.randn(5, 4)
    after = before.clone()
    after[0] += 1
    after[3] += 1e-3
    after[4] *= 1 + 1e-7
    assert moved_rows(before, after) == 1


def test_the_copy_differs_from_what_it_replaces() -> None:
    x = torch.tensor([[1.0], [1.0], [2.0]])
    changed = with_copy(as_batch({"x": x, "scale": torch.ones(7)}))
    assert changed.kwargs["x"].tolist() == [[2.0], [1.0], [2.0]]
    assert changed.kwargs["scale"].shape == (7,)
    turned = with_copy(as_batch(x.T, axis=1))
    assert turned.args[0].tolist() == [[2.0, 1.0, 2.0]]
    with pytest.raises(ValueError, match="samples that differ"):
        with_copy(as_batch(torch.ones(3, 2)))


def test_rows_are_found_on_either_axis() -> None:
    assert rows_of(torch.zeros(6, 2, 3), 3).shape == (6, 6)
    assert rows_of(torch.zeros(9, 6, 2), 3).shape == (6, 18)
    assert rows_of({"logits": torch.zeros(4)}, 4).shape == (4, 1)
    with pytest.raises(TypeError, match="no floating-point tensor"):
        rows_of("nothing", 3)


def test_nothing_is_random_while_looking_and_rates_come_back() -> None:
    model = attach(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)), verbose=False)
    encoder: BatchFormer = model[2].batchformer
    batch = as_batch(torch.randn(5, 4))
    with attention_alone(model, [encoder], attached=True):
        assert encoder.dropout == 0.0 and encoder.training and not model[1].training
        a, rows = observe(model, [encoder], batch)
        b, _ = observe(model, [encoder], batch)
    assert rows == 10 and encoder.dropout == 0.5
    assert torch.equal(a.mixed, b.mixed) and a.plain is not None and a.plain.shape == (5, 8)


def test_which_parameters_have_a_gradient() -> None:
    used, unused = nn.Linear(3, 2), nn.Linear(3, 2)
    parameters = [*used.parameters(), *unused.parameters()]
    assert reached_by([used(torch.randn(4, 3))], parameters) == [True, True, False, False]
    assert reached_by([torch.zeros(2)], parameters) == [False] * 4
    assert all(p.grad is None for p in parameters)
