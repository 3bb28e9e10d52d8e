from __future__ import annotations

from collections.abc import Callable

from batchformer.lab.recipes.paper.domains import ROWS
from batchformer.lab.recipes.paper.row import PaperRow

Finder = Callable[[str, str, str, str, str], PaperRow]


def test_domain_rows_carry_the_spread_and_the_average_first(find_row: Finder) -> None:
    row = find_row("T6", "PACS", "ResNet-18", "Baseline", "baseline")
    assert list(row.numbers.items()) == [
        ("average", 79.1),
        ("art_painting", 79.9),
        ("cartoon", 73.0),
        ("sketch", 67.7),
        ("photo", 95.7),
    ]
    assert dict(row.spread) == {"art_painting": 1.0, "cartoon": 1.5, "sketch": 3.0, "photo": 0.4}


def test_resnet50_rows_of_pacs_have_photo_and_sketch_put_right(find_row: Finder) -> None:
    row = find_row("T6b", "PACS", "ResNet-50", "IRM", "batchformer")
    assert dict(row.numbers) == {
        "average": 86.8,
        "art_painting": 89.0,
        "cartoon": 80.1,
        "photo": 98.0,
        "sketch": 79.8,
    }
    assert dict(row.spread) == {"art_painting": 0.98, "cartoon": 1.0, "photo": 0.4, "sketch": 0.4}
    for other in ROWS:
        if other.data == "PACS" and "photo" in other.numbers:
            assert other.numbers["photo"] > other.numbers["sketch"] + 10, other


def test_other_rows_as_printed(find_row: Finder) -> None:
    terra = find_row("TerraIncognita", "TerraIncognita", "ResNet-18", "SWAD", "batchformer")
    assert dict(terra.numbers) == {
        "average": 44.8,
        "l100": 49.8,
        "l38": 40.3,
        "l43": 55.2,
        "l46": 34.0,
    }
    vlcs = find_row("VLCS", "VLCS", "ResNet-18", "SWAD", "baseline")
    assert vlcs.numbers["voc2007"] == 75.5
    office = find_row("OfficeHome", "OfficeHome", "ResNet-50", "IRM", "batchformer")
    assert list(office.numbers.values()) == [70.6, 67.7, 55.5, 78.4, 81.0]
    for arm, value, spread in (("baseline", 76.8, 1.5), ("batchformer", 77.8, 2.0)):
        adapted = find_row("VisDA-2017", "VisDA-2017", "ResNet-101", "MDD", arm)
        assert dict(adapted.numbers) == {"real": value}
        assert dict(adapted.spread) == {"real": spread}


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
        assert (first.numbers, first.spread) == (row.numbers, row.spread)
