"""Numbers of the paper, as printed; test_paper.py holds what ties them together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from batchformer.lab.recipes.paper import ROWS
from batchformer.lab.recipes.paper.row import Block, PaperRow

Finder = Callable[[str, str, str, str, str], PaperRow]

# Copied from the tables as printed, column by column.
BY_SHOTS = """
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
T3 | iNaturalist 2018 | ResNet-50 | PaCo | baseline | 73.2 - - -
T3 | iNaturalist 2018 | ResNet-50 | RIDE, 3 experts | batchformer | 74.1 65.5 74.5 75.8
T4 | Places-LT | ResNet-152 | BALMS | batchformer | 38.2 39.5 38.3 35.7
Batch size | ImageNet-LT | ResNet-10 | Balanced Softmax, batch 512 | batchformer | 42.5 52.0 39.6 25.8
Layers | ImageNet-LT | ResNet-10 | Balanced Softmax, 16 layers | batchformer | 43.1 52.9 40.0 26.6
Without PaCo loss | CIFAR-100-LT r=200 | ResNet-32 | PaCo without PaCo loss | baseline | 47.31 67.8 52.6 27.3
"""  # noqa: E501

# No arithmetic ties these numbers together, and so they are copied whole.
WHOLE = """
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
T8 | ImageNet | MoCo-v2 | baseline | 67.5 -
T8 | ImageNet | MoCo-v2 | batchformer | 68.4 88.5
T8 | ImageNet | MoCo-v3 | baseline | 68.9 -
T8 | ImageNet | MoCo-v3 | batchformer | 69.8 89.5
ImageNet | ImageNet | Cross-entropy | baseline | 78.9 -
ImageNet | ImageNet | Cross-entropy | batchformer | 78.9 -
VOC2007 | VOC2007 | MoCo-v2 | baseline | 56.4 82.1 63.1
VOC2007 | VOC2007 | MoCo-v2 | batchformer | 56.7 82.0 63.6
VOC2007 | VOC2007 | MoCo-v3 | baseline | 46.6 78.2 48.9
VOC2007 | VOC2007 | MoCo-v3 | batchformer | 48.0 78.8 51.1
"""
METRICS = {
    "T5": ["auc", "hm", "seen", "unseen", "attribute", "object"],
    "T8": ["top1", "top5"],
    "ImageNet": ["top1", "top5"],
    "VOC2007": ["ap", "ap50", "ap75"],
}

# The average first, with what is printed after ±.
DOMAINS = """
T6 | PACS | ResNet-18 | Baseline | baseline | average 79.1 art_painting 79.9±1.0 cartoon 73.0±1.5 sketch 67.7±3.0 photo 95.7±0.4
T6b | PACS | ResNet-50 | IRM | batchformer | average 86.8 art_painting 89.0±0.98 cartoon 80.1±1.0 photo 98.0±0.4 sketch 79.8±0.4
TerraIncognita | TerraIncognita | ResNet-18 | SWAD | batchformer | average 44.8 l100 49.8±1.8 l38 40.3±2.0 l43 55.2±1.2 l46 34.0±1.1
OfficeHome | OfficeHome | ResNet-50 | IRM | batchformer | average 70.6 art 67.7±0.2 clipart 55.5±0.8 product 78.4±0.5 real_world 81.0±0.3
VLCS | VLCS | ResNet-18 | SWAD | baseline | average 76.3 caltech101 97.2±1.4 labelme 61.4±0.1 sun09 71.2±1.7 voc2007 75.5±0.8
VisDA-2017 | VisDA-2017 | ResNet-101 | MDD | baseline | real 76.8±1.5
VisDA-2017 | VisDA-2017 | ResNet-101 | MDD | batchformer | real 77.8±2.0
GZSL | CUB | ResNet-101 features | CE-GZSL | batchformer | hm 67.0 unseen 68.2 seen 65.8
"""  # noqa: E501


@pytest.mark.parametrize("line", BY_SHOTS.strip().splitlines())
def test_rows_by_shots(find_row: Finder, line: str) -> None:
    *where, cells = line.split(" | ")
    row = find_row(*where)
    printed = zip(("all", "many", "medium", "few"), cells.split(), strict=True)
    assert list(row.numbers.items()) == [(m, float(cell)) for m, cell in printed if cell != "-"]


def test_tables_copied_whole() -> None:
    printed = {}
    for line in WHOLE.strip().splitlines():
        table, data, method, arm, cells = line.split(" | ")
        values = zip(METRICS[table], cells.split(), strict=True)
        printed[table, data, method, arm] = [(m, float(c)) for m, c in values if c != "-"]
    rows = [row for row in ROWS if row.table in METRICS]
    found = {(r.table, r.data, r.method, r.arm): list(r.numbers.items()) for r in rows}
    assert found == printed


@pytest.mark.parametrize("line", DOMAINS.strip().splitlines())
def test_rows_with_the_headline_first(find_row: Finder, line: str) -> None:
    *where, cells = line.split(" | ")
    row, words = find_row(*where), cells.split()
    split = {name: cell.split("±") for name, cell in zip(words[::2], words[1::2], strict=True)}
    assert list(row.numbers.items()) == [(name, float(own[0])) for name, own in split.items()]


def test_resnet50_rows_of_pacs_have_photo_and_sketch_put_right() -> None:
    for row in ROWS:
        if row.data == "PACS" and "photo" in row.numbers:
            assert row.numbers["photo"] > row.numbers["sketch"] + 10, row


def test_averages_of_t7_are_those_of_the_tables_by_data_set(find_row: Finder) -> None:
    for row in ROWS:
        if row.table == "T7":
            table = "T6b" if row.data == "PACS" else row.data
            longer = find_row(table, row.data, row.model, row.method, row.arm)
            same = longer.numbers["average"] == row.numbers["average"]
            assert same or f"{longer.numbers['average']} in {table}" in row.note, row


def test_what_t6b_repeats_is_the_same(find_row: Finder) -> None:
    repeated = [row for row in ROWS if row.note == "repeats T6"]
    assert len(repeated) == 4
    for row in repeated:
        first = find_row("T6", row.data, row.model, row.method, row.arm)
        assert first.numbers == row.numbers


def test_a_row_with_too_few_cells_is_refused() -> None:
    block = Block(
        table="T1", task="long_tailed", data="d", model="m", columns="all many", headline="all"
    )
    with pytest.raises(ValueError, match="shorter"):
        block.alone("method", "50.0")


def test_rows_are_frozen_and_go_to_json_and_back() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ROWS[0].note = "changed"  # type: ignore[misc]
    for row in ROWS:
        assert PaperRow(**json.loads(json.dumps(dataclasses.asdict(row)))) == row
