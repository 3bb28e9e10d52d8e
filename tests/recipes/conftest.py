from __future__ import annotations

from collections.abc import Callable

import pytest

from batchformer.recipes.paper import ROWS, PaperRow


def find(table: str, data: str, model: str, method: str, arm: str) -> PaperRow:
    wanted = (table, data, model, method, arm)
    found = [r for r in ROWS if (r.table, r.data, r.model, r.method, r.arm) == wanted]
    assert len(found) == 1, wanted
    return found[0]


@pytest.fixture(scope="session")
def find_row() -> Callable[[str, str, str, str, str], PaperRow]:
    """The one row of the paper with this table, data set, network, method and arm."""
    return find
