from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from batchformer.recipes import RECIPES, find_recipe
from batchformer.recipes.paper import ROWS, PaperRow, rows_for, rows_without_recipe
from batchformer.recipes.paper.row import Block

#: Numbers are printed to 0.1: half of it for the parts, half for what is computed from them.
ROUNDING = 0.1 + 1e-9

#: Tables that vary BatchFormer itself and so print no baseline.
WITHOUT_BASELINE = {"Batch size", "Shared classifier", "Layers"}

SHOT_CLASSES = {
    "ImageNet-LT": (385, 479, 136),
    "iNaturalist 2018": (842, 4076, 3224),
    "Places-LT": (131, 163, 71),
}


def name(row: PaperRow) -> str:
    return f"{row.table} / {row.data} / {row.model} / {row.method} / {row.arm}"


def find(table: str, data: str, model: str, method: str, arm: str) -> PaperRow:
    wanted = (table, data, model, method, arm)
    found = [r for r in ROWS if (r.table, r.data, r.model, r.method, r.arm) == wanted]
    assert len(found) == 1, wanted
    return found[0]


def cifar_shot_classes(ratio: int) -> tuple[int, int, int]:
    counts = [int(500 * (1 / ratio) ** (c / 99)) for c in range(100)]
    many, few = sum(n > 100 for n in counts), sum(n < 20 for n in counts)
    return many, 100 - many - few, few


def shot_classes(data: str) -> tuple[int, int, int]:
    if data.startswith("CIFAR-100-LT"):
        return cifar_shot_classes(int(data.partition("r=")[2]))
    return SHOT_CLASSES[data]


def implied() -> Iterator[tuple[PaperRow, float]]:
    """Rows whose headline follows from their other columns, with what those make it."""
    for row in ROWS:
        values = dict(row.numbers)
        if {"all", "many", "medium", "few"} <= values.keys():
            sizes = shot_classes(row.data)
            parts = (values["many"], values["medium"], values["few"])
            yield row, sum(n * v for n, v in zip(sizes, parts, strict=True)) / sum(sizes)
        elif "average" in values and len(values) > 1:
            average_of = [value for metric, value in values.items() if metric != "average"]
            yield row, sum(average_of) / len(average_of)
        elif row.table == "GZSL":
            seen, unseen = values["seen"], values["unseen"]
            yield row, 2 * seen * unseen / (seen + unseen)


IMPLIED = list(implied())

# Copied from the tables as printed, column by column.
PRINTED_SHOTS = """
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
Batch size | ImageNet-LT | ResNet-10 | Balanced Softmax, batch 512 | batchformer | 42.5 52.0 39.6 25.8
Layers | ImageNet-LT | ResNet-10 | Balanced Softmax, 16 layers | batchformer | 43.1 52.9 40.0 26.6
Without PaCo loss | CIFAR-100-LT r=200 | ResNet-32 | PaCo without PaCo loss | baseline | 47.31 67.8 52.6 27.3
"""  # noqa: E501


@pytest.mark.parametrize("line", PRINTED_SHOTS.strip().splitlines())
def test_rows_by_shots_as_printed(line: str) -> None:
    table, data, model, method, arm, cells = line.split(" | ")
    row = find(table, data, model, method, arm)
    assert list(row.numbers) == ["all", "many", "medium", "few"]
    assert list(row.numbers.values()) == [float(cell) for cell in cells.split()]
    assert not row.spread


# Tables whose numbers no arithmetic ties together, and so copied whole.
PRINTED_WHOLE = """
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
VOC2007 | VOC2007 | MoCo-v2 | baseline | 56.4 82.1 63.1
VOC2007 | VOC2007 | MoCo-v2 | batchformer | 56.7 82.0 63.6
VOC2007 | VOC2007 | MoCo-v3 | baseline | 46.6 78.2 48.9
VOC2007 | VOC2007 | MoCo-v3 | batchformer | 48.0 78.8 51.1
"""

METRICS = {
    "T5": ["auc", "hm", "seen", "unseen", "attribute", "object"],
    "T8": ["top1", "top5"],
    "VOC2007": ["ap", "ap50", "ap75"],
}


def test_tables_copied_whole() -> None:
    printed = {}
    for line in PRINTED_WHOLE.strip().splitlines():
        table, data, method, arm, cells = line.split(" | ")
        values = zip(METRICS[table], cells.split(), strict=True)
        printed[table, data, method, arm] = [(m, float(c)) for m, c in values if c != "-"]
    rows = [row for row in ROWS if row.table in METRICS]
    found = {(r.table, r.data, r.method, r.arm): list(r.numbers.items()) for r in rows}
    assert found == printed


def test_generalized_rows_put_the_harmonic_mean_first() -> None:
    row = find("GZSL", "CUB", "ResNet-101 features", "CE-GZSL", "batchformer")
    assert list(row.numbers.items()) == [("hm", 67.0), ("unseen", 68.2), ("seen", 65.8)]


def test_domain_rows_carry_the_spread_and_the_average_first() -> None:
    row = find("T6", "PACS", "ResNet-18", "Baseline", "baseline")
    assert list(row.numbers.items()) == [
        ("average", 79.1),
        ("art", 79.9),
        ("cartoon", 73.0),
        ("sketch", 67.7),
        ("photo", 95.7),
    ]
    assert dict(row.spread) == {"art": 1.0, "cartoon": 1.5, "sketch": 3.0, "photo": 0.4}


def test_resnet50_rows_of_pacs_have_photo_and_sketch_put_right() -> None:
    row = find("T6b", "PACS", "ResNet-50", "IRM", "batchformer")
    assert dict(row.numbers) == {
        "average": 86.8,
        "art": 89.0,
        "cartoon": 80.1,
        "photo": 98.0,
        "sketch": 79.8,
    }
    assert dict(row.spread) == {"art": 0.98, "cartoon": 1.0, "photo": 0.4, "sketch": 0.4}
    for other in ROWS:
        if other.data == "PACS" and "photo" in other.numbers:
            assert other.numbers["photo"] > other.numbers["sketch"] + 10, name(other)


def test_other_rows_as_printed() -> None:
    terra = find("TerraIncognita", "TerraIncognita", "ResNet-18", "SWAD", "batchformer")
    assert dict(terra.numbers) == {
        "average": 44.8,
        "l100": 49.8,
        "l38": 40.3,
        "l43": 55.2,
        "l46": 34.0,
    }
    vlcs = find("VLCS", "VLCS", "ResNet-18", "SWAD", "baseline")
    assert vlcs.numbers["voc2007"] == 75.5
    office = find("OfficeHome", "OfficeHome", "ResNet-50", "IRM", "batchformer")
    assert list(office.numbers.values()) == [70.6, 67.7, 55.5, 78.4, 81.0]
    for arm, value, spread in (("baseline", 76.8, 1.5), ("batchformer", 77.8, 2.0)):
        adapted = find("VisDA-2017", "VisDA-2017", "ResNet-101", "MDD", arm)
        assert dict(adapted.numbers) == {"synthetic_to_real": value}
        assert dict(adapted.spread) == {"synthetic_to_real": spread}


def test_a_dash_is_left_out() -> None:
    assert dict(find("T3", "iNaturalist 2018", "ResNet-50", "PaCo", "baseline").numbers) == {
        "all": 73.2
    }
    for arm in ("baseline", "batchformer"):
        plain = find("ImageNet", "ImageNet", "ResNet-50", "Cross-entropy", arm)
        assert dict(plain.numbers) == {"top1": 78.9}


def test_every_table_is_there_whole() -> None:
    assert Counter(row.table for row in ROWS) == {
        "T1": 9,
        "T2": 16,
        "T3": 6,
        "T4": 6,
        "T5": 11,
        "T6": 6,
        "T6b": 18,
        "T7": 8,
        "T8": 4,
        "GZSL": 5,
        "OfficeHome": 6,
        "VLCS": 2,
        "TerraIncognita": 2,
        "VisDA-2017": 2,
        "VOC2007": 4,
        "ImageNet": 2,
        "Batch size": 6,
        "Shared classifier": 2,
        "Layers": 5,
        "Without PaCo loss": 4,
    }


def test_no_row_stands_twice() -> None:
    assert not [key for key, n in Counter(name(row) for row in ROWS).items() if n > 1]


def test_numbers_are_percentages_and_spreads_belong_to_them() -> None:
    for row in ROWS:
        assert row.numbers, name(row)
        assert all(0 < value < 100 for value in row.numbers.values()), name(row)
        assert row.spread.keys() <= row.numbers.keys(), name(row)
        assert all(0 <= value < 10 for value in row.spread.values()), name(row)


def test_rows_of_one_block_share_their_metrics() -> None:
    """But for dashes, which only shorten a row."""
    for row in ROWS:
        peers = [r for r in ROWS if (r.table, r.data) == (row.table, row.data)]
        longest = max((r.numbers for r in peers), key=len)
        assert row.numbers.keys() <= longest.keys(), name(row)
        assert row.headline == next(iter(longest)), name(row)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.arm == "batchformer" and r.table not in WITHOUT_BASELINE], ids=name
)
def test_each_batchformer_row_has_its_baseline(row: PaperRow) -> None:
    baseline = find(row.table, row.data, row.model, row.method, "baseline")
    assert baseline.numbers.keys() <= row.numbers.keys()
    assert baseline.recipe == row.recipe
    assert not row.reproduced


def test_the_tables_without_baselines_have_none() -> None:
    assert {row.arm for row in ROWS if row.table in WITHOUT_BASELINE} == {"batchformer"}


@pytest.mark.parametrize(("ratio", "sizes"), [(100, (35, 35, 30)), (200, (30, 31, 39))])
def test_classes_by_shots_on_cifar100_lt(ratio: int, sizes: tuple[int, int, int]) -> None:
    assert cifar_shot_classes(ratio) == sizes


@pytest.mark.parametrize(("row", "value"), IMPLIED, ids=[name(row) for row, _ in IMPLIED])
def test_headline_agrees_with_its_columns_or_a_note_says_what_they_imply(
    row: PaperRow, value: float
) -> None:
    printed = row.numbers[row.headline]
    if abs(printed - value) > ROUNDING:
        assert f"printed {printed:.1f}, its own" in row.note
        assert f" {value:.1f}" in row.note
    else:
        assert "its own" not in row.note


def test_the_check_of_headlines_covers_the_tables_with_parts() -> None:
    tables = {row.table for row, _ in IMPLIED}
    assert tables == {row.table for row in ROWS} - {"T5", "T7", "T8", "VisDA-2017"} - {
        "VOC2007",
        "ImageNet",
    }


def test_contradictions_between_tables_are_noted_on_both_sides() -> None:
    swad = ("PACS", "ResNet-18", "SWAD", "batchformer")
    main, appendix = find("T7", *swad), find("T6b", *swad)
    assert (main.numbers["average"], appendix.numbers["average"]) == (83.7, 83.9)
    assert "83.9 in T6b" in main.note
    assert "83.7 in T7" in appendix.note
    for arm in ("baseline", "batchformer"):
        first, second = (
            find(table, "PACS", "ResNet-18", "Baseline", arm) for table in ("T6", "T6b")
        )
        assert str(second.numbers["average"]) in first.note
        assert str(first.numbers["average"]) in second.note
    t2 = find("T2", "ImageNet-LT", "ResNet-50", "Balanced Softmax", "batchformer")
    ablated = find(
        "Shared classifier", "ImageNet-LT", "ResNet-50", "Balanced Softmax", "batchformer"
    )
    for one, other in ((t2, ablated), (ablated, t2)):
        assert ", ".join(map(str, other.numbers.values())) in one.note


def test_averages_of_t7_are_those_of_the_tables_by_data_set() -> None:
    for row in ROWS:
        if row.table == "T7":
            table = "T6b" if row.data == "PACS" else row.data
            longer = find(table, row.data, row.model, row.method, row.arm)
            same = longer.numbers["average"] == row.numbers["average"]
            assert same or f"{longer.numbers['average']} in {table}" in row.note, name(row)


def test_what_t6b_repeats_is_the_same() -> None:
    repeated = [row for row in ROWS if row.note == "repeats T6"]
    assert len(repeated) == 4
    for row in repeated:
        first = find("T6", row.data, row.model, row.method, row.arm)
        assert (first.numbers, first.spread) == (row.numbers, row.spread)


def test_rows_with_a_recipe_carry_its_numbers() -> None:
    named = [row for row in ROWS if row.recipe is not None]
    assert named
    for row in named:
        assert row.recipe in RECIPES, name(row)
        recipe = find_recipe(row.recipe)
        assert recipe.paper[row.arm] == row.numbers, name(row)
        assert list(recipe.paper[row.arm]) == list(row.numbers), name(row)
        assert recipe.table.startswith(row.table), name(row)
        assert recipe.task == row.task, name(row)


def test_rows_for_a_recipe() -> None:
    rows = rows_for("cifar100_lt_balanced_softmax_r200")
    assert [row.arm for row in rows] == ["baseline", "batchformer"]
    assert {row.data for row in rows} == {"CIFAR-100-LT r=200"}
    assert rows_for("demo") == ()


def test_rows_without_recipe_are_the_planned_rest() -> None:
    missing = rows_without_recipe()
    assert all(row.recipe is None and row.planned for row in missing)
    unplanned = [row for row in ROWS if not row.planned]
    assert len(missing) + len(unplanned) + sum(row.recipe is not None for row in ROWS) == len(ROWS)


def test_unplanned_rows_are_comparison_systems_and_published_copies() -> None:
    unplanned = {row.method for row in ROWS if not row.planned}
    systems = {method for method in unplanned if not method.endswith(" (published)")}
    assert systems == {"OLTR", "LFME", "BBN", "IZF", "TF-VAEGAN"}
    for row in ROWS:
        if row.method.endswith(" (published)"):
            again = row.method.removesuffix(" (published)")
            assert find(row.table, row.data, row.model, again, "baseline").reproduced


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


def test_reading_the_rows_needs_no_torch() -> None:
    code = "import sys, batchformer.recipes.paper; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
