"""The part of the page with effects that are pooled over recipes."""

from __future__ import annotations

from dataclasses import dataclass

from batchformer.insight.figures.captioned import FigureTable, table_html
from batchformer.insight.page.html import Section, section_of
from batchformer.lab.report.figures import forest
from batchformer.lab.report.results.pooling import Effect, PooledEffects
from batchformer.lab.report.results.tables import (
    COLUMNS,
    effect_rows,
    pooled_headline,
    pooled_notes,
)


@dataclass(frozen=True)
class Pair:
    """One arm against another over several recipes."""

    headline: str
    table: str
    sections: list[Section]


@dataclass(frozen=True)
class PooledPart:
    """What the template needs."""

    found: PooledEffects
    parts: list[Pair]
    notes: list[str]


def pooled_part(found: PooledEffects) -> PooledPart:
    """Headline, table and forest plots of every arm."""
    parts = [
        _pair(arm, reference, found.of(arm, reference), f"pooled-{i + 1}")
        for i, (arm, reference) in enumerate(found.pairs)
    ]
    return PooledPart(found, parts, pooled_notes(found))


def _pair(arm: str, reference: str, effects: dict[str, Effect], prefix: str) -> Pair:
    numbers = FigureTable(f"{arm} - {reference}, over recipes", COLUMNS, effect_rows(effects))
    drawn = [
        section_of(forest.make(arm, reference, metric, effect), f"{prefix}-{metric}")
        for metric, effect in effects.items()
    ]
    return Pair(
        pooled_headline(arm, reference, effects),
        table_html(numbers),
        drawn,
    )
