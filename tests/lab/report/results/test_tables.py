from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from batchformer.lab.report.results.comparison import Comparison, compare_runs
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.report.results.tables import (
    Terminal,
    difference_rows,
    print_table,
    score_rows,
)
from helpers.run_folders import RunTree, recipe_of

ARMS = ("baseline", "batchformer", "batchformer_self", "batchformer_official_loss")


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedRun]:
    tree = RunTree(tmp_path_factory.mktemp("tables"))
    tree.write_pairs(3, *ARMS)
    tree.write_pairs(2, recipe=recipe_of("[red]two"))
    (tree.write("baseline", 8) / "result.json").write_text("{")
    return tree.runs()


@pytest.fixture(scope="module")
def full(many_runs: list[RecordedRun]) -> Comparison:
    return compare_runs(many_runs)


def printed(comparison: Comparison, width: int, **options: Any) -> str:
    file = io.StringIO()
    print_table(comparison, Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_it_fits_and_no_number_is_broken(full: Comparison, width: int) -> None:
    text = printed(full, width)
    assert max(map(len, text.splitlines())) <= width
    for recipe in full.recipes:
        for difference in recipe.differences.values():
            if difference.paired.low is not None:
                whole = f"[{difference.paired.low:+.2f}, {difference.paired.high:+.2f}]"
                assert whole in text, "an interval was wrapped or cut"
    assert all(arm in text for arm in ARMS)
    assert "not reliable" in text


@pytest.fixture
def described(tree: RunTree) -> Comparison:
    values = {"baseline": (0.164, 0.168, 0.160), "batchformer": (0.022, 0.025, 0.018)}
    tree.write_scores(
        {
            arm: [{"knn": 20.0 + seed, "alignment": value} for seed, value in enumerate(each)]
            for arm, each in values.items()
        }
    )
    return compare_runs(tree.runs())


def test_a_description_has_three_decimals_and_no_verdict(described: Comparison) -> None:
    (recipe,) = described.recipes
    # Differences -0.142, -0.143, -0.142: sd 0.00058, 0.0014 to each side.
    row = ("Alignment", "-0.142", "[-0.144, -0.141]", "", "", "", "")
    assert difference_rows(recipe, "batchformer")[1] == row
    # sd 0.004 over 3 seeds: 0.0099 to each side.
    assert score_rows(recipe)[2] == (
        *("Alignment", "baseline", "3", "0.164", "0.004", "[0.154, 0.174]", ""),
    )
    text = printed(described, 80)
    assert "This table holds 1 comparison." in text


def test_the_headline_and_the_last_line_count_the_same_tests(tree: RunTree) -> None:
    """Two seeds are a comparison and no test, so Holm's correction does not count them."""
    baseline = [61.0, 62.5, 60.2, 61.8]
    tree.write_scores({"baseline": baseline, "batchformer": [61.4, 63.6, 60.5, 62.9]})
    noise = [value + 0.1 * (-1) ** seed for seed, value in enumerate(baseline)]
    tree.write_scores(dict.fromkeys("xyz", noise))
    tree.write_scores({"batchformer_self": baseline[:2]})
    text = " ".join(printed(compare_runs(tree.runs()), 80).split())
    assert "A gain, not confirmed." in text
    assert "After Holm's correction over 4 tests it is not significant (p = 0." in text
    assert "gain uncorrected" in text
    assert "This table holds 5 comparisons, 4 of them tested" in text


def test_intervals_end_where_a_score_can_not_go_on(tree: RunTree) -> None:
    """Differences can be negative; an accuracy, a calibration error and a loss can not."""
    scores = {"all": (97.0, 99.5, 99.9), "ece": (0.2, 1.0, 3.0), "val_loss": (0.1, 0.2, 0.9)}
    by_seed = [dict(zip(scores, each, strict=True)) for each in zip(*scores.values(), strict=True)]
    tree.write_scores({"baseline": by_seed, "batchformer": by_seed})
    cells = {row[0]: row[5] for row in score_rows(tree.compared()) if row[0]}
    assert cells["All"].endswith(", 100.00]")
    assert cells["ECE"].startswith("[0.00, ") and not cells["ECE"].endswith(" 100.00]")
    assert cells["val loss"].startswith("[0.00, ")


def test_a_pipe_gets_plain_text(full: Comparison) -> None:
    assert "\x1b" not in printed(full, 80)
    assert "\x1b" in printed(full, 80, force_terminal=True)


def test_names_are_not_taken_for_markup(full: Comparison) -> None:
    assert "[red]two" in printed(full, 80)
    file = io.StringIO()
    Terminal(Console(file=file)).show("", ("arm", "[red]domain"), [("baseline", "[b]")])
    assert "[red]domain" in file.getvalue() and "[b]" in file.getvalue()


def test_an_ascii_terminal_can_show_it(full: Comparison) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as file:
        print_table(full, Console(file=file, width=80))
        file.flush()
        assert b"batchformer" in raw.getvalue()


def test_it_says_how_many_comparisons_and_what_is_missing(full: Comparison) -> None:
    text = " ".join(printed(full, 120).split())
    assert full.comparisons == 20
    assert "This table holds 20 comparisons, 15 of them tested" in text
    assert "Not included: tail/baseline/seed8 is damaged: result.json is not JSON" in text
    assert "bootstrap interval over the 400 test images" in text


def test_two_seeds_show_both_values_and_no_interval(full: Comparison) -> None:
    few = next(recipe for recipe in full.recipes if "two" in recipe.name)
    text = printed(Comparison((few,), 5, 0, (), ()), 80)
    values = few.scores["batchformer", "all"].summary.values
    assert ", ".join(f"{value:.2f}" for value in values) in text
    assert "too few seeds" in text
    assert not any(word in text for word in ("interval  ", "Holm", "Bootstrap", " sd "))


def test_the_paper_has_a_column_only_where_it_has_numbers(tree: RunTree) -> None:
    tree.write_pairs(3, recipe=recipe_of("plain", paper={}))
    plain = compare_runs(tree.runs())
    assert "paper" not in printed(plain, 80)
    tree.write_pairs(3)
    both = compare_runs(tree.runs())
    assert "51.7" in printed(both, 80)
    assert "Seeds needed to detect the paper's effect of batchformer" in printed(both, 80)


def test_another_reference_is_named_and_stands_first(
    full: Comparison, many_runs: list[RecordedRun]
) -> None:
    comparison = compare_runs(many_runs, reference="batchformer_self")
    text = printed(comparison, 80)
    for arm in ("baseline", "batchformer", "batchformer_official_loss"):
        assert f"\n{arm} - batchformer_self\n" in text
    assert "- baseline" not in text
    tail = next(recipe for recipe in comparison.recipes if recipe.name == "tail")
    assert [row[1] for row in score_rows(tail)[:2]] == ["batchformer_self", "baseline"]
    assert max(map(len, text.splitlines())) <= 80
    assert "[red]two has no finished batchformer_self: nothing to compare with" in text
    assert "share" not in printed(full, 80)
