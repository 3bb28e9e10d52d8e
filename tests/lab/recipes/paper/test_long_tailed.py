from __future__ import annotations

from collections.abc import Callable

import pytest

from batchformer.lab.recipes.paper.long_tailed import ROWS
from batchformer.lab.recipes.paper.row import PaperRow

Finder = Callable[[str, str, str, str, str], PaperRow]

# Copied from the tables as printed, column by column.
PRINTED = """
T1 | CIFAR-100-LT r=100 | ResNet-32 | RIDE, 3 experts | baseline | 48.0 68.1 49.2 23.9
T1 | CIFAR-100-LT r=100 | ResNet-32 | Balanced Softmax | baseline | 50.7 68.0 49.7 31.9
T1 | CIFAR-100-LT r=100 | ResNet-32 | Balanced Softmax | batchformer | 51.7 68.4 49.3 34.3
T1 | CIFAR-100-LT r=200 | ResNet-32 | Balanced Softmax | baseline | 46.4 70.0 51.5 24.3
T1 | CIFAR-100-LT r=200 | ResNet-32 | Balanced Softmax | batchformer | 47.5 70.2 53.3 25.5
T1 | CIFAR-100-LT r=200 | ResNet-32 | PaCo | batchformer | 47.8 68.1 53.0 28.2
T2 | ImageNet-LT | ResNet-10 | LFME | baseline | 38.8 47.0 37.9 19.2
T2 | ImageNet-LT | ResNet-10 | Balanced Softmax | batchformer | 43.2 52.8 40.7 24.9
T2 | ImageNet-LT | ResNet-50 | RIDE, 3 experts | baseline | 53.6 64.9 50.4 33.2
T2 | ImageNet-LT | ResNet-50 | RIDE, 3 experts, two stages | batchformer | 55.7 64.6 53.4 39.0
T2 | ImageNet-LT | ResNet-50 | PaCo | batchformer | 57.4 62.7 56.7 42.1
T3 | iNaturalist 2018 | ResNet-50 | RIDE, 3 experts | batchformer | 74.1 65.5 74.5 75.8
T4 | Places-LT | ResNet-152 | BALMS | batchformer | 38.2 39.5 38.3 35.7
"""


@pytest.mark.parametrize("line", PRINTED.strip().splitlines())
def test_rows_by_shots_as_printed(find_row: Finder, line: str) -> None:
    table, data, model, method, arm, cells = line.split(" | ")
    row = find_row(table, data, model, method, arm)
    assert row in ROWS
    assert list(row.numbers) == ["all", "many", "medium", "few"]
    assert list(row.numbers.values()) == [float(cell) for cell in cells.split()]
    assert not row.spread


def test_a_dash_in_t3_is_left_out(find_row: Finder) -> None:
    assert dict(find_row("T3", "iNaturalist 2018", "ResNet-50", "PaCo", "baseline").numbers) == {
        "all": 73.2
    }
