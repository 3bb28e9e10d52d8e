from __future__ import annotations

from collections.abc import Callable

import pytest

from batchformer.lab.recipes.paper.long_tailed import ABLATIONS as ROWS
from batchformer.lab.recipes.paper.row import PaperRow

Finder = Callable[[str, str, str, str, str], PaperRow]

# Copied from the tables as printed, column by column.
PRINTED = """
Batch size | ImageNet-LT | ResNet-10 | Balanced Softmax, batch 512 | batchformer | 42.5 52.0 39.6 25.8
Layers | ImageNet-LT | ResNet-10 | Balanced Softmax, 16 layers | batchformer | 43.1 52.9 40.0 26.6
Without PaCo loss | CIFAR-100-LT r=200 | ResNet-32 | PaCo without PaCo loss | baseline | 47.31 67.8 52.6 27.3
"""  # noqa: E501


@pytest.mark.parametrize("line", PRINTED.strip().splitlines())
def test_rows_by_shots_as_printed(find_row: Finder, line: str) -> None:
    table, data, model, method, arm, cells = line.split(" | ")
    row = find_row(table, data, model, method, arm)
    assert row in ROWS
    assert list(row.numbers) == ["all", "many", "medium", "few"]
    assert list(row.numbers.values()) == [float(cell) for cell in cells.split()]
    assert not row.spread
