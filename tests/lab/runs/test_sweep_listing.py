"""The sweeps as they are shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from batchformer.lab.recipes.ablations import SWEEPS
from batchformer.lab.runs.listing import levels_and_paper, print_sweeps, state


@pytest.mark.parametrize("width", [80, 120])
def test_every_sweep_is_listed_with_its_levels_and_the_papers_numbers(width: int) -> None:
    stream = io.StringIO()
    print_sweeps(Console(file=stream, width=width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert set(SWEEPS) <= {line.split()[0] for line in lines if line.strip()}
    words = " ".join(stream.getvalue().split())
    assert "1* (43.2), 2 (43.2), 4 (42.7)," in words and "without (48.13)" in "".join(words)


def test_levels_without_a_number_have_none() -> None:
    assert levels_and_paper(SWEEPS["demo_layers"]) == "1*, 2, 4"
    assert levels_and_paper(SWEEPS["cifar100_lt_heads"]) == "1, 4* (51.7)"
    assert state(SWEEPS["demo_layers"]) == "embedded"
