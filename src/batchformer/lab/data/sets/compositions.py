"""Attributes, objects, and the pairs of them that images show; some pairs are never trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Phase = Literal["train", "val", "test"]
Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Compositions:
    """A attributes, O objects, and P pairs that an image can be said to show.

    Args:
        attributes: A names, sorted.
        objects: O names, sorted.
        attribute: (P,) int64 number of each pair's attribute.
        object: (P,) int64 number of each pair's object.
        seen: (P,) bool, whether training images show it.
        val: (P,) bool, whether it is one of the pairs of validation.
        test: (P,) bool, whether it is one of the pairs of the test.
    """

    attributes: tuple[str, ...]
    objects: tuple[str, ...]
    attribute: Tensor
    object: Tensor
    seen: Tensor
    val: Tensor
    test: Tensor

    @classmethod
    def of(cls, train: Sequence[Pair], val: Sequence[Pair], test: Sequence[Pair]) -> Compositions:
        """The closed world: the pairs that occur in one of the three parts, sorted.

        >>> few = Compositions.of([("old", "cat"), ("wet", "dog")], [], [("wet", "cat")])
        >>> few.names
        (('old', 'cat'), ('wet', 'cat'), ('wet', 'dog'))
        >>> few.seen
        tensor([ True, False,  True])
        """
        pairs = sorted({*train, *val, *test})
        if not train:
            raise ValueError("there is no pair to train on")
        attributes = tuple(sorted({attribute for attribute, _ in pairs}))
        objects = tuple(sorted({thing for _, thing in pairs}))
        numbers = [
            {name: place for place, name in enumerate(names)} for names in (attributes, objects)
        ]
        parts = [
            torch.tensor([pair in own for pair in pairs]) for own in map(set, (train, val, test))
        ]
        return cls(
            attributes,
            objects,
            torch.tensor([numbers[0][attribute] for attribute, _ in pairs]),
            torch.tensor([numbers[1][thing] for _, thing in pairs]),
            *parts,
        )

    def opened(self) -> Compositions:
        """The open world: every attribute with every object, A * O pairs in that order."""
        count, things = len(self.attributes), len(self.objects)
        place = self.attribute * things + self.object

        def spread(flags: Tensor) -> Tensor:
            return torch.zeros(count * things, dtype=torch.bool).index_put((place,), flags)

        return dataclasses.replace(
            self,
            attribute=torch.arange(count).repeat_interleave(things),
            object=torch.arange(things).repeat(count),
            seen=spread(self.seen),
            val=spread(self.val),
            test=spread(self.test),
        )

    @property
    def names(self) -> tuple[Pair, ...]:
        """The P pairs in words."""
        numbers = zip(self.attribute.tolist(), self.object.tolist(), strict=True)
        return tuple((self.attributes[a], self.objects[o]) for a, o in numbers)

    def candidates(self, phase: Phase) -> Tensor:
        """(P,) bool: pairs that an image of this phase may be said to show in the closed world."""
        own = {"train": self.seen, "val": self.val, "test": self.test}[phase]
        return own | self.seen

    def __len__(self) -> int:
        return len(self.attribute)
