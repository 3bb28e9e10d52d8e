"""A printed row of the paper, and the block of a table it stands in; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Task = Literal[
    "long_tailed",
    "zero_shot",
    "domains",
    "contrastive",
    "detection",
    "recognition",
    "ablation",
]
Arm = Literal["baseline", "batchformer"]


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One method on one data set with one network, as the paper prints it."""

    table: str
    """T1 to T8 and T6b (the appendix's longer T6); tables without such a number by subject."""
    task: Task
    """Family of experiments."""
    data: str
    """Data set, with what distinguishes its versions."""
    model: str
    """Network."""
    method: str
    """What is trained; the row with BatchFormer names the method it is added to."""
    arm: Arm
    """With BatchFormer, or without."""
    numbers: Mapping[str, float]
    """Every printed number in percent by metric, the headline first; a dash is left out."""
    recipe: str | None = None
    """Name of the recipe that trains this row; None where the paper copies a published number of a
    method that it also trains."""
    note: str = ""
    """What a reader should know before trusting the number."""

    @property
    def headline(self) -> str:
        """The metric by which the paper compares this row."""
        return next(iter(self.numbers))


@dataclass(frozen=True, kw_only=True)
class Block:
    """What the rows of one block of a table share, and the columns they are printed in.

    >>> block = Block(table="T6", task="domains", data="PACS", model="ResNet-18",
    ...               columns="art photo average", headline="average")
    >>> row = block.alone("Baseline", "79.9±1.0 95.7±0.4 87.8")
    >>> row.numbers
    {'average': 87.8, 'art': 79.9, 'photo': 95.7}
    """

    table: str
    task: Task
    data: str
    model: str
    columns: str
    """Metrics in the printed order, separated by spaces."""
    headline: str

    def pair(
        self,
        method: str,
        baseline: str,
        batchformer: str,
        *,
        recipe: str | None = None,
        note: str = "",
        batchformer_note: str = "",
    ) -> tuple[PaperRow, PaperRow]:
        """A method and the row below it, '+ BatchFormer'."""
        below = self.alone(
            method, batchformer, arm="batchformer", recipe=recipe, note=batchformer_note
        )
        return self.alone(method, baseline, recipe=recipe, note=note), below

    def alone(
        self,
        method: str,
        cells: str,
        *,
        arm: Arm = "baseline",
        recipe: str | None = None,
        note: str = "",
    ) -> PaperRow:
        """A row without a counterpart."""
        printed = dict(zip(self.columns.split(), cells.split(), strict=True))
        means = {metric: c.partition("±")[0] for metric, c in printed.items() if c != "-"}
        order = sorted(means, key=lambda metric: metric != self.headline)
        return PaperRow(
            table=self.table,
            task=self.task,
            data=self.data,
            model=self.model,
            method=method,
            arm=arm,
            numbers={metric: float(means[metric]) for metric in order},
            recipe=recipe,
            note=note,
        )
