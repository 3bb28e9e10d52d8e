"""What ties the numbers of the paper together; the numbers are in settings.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS, PaperRow, rows_for
from batchformer.lab.recipes.paper.row import read_rows

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


def find_row(table: str, data: str, model: str, method: str, arm: str) -> PaperRow:
    """The one row of the paper with these."""
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


def test_no_row_stands_twice() -> None:
    assert not [key for key, n in Counter(name(row) for row in ROWS).items() if n > 1]


def test_rows_of_one_block_share_their_metrics() -> None:
    """But for dashes, which only shorten a row."""
    for row in ROWS:
        peers = [r for r in ROWS if (r.table, r.data) == (row.table, row.data)]
        longest = max((r.numbers for r in peers), key=len)
        assert row.numbers.keys() <= longest.keys(), name(row)
        assert next(iter(row.numbers)) == next(iter(longest)), name(row)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.arm == "batchformer" and r.table not in WITHOUT_BASELINE], ids=name
)
def test_each_batchformer_row_has_its_baseline(row: PaperRow) -> None:
    baseline = find_row(row.table, row.data, row.model, row.method, "baseline")
    assert baseline.numbers.keys() <= row.numbers.keys()
    # RIDE's own two stages are others than those that BatchFormer is added to.
    assert (baseline.recipe == row.recipe) == ("two stages" not in row.method)


def test_the_tables_without_baselines_have_none() -> None:
    assert {row.arm for row in ROWS if row.table in WITHOUT_BASELINE} == {"batchformer"}


@pytest.mark.parametrize(("row", "value"), IMPLIED, ids=[name(row) for row, _ in IMPLIED])
def test_headline_agrees_with_its_columns_or_a_note_says_what_they_imply(
    row: PaperRow, value: float
) -> None:
    printed = next(iter(row.numbers.values()))
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
    main, appendix = find_row("T7", *swad), find_row("T6b", *swad)
    assert (main.numbers["average"], appendix.numbers["average"]) == (83.7, 83.9)
    assert "83.9 in T6b" in main.note
    assert "83.7 in T7" in appendix.note
    for arm in ("baseline", "batchformer"):
        first, second = (
            find_row(table, "PACS", "ResNet-18", "Baseline", arm) for table in ("T6", "T6b")
        )
        assert str(second.numbers["average"]) in first.note
        assert str(first.numbers["average"]) in second.note
    t2 = find_row("T2", "ImageNet-LT", "ResNet-50", "Balanced Softmax", "batchformer")
    ablated = find_row(
        "Shared classifier", "ImageNet-LT", "ResNet-50", "Balanced Softmax", "batchformer"
    )
    for one, other in ((t2, ablated), (ablated, t2)):
        assert ", ".join(map(str, other.numbers.values())) in one.note


def test_resnet50_rows_of_pacs_have_photo_and_sketch_put_right() -> None:
    for row in ROWS:
        if row.data == "PACS" and "photo" in row.numbers:
            assert row.numbers["photo"] > row.numbers["sketch"] + 10, row


def test_averages_of_t7_are_those_of_the_tables_by_data_set() -> None:
    for row in ROWS:
        if row.table == "T7":
            table = "T6b" if row.data == "PACS" else row.data
            longer = find_row(table, row.data, row.model, row.method, row.arm)
            same = longer.numbers["average"] == row.numbers["average"]
            assert same or f"{longer.numbers['average']} in {table}" in row.note, row


def test_what_t6b_repeats_is_the_same() -> None:
    repeated = [row for row in ROWS if row.note == "repeats T6"]
    assert len(repeated) == 4
    for row in repeated:
        first = find_row("T6", row.data, row.model, row.method, row.arm)
        assert first.numbers == row.numbers


def test_a_row_with_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        read_rows("long_tailed", "= T1 | d | m | all many\nmethod\n  50.0")


def test_rows_with_a_recipe_carry_its_numbers() -> None:
    # SWEEP/LEVEL is no recipe by itself: tests/lab/recipes/test_sweeps.py.
    named = [row for row in ROWS if row.recipe is not None and "/" not in row.recipe]
    assert named
    for row in named:
        assert row.recipe in RECIPES, name(row)
        recipe = find_recipe(row.recipe)
        # Some rows are printed in two tables, where one may have fewer columns or differ.
        rows = [r for r in named if (r.recipe, r.arm) == (row.recipe, row.arm)]
        longest = max((r.numbers for r in rows), key=len)
        assert list(recipe.paper[row.arm]) == list(longest), name(row)
        for metric, value in recipe.paper[row.arm].items():
            assert value == next(r.numbers[metric] for r in rows if metric in r.numbers), name(row)
        tables = {r.table for r in rows}
        assert any(recipe.table.startswith(table) for table in tables), name(row)
        family = {"compositional": "zero_shot", "generalized": "zero_shot"}
        task = "contrastive" if recipe.method == "linear_probe" else recipe.task
        assert family.get(task, task) == row.task, name(row)


def test_recipes_that_name_a_table_have_its_numbers() -> None:
    for recipe in map(find_recipe, RECIPES):
        elsewhere = recipe.table.startswith("not in the paper") or "its features" in recipe.table
        assert bool(recipe.paper) != elsewhere, recipe.name


def test_the_released_schedule_is_of_the_same_row() -> None:
    released = find_recipe("cifar100_lt_balanced_softmax_released")
    assert released.paper == find_recipe("cifar100_lt_balanced_softmax").paper != {}


def test_every_row_has_a_recipe_or_is_a_published_copy() -> None:
    copies = {row.method for row in ROWS if row.recipe is None}
    assert all(method.endswith(" (published)") for method in copies)
    for row in ROWS:
        if row.method.endswith(" (published)"):
            again = row.method.removesuffix(" (published)")
            assert find_row(row.table, row.data, row.model, again, "baseline").recipe


def test_docstrings_of_recipes_state_the_papers_headline_numbers() -> None:
    for recipe, make in RECIPES.items():
        # The released schedule is that of another recipe's row; a table's rows share a docstring.
        if rows_for(recipe) and "<locals>" not in make.__qualname__:
            for numbers in make().paper.values():
                assert f"{next(iter(numbers.values())):g}" in str(make.__doc__), recipe
