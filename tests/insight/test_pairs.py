"""Sums over pairs against loops over all pairs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.insight.pairs import counts_between, of_own_class, sums_between, without_self


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_sums_are_those_of_loops(groups: list[int], seed: int) -> None:
    values = torch.rand(2, len(groups), len(groups), generator=torch.Generator().manual_seed(seed))
    sums, counts = torch.zeros(2, 4, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.int64)
    same, number = torch.zeros(2, dtype=torch.float64), 0
    for i, a in enumerate(groups):
        for j, b in enumerate(groups):
            if i != j:
                sums[:, a, b] += values[:, i, j].double()
                counts[a, b] += 1
                if a == b:
                    same += values[:, i, j].double()
                    number += 1
    group = torch.tensor(groups)
    torch.testing.assert_close(sums_between(values, group, 4), sums)
    assert torch.equal(counts_between(group, 4), counts)
    got, pairs = of_own_class(values, group)
    torch.testing.assert_close(got, same)
    assert pairs == number
    assert not without_self(values).diagonal(dim1=1, dim2=2).any()
