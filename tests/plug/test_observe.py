"""The experiments that check makes."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import BatchFormer, attach, check, export
from batchformer.plug.batches import (
    FEW,
    few_samples,
    fill_up,
    replace_sample,
    source_of,
)
from batchformer.plug.example import as_batch
from batchformer.plug.noise import gates_open, without_noise, zero_matrices
from batchformer.plug.observe import Experiment, equal_pairs, moved
from batchformer.plug.outputs import as_rows, find_layout


def test_moved_ignores_rounding_and_looks_at_every_output() -> None:
    before = [torch.randn(5, 4), 1e3 * torch.randn(5, 2)]
    after = [t.clone() for t in before]
    after[0][0] += 1
    after[0][3] *= 1 + 1e-7
    after[1][4] += 1
    assert moved(before, after).tolist() == [True, False, False, False, True]


def test_equal_rows_are_found_up_to_rounding() -> None:
    x = torch.randn(4, 3)
    x[2] = x[0] * (1 + 1e-7)
    expected = torch.eye(4).bool()
    expected[0, 2] = expected[2, 0] = True
    assert torch.equal(equal_pairs([x]), expected)
    assert equal_pairs([x, torch.arange(4.0)[:, None]]).sum() == 4


def test_a_few_samples_are_taken_and_the_replaced_one_differs_from_its_source() -> None:
    model = nn.Linear(2, 2)
    x = torch.zeros(10, 2)
    x[7] = 1.0
    few = few_samples(model, x, 0)
    assert few.rows == FEW
    changed = replace_sample(few, 0)
    assert not torch.equal(few.args[0][0], changed.args[0][0])
    assert torch.equal(few.args[0][1:], changed.args[0][1:])
    turned = few_samples(nn.Linear(10, 2), x.T.contiguous(), 1)
    assert turned.args[0].shape == (2, FEW) and turned.axis == 1


class TakesAList(nn.Module):
    """A list of images as detectors take it, or of features of several scales."""

    def __init__(self, samples: bool, rows: bool = True) -> None:
        super().__init__()
        self.linear, self.samples, self.rows = nn.Linear(8, 2), samples, rows

    def forward(self, parts: list[Tensor]) -> Any:
        if self.samples:
            parts = [torch.stack([part.sum(0) for part in parts if len(part) == 3])]
        out = sum(self.linear(part) for part in parts)
        return out if self.rows else {"loss": out.mean()}  # type: ignore[union-attr]


@pytest.mark.parametrize("n", [3, 6])
@pytest.mark.parametrize("as_argument", [True, False])
def test_a_list_of_samples_is_told_from_a_list_of_tensors_with_rows(
    n: int, as_argument: bool
) -> None:
    images = list(torch.randn(n, 3, 8))
    few = few_samples(TakesAList(samples=True), (images,) if as_argument else images, 0)
    assert few.rows == len(few.args[0]) == min(n, FEW)
    assert all(any(torch.equal(part, image) for image in images) for part in few.args[0])
    changed = replace_sample(few, 0).args[0]
    assert torch.equal(changed[0], few.args[0][source_of(0, few.rows)])
    assert all(map(torch.equal, changed[1:], few.args[0][1:]))
    scales = ([torch.randn(n, 8), torch.randn(n, 8)],)
    few = few_samples(TakesAList(samples=False), scales, 0)
    assert few.rows == min(n, FEW) and {len(part) for part in few.args[0]} == {few.rows}


class OfLevels(nn.Module):
    """Reads a list of feature maps, and a list of their strides."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 16) for _ in range(levels))
        self.head = nn.Linear(16, 3)

    def forward(self, features: list[Tensor], strides: list[int] | None = None) -> Tensor:
        strides = strides or [1] * len(features)
        parts = zip(self.layers, features, strides, strict=True)
        return self.head(sum(layer(x / stride) for layer, x, stride in parts))


@pytest.mark.parametrize(("n", "strides"), [(3, []), (4, []), (6, [1, 2, 4, 8])])
def test_as_many_parts_as_samples_are_no_samples(n: int, strides: list[int]) -> None:
    """Of six samples four are taken, as many as there are levels."""
    features = [torch.randn(n, 8) for _ in range(min(n, 4))]
    batch = (features, strides) if strides else (features,)
    model = attach(OfLevels(len(features)), example=batch, verbose=False)
    for given in (batch, {"features": features, "strides": strides}):
        result = check(model, given)
        assert result, str(result)
    assert check(model) and export(model)


class OfPrototypes(nn.Module):
    """Compares features with a table that has a row for each class."""

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return x @ table.T


@pytest.mark.parametrize("n", [3, FEW, 6])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_table_as_long_as_the_few_samples_is_left_alone(n: int, by_name: bool) -> None:
    x, table = torch.randn(n, 8), torch.randn(FEW, 8)
    model = OfPrototypes()
    few = fill_up(model, few_samples(model, {"x": x, "table": table} if by_name else (x, table), 0))
    changed = replace_sample(few, 0)
    rows, same = changed.kwargs.values() if by_name else changed.args
    assert torch.equal(same, table) and torch.equal(rows[0], rows[source_of(0, FEW)])


def test_a_list_of_samples_without_rows_gets_a_clear_word() -> None:
    with pytest.raises(TypeError, match=r"a list of 6 samples, and gives no tensor with a row"):
        few_samples(TakesAList(samples=True, rows=False), list(torch.randn(6, 3, 8)), 0)


def test_rows_of_nested_arguments_are_cut_and_replaced() -> None:
    class Pair(NamedTuple):
        first: Tensor
        scale: float

    x, same = torch.arange(12.0).reshape(6, 2), torch.zeros(6, 2)
    nest = UserDict(a=[x, 3], b=(Pair(2 * x, 0.5), list("abcdef")))  # as tokenizers give it

    class Nested(nn.Module):
        def forward(self, x: Tensor, nest: Any) -> Tensor:
            return x + nest["a"][0] + nest["b"][0].first

    few = few_samples(Nested(), {"x": same, "nest": nest}, 0)  # they differ inside the nest alone
    inside = few.kwargs["nest"]
    assert few.rows == FEW and inside["a"][1] == 3 and inside["b"][0].scale == 0.5
    torch.testing.assert_close(inside["b"][0].first, 2 * inside["a"][0])
    after = replace_sample(few, 0).kwargs["nest"]
    assert torch.equal(after["a"][0][0], inside["a"][0][2])
    assert after["b"][1] == [inside["b"][1][row] for row in (2, 1, 2, 3)]


def test_the_first_error_is_raised_if_the_model_takes_the_pair_and_fails() -> None:
    class Needs(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            raise RuntimeError("lengths must be sorted")

    with pytest.raises(RuntimeError, match="lengths must be sorted"):
        few_samples(Needs(), (torch.randn(3, 2), torch.arange(3)), 0)


def test_labels_that_came_along_are_left_out() -> None:
    x, y = torch.randn(6, 2), torch.arange(6)
    assert len(few_samples(nn.Linear(2, 2), (x, y), 0).args) == 1
    kept = few_samples(nn.Bilinear(2, 9, 2), {"input1": x, "labels": y, "input2": torch.ones(9)}, 0)
    assert {key: len(value) for key, value in kept.kwargs.items()} == {"input1": FEW, "input2": 9}


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.head(self.body(x))
        return logits if targets is None else (logits, F.cross_entropy(logits, targets))


def test_labels_for_a_loss_inside_the_model_are_left_out_once_rows_double() -> None:
    x, y = torch.randn(6, 2), torch.arange(6)
    model = WithLoss()
    with pytest.raises(ValueError, match=r"\(6\)\. The layers.*contains labels, leave them out"):
        attach(model, example=(x, y), verbose=False)
    assert len(few_samples(model, (x, y), 0).args) == 2
    attach(model, verbose=False)
    assert len(few_samples(model, (x, y), 0).args) == 1
    assert check(model, (x, y))


@pytest.mark.parametrize(
    ("one", "many", "train", "rows"),
    [
        ((1, 5), (4, 5), (8, 5), (8, 5)),
        ((8, 1, 2), (8, 4, 2), (8, 8, 2), (8, 16)),  # (L, N, K) with L = 2N
        ((7, 5), (28, 5), (56, 5), (8, 35)),  # tokens in one axis with the samples
        ((2, 5), (8, 5), (8, 5), (8, 5)),  # two streams in eval as well
        ((1,), (4,), (8,), (8, 1)),
    ],
)
def test_rows_are_found_by_what_grows_with_the_batch(
    one: tuple[int, ...], many: tuple[int, ...], train: tuple[int, ...], rows: tuple[int, int]
) -> None:
    layout = find_layout([torch.zeros(one)], [torch.zeros(many)], (1, 4))
    assert as_rows([torch.zeros(train)], 4, layout)[0].shape == rows


def test_without_eval_outputs_rows_are_found_by_their_number() -> None:
    assert as_rows([torch.zeros(6, 2, 3)], 3, [])[0].shape == (6, 6)
    assert as_rows([torch.zeros(9, 6, 2)], 3, [])[0].shape == (6, 18)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU())
        self.bare = nn.BatchNorm1d(8, track_running_stats=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bare(self.body(x)))


def test_noise_is_held_and_comes_back() -> None:
    torch.manual_seed(0)
    model = attach(Noisy(), verbose=False)
    encoder: BatchFormer = model.head.batchformer
    batch = few_samples(model, torch.randn(5, 4), 0)
    kept = (model.body[1].momentum, model.bare.running_mean, model.bare.track_running_stats)
    with without_noise(model, batch):
        assert encoder.dropout == 0.0 and encoder.training and not model.body[2].training
        experiment = Experiment(model, batch, [encoder])
        a, b, c = experiment.run(), experiment.run(), experiment.run(replace_sample(batch, 0))
    assert torch.equal(a.outputs[0], b.outputs[0]) and not a.noisy
    assert moved(a.rows, c.rows).tolist() == [True, False, False, False] + [True] * 4
    assert encoder.dropout == 0.5
    assert kept == (model.body[1].momentum, model.bare.running_mean, model.bare.track_running_stats)


class CallsDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.5, self.training) + torch.dropout(x, 0.5, self.training)
        first = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return first + F.scaled_dot_product_attention(x, x, x, None, 0.5)


def test_dropout_that_is_called_as_a_function_is_off() -> None:
    model, x = CallsDropout(), torch.randn(FEW, 3, 8)
    with without_noise(model, as_batch(x)):
        held = Experiment(model, as_batch(x), []).run()
    assert not held.noisy
    torch.testing.assert_close(
        held.outputs[0], 2 * F.scaled_dot_product_attention(2 * x, 2 * x, 2 * x)
    )
    assert not torch.equal(model(x), held.outputs[0])  # on again


def test_held_norms_normalise_by_the_batch() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=0.1))
    x = 100 + 50 * torch.randn(FEW, 3)
    with without_noise(model, as_batch(x)):
        held = model(x)
    torch.testing.assert_close(held, (x - x.mean(0)) / x.std(0), rtol=1e-3, atol=1e-3)


def test_zero_matrices_are_filled_for_a_while_but_not_those_of_an_encoder() -> None:
    model = nn.Sequential(nn.Linear(3, 2), BatchFormer(4))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    zeros = zero_matrices(model)
    with gates_open(matrix for _, matrix in zeros):
        assert [name for name, _ in zeros] == ["0.weight"]
        assert model[0].weight.all() and not model[0].bias.any()
    assert not any(p.any() for p in model.parameters())
