from __future__ import annotations

from collections.abc import Callable

from batchformer.lab.recipes.paper.contrastive import ROWS
from batchformer.lab.recipes.paper.row import PaperRow

Finder = Callable[[str, str, str, str, str], PaperRow]

# No arithmetic ties these numbers together, and so they are copied whole.
PRINTED = """
T8 | ImageNet | MoCo-v2 | baseline | 67.5 -
T8 | ImageNet | MoCo-v2 | batchformer | 68.4 88.5
T8 | ImageNet | MoCo-v3 | baseline | 68.9 -
T8 | ImageNet | MoCo-v3 | batchformer | 69.8 89.5
VOC2007 | VOC2007 | MoCo-v2 | baseline | 56.4 82.1 63.1
VOC2007 | VOC2007 | MoCo-v2 | batchformer | 56.7 82.0 63.6
VOC2007 | VOC2007 | MoCo-v3 | baseline | 46.6 78.2 48.9
VOC2007 | VOC2007 | MoCo-v3 | batchformer | 48.0 78.8 51.1
"""

METRICS = {
    "T8": ["top1", "top5"],
    "VOC2007": ["ap", "ap50", "ap75"],
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


def test_a_dash_in_plain_recognition_is_left_out(find_row: Finder) -> None:
    for arm in ("baseline", "batchformer"):
        plain = find_row("ImageNet", "ImageNet", "ResNet-50", "Cross-entropy", arm)
        assert dict(plain.numbers) == {"top1": 78.9}
