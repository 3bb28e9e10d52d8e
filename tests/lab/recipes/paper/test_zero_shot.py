from __future__ import annotations

from collections.abc import Callable

from batchformer.lab.recipes.paper.row import PaperRow
from batchformer.lab.recipes.paper.zero_shot import ROWS

Finder = Callable[[str, str, str, str, str], PaperRow]

# No arithmetic ties these numbers together, and so they are copied whole.
PRINTED = """
T5 | MIT-States | CompCos | baseline | 4.5 16.4 25.3 24.6 27.9 31.8
T5 | MIT-States | CGE (published) | baseline | 6.5 21.4 32.8 28.0 30.1 34.7
T5 | MIT-States | CGE | baseline | 6.3 20.0 31.6 27.3 30.3 34.5
T5 | MIT-States | CGE | batchformer | 6.7 20.6 33.2 27.7 30.8 34.7
T5 | UT-Zap50K | CompCos | baseline | 28.7 43.1 59.8 62.5 44.7 73.5
T5 | UT-Zap50K | CGE (published) | baseline | 33.5 60.5 64.5 71.5 48.7 76.2
T5 | UT-Zap50K | CGE | baseline | 31.5 46.5 60.3 64.5 46.3 74.4
T5 | UT-Zap50K | CGE | batchformer | 34.6 49.0 62.5 69.2 49.7 75.6
T5 | C-GQA | CGE (published) | baseline | 3.6 14.5 31.4 14.0 15.2 30.4
T5 | C-GQA | CGE | baseline | 3.7 14.9 30.8 14.7 15.8 29.0
T5 | C-GQA | CGE | batchformer | 3.8 15.5 31.3 14.7 15.3 30.0
"""

METRICS = {
    "T5": ["auc", "hm", "seen", "unseen", "attribute", "object"],
}


def test_tables_copied_whole() -> None:
    printed = {}
    for line in PRINTED.strip().splitlines():
        table, data, method, arm, cells = line.split(" | ")
        values = zip(METRICS[table], cells.split(), strict=True)
        printed[table, data, method, arm] = [(m, float(c)) for m, c in values if c != "-"]
    rows = [row for row in ROWS if row.table in METRICS]
    found = {(r.table, r.data, r.method, r.arm): list(r.numbers.items()) for r in rows}
    assert found == printed


def test_generalized_rows_put_the_harmonic_mean_first(find_row: Finder) -> None:
    row = find_row("GZSL", "CUB", "ResNet-101 features", "CE-GZSL", "batchformer")
    assert list(row.numbers.items()) == [("hm", 67.0), ("unseen", 68.2), ("seen", 65.8)]
