"""Collectives are called in one file; what several ranks get from them is in test_exchange.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

import batchformer
from batchformer.nn import exchange as collectives

CALLED = re.compile(r"dist\.(all_\w+|broadcast\w*|reduce\w*|scatter\w*|gather\w*)\(")


def test_nothing_else_calls_them() -> None:
    root = Path(batchformer.__file__).parent
    # A benchmark times ranks by collectives of its own, outside of what it times.
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "bench" not in path.parts and CALLED.search(path.read_text())
    ]
    assert found == ["collectives.py"]


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_one_rank_has_what_it_had() -> None:
    x = torch.arange(6.0).view(3, 2)
    kept = x.clone()
    (found,) = collectives.all_gather(x, 1)
    assert torch.equal(found, kept) and found.data_ptr() != x.data_ptr()
    for change in (collectives.all_reduce_, collectives.all_reduce_max_, collectives.broadcast_):
        change(x)
        assert torch.equal(x, kept)
