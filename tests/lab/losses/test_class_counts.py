from __future__ import annotations

import math

import pytest
import torch

from batchformer.lab.losses.long_tailed import checked_counts


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_counts_come_back_in_float64_and_apart_from_what_was_given(dtype: torch.dtype) -> None:
    given = torch.tensor([7, 3], dtype=dtype)
    counts = checked_counts(given, "loss")
    assert counts.dtype == torch.float64
    assert counts.tolist() == [7.0, 3.0]
    counts += 1
    assert given.tolist() == [7, 3]


def test_an_empty_class_is_refused_by_name_or_allowed() -> None:
    with pytest.raises(
        ValueError, match=r"loss: 2 of 4 classes .*classes 1, 3\).*allow_empty=True"
    ):
        checked_counts([5, 0, 2, 0], "loss")
    assert checked_counts([5, 0, 2, 0], "loss", allow_empty=True).tolist() == [5, 0, 2, 0]


def test_a_long_list_of_empty_classes_is_cut_short() -> None:
    with pytest.raises(
        ValueError, match=r"12 of 13 .*classes 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, \.\.\.\)"
    ):
        checked_counts([1] + [0] * 12, "loss")


@pytest.mark.parametrize(
    "counts", [[], [[1, 2]], [3, -1], [1.0, math.nan], [1.0, math.inf], [0, 0]]
)
def test_bad_counts_are_refused(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="loss"):
        checked_counts(torch.tensor(counts), "loss", allow_empty=True)
