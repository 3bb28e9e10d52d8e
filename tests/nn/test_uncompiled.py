"""What is left out of a compiled graph is run, and breaks it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from batchformer.nn.exchange import uncompiled


@uncompiled
def read_back(x: Tensor, factor: float = 2.0) -> float:
    """What a graph cannot hold."""
    assert not torch.compiler.is_compiling()
    return factor * float(x.sum())


def scaled(x: Tensor) -> Tensor:
    return (x + 1) * read_back(x, factor=3.0)


def test_compiled_around_it_results_are_the_same() -> None:
    x = torch.arange(3.0)
    expected = torch.tensor([9.0, 18.0, 27.0])
    assert torch.equal(scaled(x), expected)
    assert torch.equal(torch.compile(scaled, backend="eager")(x), expected)


def test_no_graph_holds_it() -> None:
    torch.compiler.reset()  # what was compiled with a break would serve here too
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(scaled, backend="eager", fullgraph=True)(torch.arange(3.0))
