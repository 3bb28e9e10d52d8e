"""Which images are looked at."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.insight.draws import CAM, MEASURED, balanced, by_shots, generator_of, like_training


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 45))
@settings(deadline=None)
def test_classes_are_drawn_evenly(labels: list[int], most: int) -> None:
    y = torch.tensor(labels)
    rows = balanced(y, most, generator_of(MEASURED))
    assert len(rows) == min(most, len(y)) == len(set(rows.tolist()))
    drawn, there = (torch.bincount(part, minlength=5) for part in (y[rows], y))
    for a in range(5):
        for b in range(5):  # nobody has two more than another that has images left
            assert drawn[a] <= drawn[b] + 1 or drawn[b] == there[b]


def test_a_draw_is_a_function_of_purpose_and_seed() -> None:
    y = torch.arange(60) % 6
    first = balanced(y, 20, generator_of(MEASURED))
    assert torch.equal(first, balanced(y, 20, generator_of(MEASURED)))
    assert not torch.equal(first, balanced(y, 20, generator_of(MEASURED, seed=1)))
    assert not torch.equal(first, balanced(y, 20, generator_of(CAM)))


def test_shot_groups_have_equal_parts_in_order() -> None:
    y, shots = torch.arange(90) % 9, torch.tensor([2, 2, 2, 0, 0, 0, 1, 1, 1])
    rows = by_shots(y, shots, 48, generator_of(CAM))
    assert shots[y[rows]].tolist() == [0] * 16 + [1] * 16 + [2] * 16
    assert torch.bincount(y[rows]).max() <= 6
    rows = by_shots(y, torch.tensor([2, 2, 2, 0, 0, 0, 0, 0, 0]), 48, generator_of(CAM))
    assert torch.bincount((y[rows] < 3).long()).tolist() == [24, 24]
    few = by_shots(torch.tensor([3, 3, 0]), shots, 48, generator_of(CAM))
    assert sorted(few.tolist()) == [0, 1, 2]


def test_explored_batches_have_the_frequencies_of_training() -> None:
    y = torch.arange(3000) % 3
    rows = like_training(y, torch.tensor([900, 90, 10]), 20, 50, generator_of(CAM))
    assert rows.shape == (20, 50)
    assert all(len(set(row.tolist())) == 50 for row in rows)
    share = torch.bincount(y[rows.flatten()], minlength=3) / 1000
    torch.testing.assert_close(share, torch.tensor([0.9, 0.09, 0.01]), atol=0.03, rtol=0)
    rows = like_training(torch.tensor([0, 1, 1]), torch.tensor([5, 0]), 2, 64, generator_of(CAM))
    assert [sorted(row.tolist()) for row in rows] == [[0, 1, 2]], "the others would be the same"
