"""Settings of compositional zero-shot learning that make no sense are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.data import PairConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 0}, "data.size is 0"),
        ({"name": "table"}, "name it: data.table"),
        ({"table": "x.csv"}, "for your own images, not mit_states"),
        ({"mask": True}, "for data.world open"),
        ({"replacements": ("Faux",)}, "needs WORD=OTHER"),
    ],
)
def test_pairs_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PairConfig(**settings)


def test_what_does() -> None:
    assert PairConfig(name="table", table="x.csv", world="open", mask=True).of_files
