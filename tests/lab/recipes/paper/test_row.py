from __future__ import annotations

import dataclasses
import json

import pytest

from batchformer.lab.recipes.paper import ROWS
from batchformer.lab.recipes.paper.row import Block, PaperRow


def test_a_row_with_too_few_cells_is_refused() -> None:
    block = Block(
        table="T1", task="long_tailed", data="d", model="m", columns="all many", headline="all"
    )
    with pytest.raises(ValueError, match="shorter"):
        block.alone("method", "50.0")


def test_rows_are_frozen_and_go_to_json_and_back() -> None:
    row = ROWS[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.note = "changed"  # type: ignore[misc]
    for row in ROWS:
        assert PaperRow(**json.loads(json.dumps(dataclasses.asdict(row)))) == row
