"""Each purpose has numbers of its own."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from batchformer.nn.randomness import drawing, generator, seed_for
from batchformer.plug.preserve import seed_device

keys = st.tuples(
    st.integers(0, 50), st.sampled_from(["weights", "order", "dropout"]), st.integers(0, 50)
)


@given(a=keys, b=keys)
def test_seeds_differ_exactly_when_their_keys_do(a, b) -> None:  # type: ignore[no-untyped-def]
    assert (seed_for(*a) == seed_for(*b)) == (a == b)
    assert 0 <= seed_for(*a) < 2**63


def test_a_generator_is_a_function_of_its_key() -> None:
    first = torch.randn(5, generator=generator(1, "order", 2))
    torch.randn(3)
    assert torch.equal(first, torch.randn(5, generator=generator(1, "order", 2)))
    assert not torch.equal(first, torch.randn(5, generator=generator(1, "augmentation", 2)))


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    with drawing(0, "weights"):
        inside = torch.randn(3)
    assert torch.equal(torch.randn(3), expected) and not torch.equal(inside, expected)


def test_a_device_is_seeded_like_torch_does() -> None:
    seed_device(torch.device("cpu"), seed_for(3, "dropout", 5))
    drawn = torch.randn(4)
    torch.manual_seed(seed_for(3, "dropout", 5))
    assert torch.equal(drawn, torch.randn(4))
