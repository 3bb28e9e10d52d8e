"""How many test images a figure is of: networks are looked at on a part of them."""

from __future__ import annotations

from dataclasses import dataclass

from batchformer.lab.report.results.configuration import Group


@dataclass(frozen=True)
class Seen:
    """How many test images a figure is of, and how many there are where that is known."""

    images: int
    whole: int | None

    @property
    def part(self) -> bool:
        return self.whole is not None and self.images < self.whole

    @property
    def words(self) -> str:
        """As a caption calls them.

        >>> Seen(4096, 10_000).words, Seen(300, 300).words
        ('4,096 of the 10,000 test images', '300 test images')
        """
        if self.part:
            return f"{self.images:,} of the {self.whole:,} test images"
        return f"{self.images:,} test images"


def seen_images(group: Group, images: int) -> Seen:
    """So many, among as many as the networks that were looked at have answers to."""
    for run in group.runs:
        answers = run.insight_figures.get("correct") if run.insight else None
        if answers is not None and answers.ndim == 1:
            return Seen(images, len(answers))
    return Seen(images, None)
