"""Feature vectors with attributes of their classes, some of which are never trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from batchformer.lab.data.files.content_hash import content_hash
from batchformer.nn.randomness import generator

# Keeps an exact count such as 0.29 * 100 from being rounded down to one row less.
_ROUNDING_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class AttributeFeatures:
    """Features of all images, attributes of all classes, and the rows of each part.

    Seen classes are those of the training rows, unseen ones those of `test_unseen`; together they
    are all K, and no class is both.

    Args:
        name: what the data is.
        features: (N, D) float32, as they came; :meth:`scaled` is what networks see.
        labels: (N,) int64 class of each row, from 0.
        attributes: (K, A) float32.
        classes: K class names.
        trainval: rows that are trained on, int64.
        test_seen: rows of seen classes that scores are measured on.
        test_unseen: rows of unseen classes that scores are measured on.
        val_classes: seen classes that stand for unseen ones while settings are chosen, or None
            where the data names none.
    """

    name: str
    features: Tensor
    labels: Tensor
    attributes: Tensor
    classes: tuple[str, ...]
    trainval: Tensor
    test_seen: Tensor
    test_unseen: Tensor
    val_classes: Tensor | None = None

    def __post_init__(self) -> None:
        self._check_arrays()
        self._check_rows()
        self._check_classes()

    @cached_property
    def seen(self) -> Tensor:
        """(S,) int64 numbers of the classes that are trained on, rising."""
        return classes_of(self.labels, self.trainval)

    @cached_property
    def unseen(self) -> Tensor:
        """(U,) int64 numbers of the classes that are never trained on, rising."""
        return classes_of(self.labels, self.test_unseen)

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the class names, features, labels and attributes, and the rows of each part."""
        arrays = (self.features, self.labels, self.attributes)
        rows = (self.trainval, self.test_seen, self.test_unseen)
        return content_hash("\n".join(self.classes), *arrays, *rows)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """(D,) least value, and (D,) divisor, of the training rows."""
        training = self.features[self.trainval]
        low, high = training.amin(0), training.amax(0)
        # A channel that never changes has no range; it becomes 0 in every training row.
        span = torch.where(high > low, high - low, torch.ones_like(low))
        largest = ((high - low) / span).max()
        return low, span * torch.where(largest > 0, largest, torch.ones_like(largest))

    def scaled(self, rows: Tensor) -> Tensor:
        """Features (n, D) of rows (n,): each channel to [0, 1], then over the training maximum.

        Ranges and maximum are those of the training rows, so other rows may leave [0, 1]. The
        maximum is 1 unless no channel of the training rows changes.
        """
        low, divisor = self._scale
        return (self.features[rows] - low) / divisor

    def for_selection(self, fraction: float = 0.2, seed: int = 0) -> AttributeFeatures:
        """The same task one level down, for choosing settings without the test rows.

        `val_classes` become the unseen classes, with their training rows to be tested on. Of each
        other seen class, ``floor(fraction * n)`` of its n training rows, drawn from (seed, class
        number), are held out as `test_seen`. Rows and classes of the test are left out altogether:
        classes are numbered anew, in the old order, and rows are those of the old training part.

        Args:
            fraction: part of the rows of each seen class to hold out, in (0, 1).
            seed: of the draw.
        """
        if self.val_classes is None:
            raise ValueError(
                f"{self.name} names no classes of validation, so nothing can be chosen by them; "
                "give val_classes, or train on all seen classes at once: --data.no-choose"
            )
        if not 0 < fraction < 1:
            raise ValueError(f"fraction is a part of the rows, between 0 and 1: {fraction}")
        number = torch.full((len(self.classes),), -1).index_copy(
            0, self.seen, torch.arange(len(self.seen))
        )
        labels = self.labels[self.trainval]
        chosen = torch.isin(labels, self.val_classes)
        held = torch.zeros_like(chosen)
        for c in self.seen[~torch.isin(self.seen, self.val_classes)].tolist():
            rows = (labels == c).nonzero().flatten()
            order = torch.randperm(len(rows), generator=generator(seed, "split", c))
            held[rows[order[: math.floor(fraction * len(rows) + _ROUNDING_SLACK)]]] = True
        return AttributeFeatures(
            name=f"{self.name}, classes of validation unseen",
            features=self.features[self.trainval],
            labels=number[labels],
            attributes=self.attributes[self.seen],
            classes=tuple(self.classes[c] for c in self.seen.tolist()),
            trainval=(~chosen & ~held).nonzero().flatten(),
            test_seen=held.nonzero().flatten(),
            test_unseen=chosen.nonzero().flatten(),
        )

    def _check_arrays(self) -> None:
        wanted = {
            "features": (self.features, torch.float32, 2),
            "labels": (self.labels, torch.int64, 1),
            "attributes": (self.attributes, torch.float32, 2),
        }
        for name, (tensor, dtype, axes) in wanted.items():
            if tensor.dtype != dtype or tensor.ndim != axes:
                raise ValueError(
                    f"{self.name}: {name} must be {dtype} with {axes} axes, got {tensor.dtype} of "
                    f"shape {tuple(tensor.shape)}"
                )
            if dtype == torch.float32 and not bool(tensor.isfinite().all()):
                raise ValueError(f"{self.name}: {name} are not all finite numbers")
        if len(self.features) != len(self.labels):
            raise ValueError(
                f"{self.name}: {len(self.features)} features but {len(self.labels)} labels"
            )
        if len(self.attributes) != len(self.classes):
            raise ValueError(
                f"{self.name}: attributes of {len(self.attributes)} classes but "
                f"{len(self.classes)} class names"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(
                f"{self.name}: labels run from {low} to {high}, but the {len(self.classes)} "
                f"classes are 0..{len(self.classes) - 1}"
            )

    def _check_rows(self) -> None:
        parts = {
            "trainval": self.trainval,
            "test_seen": self.test_seen,
            "test_unseen": self.test_unseen,
        }
        for name, rows in parts.items():
            if rows.dtype != torch.int64 or rows.ndim != 1 or not len(rows):
                raise ValueError(f"{self.name}: {name} must be one or more int64 row numbers")
            if int(rows.min()) < 0 or int(rows.max()) >= len(self.labels):
                raise ValueError(
                    f"{self.name}: {name} runs from {int(rows.min())} to {int(rows.max())}, but "
                    f"the rows are 0..{len(self.labels) - 1}"
                )
        together = torch.cat(list(parts.values()))
        if int(torch.bincount(together).max()) > 1:
            raise ValueError(
                f"{self.name}: a row stands twice in {', '.join(parts)}; each row belongs to one "
                "part at most"
            )

    def _check_classes(self) -> None:
        both = self.seen[torch.isin(self.seen, self.unseen)]
        if len(both):
            raise ValueError(
                f"{self.name}: classes {_few(both)} are tested as unseen but have training rows"
            )
        covered = torch.cat((self.seen, self.unseen))
        neither = torch.arange(len(self.classes))
        neither = neither[~torch.isin(neither, covered)]
        if len(neither):
            raise ValueError(
                f"{self.name}: classes {_few(neither)} have no training row and no unseen test row"
            )
        stray = classes_of(self.labels, self.test_seen)
        stray = stray[~torch.isin(stray, self.seen)]
        if len(stray):
            raise ValueError(
                f"{self.name}: test_seen has rows of classes {_few(stray)}, which have no training "
                "rows"
            )
        if self.val_classes is not None:
            chosen = self.val_classes
            if not len(chosen) or not bool(torch.isin(chosen, self.seen).all()):
                raise ValueError(f"{self.name}: val_classes must be one or more seen classes")
            if bool(torch.isin(self.seen, chosen).all()):
                raise ValueError(f"{self.name}: val_classes leave no seen class to train on")


def classes_of(labels: Tensor, rows: Tensor) -> Tensor:
    """The class numbers that some rows have, rising, each once.

    >>> classes_of(torch.tensor([7, 3, 3, 5]), torch.tensor([0, 1, 2]))
    tensor([3, 7])
    """
    return torch.bincount(labels[rows]).nonzero().flatten()


def _few(numbers: Tensor) -> str:
    first = ", ".join(map(str, numbers[:5].tolist()))
    return first + (", ..." if len(numbers) > 5 else "")
