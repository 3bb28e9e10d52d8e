"""Numbers and verdicts as text: signs, two decimals, no claim beyond the interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from batchformer.insight.figures.text import interval, number, seeds, signed
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.config.arms import BASELINE
from batchformer.lab.metrics.intervals import Paired, Pooled
from batchformer.lab.report.results.comparison import Difference, RecipeComparison, Score
from batchformer.lab.report.results.names import LOWER_IS_BETTER, MEANINGS, in_words, metric_label
from batchformer.lab.report.results.pooling import Effect

K = TypeVar("K")
V = TypeVar("V", Difference, Effect)

INTERVAL = (
    "The 95% interval is Student's t over seeds: repeated with new seeds, 19 of 20 such intervals "
    "would contain the true mean."
)


def p_value(p: float | None) -> str:
    """Two decimals, three for a small value; below 0.001 the exact size says nothing more.

    >>> p_value(0.034), p_value(2e-5), p_value(0.4), p_value(None)
    ('0.034', '<0.001', '0.40', '')
    """
    if p is None:
        return ""
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def values_of(score: Score) -> str:
    """Each seed's value, for arms with too few seeds for a mean."""
    return ", ".join(number(value, score.decimals) for value in score.summary.values)


def differences_of(difference: Difference) -> str:
    """Each seed's difference."""
    pairs = zip(difference.paired.baseline, difference.paired.other, strict=True)
    return ", ".join(signed(other - baseline, difference.decimals) for baseline, other in pairs)


def with_interval(found: Paired | Pooled) -> str:
    """A difference with its interval, where it has one."""
    return f"{signed(found.difference)} {interval(found.low, found.high, sign=True)}".strip()


def short_verdict(found: Difference | Effect) -> str:
    """The outcome in a word or two for a table cell; empty for a metric that is not tested.

    It says if Holm's correction removes the significance of a gain or a loss.
    """
    undone = found.outcome in ("gain", "loss") and not found.significant
    return f"{found.outcome} uncorrected" if undone else found.outcome or ""


def by_verdict(found: Mapping[K, V]) -> dict[str, dict[K, V]]:
    """Comparisons by outcome; ``uncorrected`` if significant only without Holm's correction."""
    sorted_out: dict[str, dict[K, V]] = defaultdict(dict)
    for key, one in found.items():
        word = short_verdict(one)
        sorted_out["uncorrected" if word.endswith("uncorrected") else word][key] = one
    return sorted_out


class Answer(NamedTuple):
    """The verdict on the main arm and metric in a few words, and the numbers behind it."""

    verdict: str
    numbers: str


def headline(recipe: RecipeComparison, tested: int) -> str:
    """The answer in one paragraph."""
    return "{}. {}".format(*answer(recipe, tested))


def answer(recipe: RecipeComparison, tested: int) -> Answer:
    """The verdict first, then the difference with its interval.

    ``tested`` is the number of tests that Holm's correction is over.
    """
    arm, metric, reference = recipe.main_arm, recipe.main_metric, in_words(recipe.reference)
    if arm is None:
        return Answer("Nothing to compare", f"No arm shares a finished seed with {reference}.")
    difference, label = recipe.main_difference, metric_label(metric)
    if difference is None:
        shared = f"{arm} and {reference} share no seed in which {label} was measured."
        return Answer("Nothing to compare", shared)
    result, count = difference.paired, f"{difference.paired.n} paired seeds"
    if difference.outcome is None:
        return Answer("No verdict", f"{label} is not tested; a note says why.")
    if difference.outcome == "too few seeds":
        both = zip(difference.seeds, result.baseline, result.other, strict=True)
        listed = "; ".join(f"seed {s}: {number(a)} and {number(b)}" for s, a, b in both)
        return Answer(
            "Too few seeds for a verdict",
            f"{label} of {reference} and of {arm}, {listed}. An interval needs {FEWEST_SEEDS} "
            f"seeds.",
        )
    size = f"{arm} - {recipe.reference}: {signed(result.difference)} percentage points on {label}"
    if metric in LOWER_IS_BETTER:
        size += ", where lower is better"
    if difference.outcome == "no spread":
        return Answer(
            "No verdict", f"{size}, in each of {count}. Without spread there is no interval."
        )
    size += f", 95% interval {interval(result.low, result.high, sign=True)}, {count}."
    if difference.outcome == "not reliable":
        return Answer("No reliable difference", size + _power(difference))
    if difference.significant:
        return Answer(f"A {difference.outcome}", size + _power(difference))
    size += (
        f" After Holm's correction over {tested} tests it is not significant "
        f"(p = {p_value(difference.adjusted)})."
    )
    return Answer(f"A {difference.outcome}, not confirmed", size + _power(difference))


def question(recipe: RecipeComparison) -> str:
    """What is compared and tested, in one sentence; empty if the main metric has no outcome."""
    difference = recipe.main_difference
    if difference is None or difference.outcome is None:
        return ""
    meant = MEANINGS.get(recipe.main_metric)
    label = metric_label(recipe.main_metric) + (f", the {meant}" if meant else "")
    trained = (
        f"The arms {recipe.reference} and {recipe.main_arm} were trained from the same "
        f"{seeds(difference.paired.n)}"
    )
    if difference.paired.p_value is None:
        return f"{trained} and are compared in {label}."
    return f"{trained}, and a paired t test asks whether they differ in {label}."


def counted(comparisons: int, tested: int, place: str = "This table") -> str:
    """How many comparisons there are, how many are tested, and whether p-values are corrected."""
    if not comparisons:
        return f"{place} holds no comparison."
    text = f"{place} holds {comparisons} comparison{'s' * (comparisons != 1)}"
    if tested < comparisons:
        text += f", {tested or 'none'} of them tested"
    if tested < 2:
        return text + "."
    return f"{text}; Holm's p-values are corrected over all {tested} tests."


def over_images_sentence(recipe: RecipeComparison) -> str:
    """The bootstrap intervals over test images, and what they do not say; empty without them."""
    if not recipe.over_images:
        return ""
    listed = "; ".join(
        f"{arm}{_compared(recipe)} {signed(images.mean)} "
        f"{interval(images.low, images.high, sign=True)}"
        for arm, images in recipe.over_images.items()
    )
    count = max(images.images for images in recipe.over_images.values())
    return (
        f"Difference in accuracy with a 95% bootstrap interval over the {count:,} test images: "
        f"{listed}. It holds for these trained networks and says nothing about other seeds."
    )


def paper_sentence(recipe: RecipeComparison, arm: str) -> str:
    """How many seeds would show each of the paper's effects; empty if that is not known."""
    listed = []
    for metric in recipe.metrics:
        difference = recipe.differences.get((arm, metric))
        if difference and difference.needed is not None and difference.paper_effect is not None:
            effect = signed(difference.paper_effect, 1)
            listed.append(f"{metric_label(metric)} {effect}: {difference.needed}")
    if not listed:
        return ""
    return (
        f"Seeds needed to detect the paper's effect of {arm}{_compared(recipe)} with 80% power at "
        f"this spread: {'; '.join(listed)}."
    )


def _compared(recipe: RecipeComparison) -> str:
    """Name the reference arm if it is not the baseline, which a reader expects."""
    return "" if recipe.reference == BASELINE else f" compared with {recipe.reference}"


def _power(difference: Difference) -> str:
    needed, effect, here = difference.needed, difference.paper_effect, difference.paired.n
    if needed is None or effect is None:
        return ""
    text = ""
    low, high = difference.paired.low, difference.paired.high
    if low is not None and high is not None:
        place = "inside" if low <= effect <= high else "outside"
        text = f" The paper's {signed(effect, 1)} lies {place} this interval."
    return (
        f"{text} At this spread it takes {seeds(needed)} to detect an effect of that size with "
        f"80% power; there are {here}."
    )
