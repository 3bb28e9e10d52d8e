from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.losses.long_tailed import effective_number_weights


def exact(counts: list[int], beta: Fraction) -> list[float]:
    """The weights in rational numbers: one over 1 + beta + ... + beta^(n-1), of mean one."""
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    return [float(w / sum(raw) * len(counts)) for w in raw]


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    beta=st.sampled_from(["0", "0.5", "0.99", "0.9999", "0.99999999"]),
)
def test_equals_rational_arithmetic(counts: list[int], beta: str) -> None:
    weights = effective_number_weights(counts, float(beta))
    expected = torch.tensor(exact(counts, Fraction(beta)))
    torch.testing.assert_close(weights, expected, rtol=2e-6, atol=0)


def test_beta_spans_from_equal_weights_to_inverse_frequencies() -> None:
    counts = torch.tensor([4000, 70, 1])
    assert effective_number_weights(counts, 0.0).tolist() == [1, 1, 1]
    inverse = 1 / counts.double()
    torch.testing.assert_close(
        effective_number_weights(counts, 1 - 1e-12).double(),
        3 * inverse / inverse.sum(),
        rtol=1e-5,
        atol=0,
    )


def test_very_large_classes_all_weigh_the_same() -> None:
    weights = effective_number_weights([10**9, 10**7, 10**6])
    torch.testing.assert_close(weights, torch.ones(3))


@pytest.mark.parametrize("beta", [0.0, 0.9999])
def test_an_allowed_empty_class_is_as_if_absent(beta: float) -> None:
    weights = effective_number_weights([9, 0, 2], beta, allow_empty=True)
    assert weights[1] == 0
    torch.testing.assert_close(weights[[0, 2]], effective_number_weights([9, 2], beta))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="classes 1"):
        effective_number_weights([9, 0])
    for beta in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="beta"):
            effective_number_weights([9, 1], beta)
