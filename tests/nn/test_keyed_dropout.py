"""Masks that are functions of their coordinates: they have to look like independent coins."""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.nn.exchange import STEPS, KeyedDropout, random_bits

MASK = 2**64 - 1


def reference(seed: int, *coordinates: int) -> int:
    """The same number in Python's integers, which never wrap around by themselves."""
    state = seed
    for number in coordinates:
        x = (state + (number + 1) * 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        state = x ^ (x >> 31)
    return state >> 32


@given(
    seed=st.integers(0, 2**62 - 1),
    layer=st.integers(0, 40),
    place=st.integers(0, 3),
    first=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
)
@settings(max_examples=30, deadline=None)
def test_bits_are_those_of_exact_integers(
    seed: int, layer: int, place: int, first: tuple[int, int]
) -> None:
    found = random_bits(torch.tensor(seed), layer, place, torch.Size((2, 2, 3, 2)), first)
    for a, b, row, column in itertools.product(range(2), range(2), range(3), range(2)):
        expected = reference(seed, layer, place, first[0] + row, 2 * a + b, first[1] + column)
        assert int(found[a, b, row, column]) == expected


@pytest.mark.slow  # the C++ compiler takes seconds
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_bits_are_the_same() -> None:
    seed, shape = torch.tensor(7), torch.Size((4, 3))
    compiled = torch.compile(random_bits, dynamic=False)
    assert torch.equal(compiled(seed, 0, 1, shape, (2, 0)), random_bits(seed, 0, 1, shape, (2, 0)))


def kept(probability: float = 0.5, seed: int = 3, layer: int = 0, place: int = 0) -> Tensor:
    """A mask (2, 300, 400), as numbers."""
    dropout = KeyedDropout(probability, torch.tensor(seed), layer)
    return (dropout(torch.ones(2, 300, 400, dtype=torch.float64), place=place) > 0).double()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for(probability: float) -> None:
    mask = kept(probability)
    deviation = (probability * (1 - probability)) ** 0.5
    assert abs(mask.mean() - (1 - probability)) < 4 * deviation / mask.numel() ** 0.5
    for axis in (1, 2):
        coins = 2 * mask.shape[axis]
        spread = mask.mean(dim=(0, axis)).std() / (deviation / coins**0.5)
        assert 0.8 < spread < 1.2, "lines of coins differ as coins do"


def test_whatever_is_kept_is_scaled_to_the_same_mean() -> None:
    dropped = KeyedDropout(0.3, torch.tensor(1))(torch.ones(500, 500), place=2)
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert abs(dropped.mean() - 1) < 4 * (0.3 / 0.7 / 250_000) ** 0.5


def correlation(a: Tensor, b: Tensor) -> float:
    """In units of its deviation for independent coins."""
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]) * a.numel() ** 0.5


def test_rows_columns_positions_places_layers_and_seeds_are_independent() -> None:
    mask = kept()
    pairs = {
        "rows": (mask[:, 1:], mask[:, :-1]),
        "columns": (mask[..., 1:], mask[..., :-1]),
        "diagonals": (mask[:, 1:, 1:], mask[:, :-1, :-1]),
        "transposed": (mask[0, :, :300], mask[0, :, :300].T.contiguous().roll(1, 0)),
        "positions": (mask[0], mask[1]),
        "places": (mask, kept(place=1)),
        "far places": (mask, kept(place=3)),
        "layers": (mask, kept(layer=1)),
        "layer and place": (kept(layer=1, place=0), kept(layer=0, place=1)),
        "seeds": (mask, kept(seed=4)),
        "seeds and rows": (mask[:, 1:], kept(seed=4)[:, :-1]),
    }
    for name, (a, b) in pairs.items():
        assert abs(correlation(a, b)) < 4.5, name


def test_no_two_rows_have_one_mask() -> None:
    rows = kept().flatten(0, 1)
    agreement = (2 * rows - 1) @ (2 * rows - 1).T / 400**0.5
    agreement.fill_diagonal_(0)
    # The largest of 180,000 pairs of independent rows is near 5 deviations.
    assert 4 < agreement.abs().max() < 6.5


def test_every_bit_that_decides_is_a_coin() -> None:
    bits = random_bits(torch.tensor(9), 0, 0, torch.Size((1, 300, 300)))
    assert int(bits.min()) >= 0 and int(bits.max()) < STEPS
    for place in range(32):
        ones = ((bits >> place) & 1).double().mean()
        assert abs(ones - 0.5) < 4.5 * 0.5 / 300


def test_a_block_has_the_mask_it_has_in_the_whole() -> None:
    x = torch.randn(2, 3, 9, 6)
    whole = KeyedDropout(0.5, torch.tensor(2))(x, place=0)
    block = KeyedDropout(0.5, torch.tensor(2), first_row=4)
    assert torch.equal(block(x[..., 4:, :], place=0), whole[..., 4:, :])
    part = block(x[..., 6:8, 2:], place=0, first_row=2, first_column=2)
    assert torch.equal(part, whole[..., 6:8, 2:])


def test_ends_of_the_scale() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    assert KeyedDropout(0.0, torch.tensor(1))(x, place=0) is x
    nothing = KeyedDropout(1.0, torch.tensor(1))(x, place=0)
    assert not nothing.any()
    assert not torch.autograd.grad(nothing.sum(), x)[0].any()


def test_gradients_pass_where_values_do() -> None:
    # Rounded from float32: of bfloat16's own normal numbers, one in some hundred is exactly 0.
    x = torch.randn(5, 7).bfloat16().requires_grad_()
    dropped = KeyedDropout(0.5, torch.tensor(1))(x, place=0)
    assert dropped.dtype is torch.bfloat16
    gradient = torch.autograd.grad(dropped.sum(), x)[0]
    assert torch.equal(gradient, torch.where(dropped != 0, 2.0, 0.0).bfloat16())
