"""One rank agrees with itself; several are in `test_parallel`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer.lab.engine.distributed import gradients
from batchformer.lab.engine.distributed.rank_zero import (
    bytes_from_rank_zero,
    max_over_ranks,
    on_rank_zero,
)


def test_one_rank_answers_by_itself() -> None:
    assert (
        max_over_ranks(3) == 3
        and bytes_from_rank_zero(lambda: b"abc") == b"abc"
        and bytes_from_rank_zero(lambda: None) is None
    )
    given = (1, {"not": "made a list"})
    assert on_rank_zero(lambda: given) is given
    nothing: dict[str, int] = {}
    with pytest.raises(KeyError):
        on_rank_zero(lambda: nothing["missing"])


def test_one_rank_sums_and_averages_by_itself() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    assert gradients.sum_over_ranks(x) is x and gradients.mean_over_ranks(x) is x
    gradients.broadcast_state([x])
    gradients.average_gradients([nn.Parameter(x.detach())])
