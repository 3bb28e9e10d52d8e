from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchformer.insight.figures.text import interval
from batchformer.lab.config.arms import BASELINE
from batchformer.lab.report.results.comparison import RecipeComparison
from batchformer.lab.report.results.words import (
    counted,
    headline,
    over_images_sentence,
    p_value,
    paper_sentence,
    question,
)
from helpers.run_folders import RunTree


@given(st.floats(0, 1))
def test_a_p_value_never_reads_as_zero(p: float) -> None:
    text = p_value(p)
    assert text == "<0.001" if p < 0.001 else float(text) > 0
    assert len(text) <= 6


def test_an_interval_that_is_not_there_is_nothing() -> None:
    assert (interval(None, None), interval(-1.0, 2.0, sign=True)) == ("", "[-1.00, +2.00]")


GAIN = [(61.0, 62.4), (62.5, 63.6), (60.2, 61.9), (61.8, 62.9)]
NOISE = [(61.0, 61.6), (62.5, 61.9), (60.2, 60.9)]
EQUAL = [(60.0, 61.0), (61.0, 62.0), (62.0, 63.0)]
CONTROL = "batchformer_self"


def compared(
    tree: RunTree, pairs: list[tuple[float, float]], metric: str = "all", reference: str = BASELINE
) -> RecipeComparison:
    """The reference and BatchFormer with these scores by seed."""
    before, after = zip(*pairs, strict=True)
    tree.write_scores({reference: before, "batchformer": after}, metric)
    return tree.compared(reference)


def test_a_gain_is_said_with_its_interval_and_seeds(tree: RunTree) -> None:
    recipe = compared(tree, GAIN)
    text = headline(recipe, 1)
    result = recipe.differences["batchformer", "all"].paired
    assert text.startswith("A gain. batchformer - baseline: +1.32 percentage points on All, 95% ")
    assert interval(result.low, result.high, sign=True) in text
    assert ", 4 paired seeds." in text
    assert "The paper's +1.0 lies inside this interval. At this spread it takes 3 seeds" in text
    assert "not significant" not in text
    text = headline(compared(tree, [(a, b + 1.0) for a, b in GAIN]), 1)
    assert "95% interval [+1.87, +2.78]" in text
    assert "The paper's +1.0 lies outside this interval." in text


def test_a_sentence_says_what_is_compared_and_tested(tree: RunTree) -> None:
    assert question(compared(tree, GAIN, reference=CONTROL)) == (
        "The arms batchformer_self and batchformer were trained from the same 4 seeds, and a "
        "paired t test asks whether they differ in All, the accuracy on all test images."
    )
    assert question(compared(RunTree(tree.root / "two"), GAIN[:2])) == (
        "The arms baseline and batchformer were trained from the same 2 seeds and are compared in "
        "All, the accuracy on all test images."
    )


def test_noise_is_said_plainly_and_how_many_seeds_are_missing(tree: RunTree) -> None:
    recipe = compared(tree, NOISE)
    needed = recipe.differences["batchformer", "all"].needed
    text = headline(recipe, 1)
    assert text.startswith("No reliable difference. batchformer - baseline: +0.23 percentage")
    assert "gain" not in text
    assert f"takes {needed} seeds to detect an effect of that size with 80% power" in text
    assert text.endswith("; there are 3.")
    assert paper_sentence(recipe, "batchformer").endswith(f"at this spread: All +1.0: {needed}.")
    said = over_images_sentence(recipe)
    assert said.startswith(
        "Difference in accuracy with a 95% bootstrap interval over the 400 test images: "
    )
    assert "says nothing about other seeds" in said


def test_comparisons_are_counted() -> None:
    assert counted(0, 0) == "This table holds no comparison."
    assert counted(1, 0) == "This table holds 1 comparison, none of them tested."
    assert counted(3, 2, "A page") == (
        "A page holds 3 comparisons, 2 of them tested; Holm's p-values are corrected over all 2 "
        "tests."
    )


def test_the_same_difference_in_every_seed_is_no_certainty(tree: RunTree) -> None:
    text = headline(compared(tree, EQUAL), 1)
    assert "+1.00 percentage points on All, in each of 3 paired seeds" in text
    assert text.startswith("No verdict.")


def test_where_all_metrics_only_describe_there_is_no_verdict(tree: RunTree) -> None:
    recipe = compared(tree, [(-0.8, -1.3), (-0.81, -1.32), (-0.82, -1.34)], "uniformity")
    assert headline(recipe, 0) == "No verdict. Uniformity is not tested; a note says why."


def test_a_metric_where_lower_is_better_says_so(tree: RunTree) -> None:
    recipe = compared(tree, [(9.0, 7.1), (8.8, 7.0), (9.3, 7.0)], "ece")
    text = headline(recipe, 1)
    assert text.startswith("A gain. ")
    assert "-2.00 percentage points on ECE, where lower is better" in text


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (GAIN, "A gain. batchformer - batchformer_self: +1.32 percentage points on All"),
        (
            GAIN[:2],
            "Too few seeds for a verdict. All of batchformer_self and of batchformer, seed 0: "
            "61.00 and 62.40; seed 1: 62.50 and 63.60.",
        ),
    ],
)
def test_the_headline_names_another_reference(
    tree: RunTree, pairs: list[tuple[float, float]], words: str
) -> None:
    recipe = compared(tree, pairs, reference=CONTROL)
    text = headline(recipe, 1)
    assert text.startswith(words)
    assert "baseline" not in text
    assert "paper" not in text, "the paper has no numbers of the control"
    assert paper_sentence(recipe, "batchformer") == ""


def test_what_shares_nothing_with_the_reference_says_so(tree: RunTree) -> None:
    tree.write("batchformer", 0, scores={"all": 60.0, "few": 21.0})
    tree.write(CONTROL, 1, scores={"few": 20.0})
    assert question(tree.compared(BASELINE)) == ""
    assert headline(tree.compared(BASELINE), 0).startswith("Nothing to compare.")
    assert headline(tree.compared(CONTROL), 0) == (
        "Nothing to compare. No arm shares a finished seed with batchformer_self."
    )
    tree.write(CONTROL, 0, scores={"few": 20.0})
    assert headline(tree.compared(CONTROL), 1) == (
        "Nothing to compare. batchformer and batchformer_self share no seed in which All was "
        "measured."
    )
