"""One rank agrees with itself; several are in `test_parallel`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from batchformer.lab.engine import checkpoint
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


def test_the_newest_checkpoint_of_the_first_rank_is_its_own(tmp_path: Path) -> None:
    said: list[str] = []
    assert checkpoint.load_newest_on_rank_zero(tmp_path, said.append) is None
    checkpoint.save(tmp_path, 1, {"a": torch.ones(2)})
    last = checkpoint.save(tmp_path, 2, {"a": torch.zeros(2)})
    last.write_bytes(b"torn")
    found = checkpoint.load_newest_on_rank_zero(tmp_path, said.append)
    assert found is not None and found["a"].tolist() == [1, 1] and "damaged" in said[0]
    content = next(path for path in tmp_path.glob("000000001*")).read_bytes()
    assert checkpoint.read(content, tmp_path)["a"].tolist() == [1, 1]


def test_one_rank_sums_and_averages_by_itself() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    assert gradients.sum_over_ranks(x) is x and gradients.mean_over_ranks(x) is x
    gradients.broadcast_state([x])
    gradients.average_gradients([nn.Parameter(x.detach())])
