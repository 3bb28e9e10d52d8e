"""What a comparison holds: scores by arm, differences to the reference, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batchformer.insight.intervals import Summary
from batchformer.lab.metrics.intervals import ImageInterval, Outcome, Paired
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import main_metric

LEVEL = 0.05
"""A p-value below this, after Holm's correction, stands among all comparisons of the table."""


@dataclass(frozen=True)
class Score:
    """One arm on one metric: over its seeds, and in the paper; written with so many decimals."""

    summary: Summary
    seeds: tuple[int, ...]
    paper: float | None
    decimals: int = 2


@dataclass(frozen=True)
class Difference:
    """One arm against the reference on one metric, over the seeds both have finished.

    Args:
        paired: mean difference, interval and p-value.
        seeds: those both arms have.
        outcome: in a word, of this comparison alone; None where a metric only describes, which is
            no comparison and has no p-value.
        adjusted: Holm's p-value over every comparison of the table.
        paper_effect: the paper's difference, percent points; None without both its numbers.
        needed: seeds that would show the paper's effect at the spread seen here.
        decimals: that it is written with.
    """

    paired: Paired
    seeds: tuple[int, ...]
    outcome: Outcome | None
    adjusted: float | None
    paper_effect: float | None
    needed: int | None
    decimals: int = 2

    @property
    def stands(self) -> bool:
        """Whether the outcome holds among all comparisons of the table."""
        return self.adjusted is not None and self.adjusted < LEVEL


@dataclass(frozen=True)
class RecipeComparison:
    """Every arm of one recipe; ``scores`` and ``differences`` go by (arm, metric).

    ``over_images`` is, by arm, the difference of the accuracy over all test images with its
    bootstrap interval over those images.
    """

    group: RunGroup
    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    scores: Mapping[tuple[str, str], Score]
    differences: Mapping[tuple[str, str], Difference]
    over_images: Mapping[str, ImageInterval]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def reference(self) -> str:
        """The arm that the others are compared with."""
        return self.group.reference

    @property
    def others(self) -> tuple[str, ...]:
        """The arms compared with the reference."""
        return tuple(dict.fromkeys(arm for arm, _ in self.differences))

    @property
    def main_arm(self) -> str | None:
        """The arm the headline is about."""
        return "batchformer" if "batchformer" in self.others else next(iter(self.others), None)

    @property
    def main_metric(self) -> str:
        """The metric the headline is about."""
        return main_metric(self.metrics) or "all"


@dataclass(frozen=True)
class Comparison:
    """The whole table: its recipes, how many comparisons it holds, what is not in it."""

    recipes: tuple[RecipeComparison, ...]
    comparisons: int
    tested: int
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]
