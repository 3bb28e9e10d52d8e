"""Images that show an attribute and an object, by their files, in three parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from batchformer.lab.data.files.files import ImageFiles
from batchformer.lab.data.sets.compositions import Compositions, Pair, Phase

PHASES: tuple[Phase, ...] = ("train", "val", "test")


class PairImage(NamedTuple):
    """One image: its path, what it shows, and the part it belongs to."""

    image: str
    attribute: str
    object: str
    split: Phase

    @property
    def pair(self) -> Pair:
        """Attribute and object."""
        return self.attribute, self.object


@dataclass(frozen=True, eq=False)
class PairFiles:
    """Images of P pairs in three parts; labels are the numbers of the pairs in `compositions`.

    Every part has all P pairs as its classes, called "attribute object"; most have no image in
    some of them. No image is of a pair that its part could not be said to show.

    Args:
        name: what the data is.
        compositions: the pairs.
        train: images to train on, of seen pairs; one at least.
        val: images to choose by.
        test: images that scores are measured on.
        remarks: what a person should know before the data is used.
        skipped: number of images that were left out, for each reason.
    """

    name: str
    compositions: Compositions
    train: ImageFiles
    val: ImageFiles
    test: ImageFiles
    remarks: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = pair_names(self.compositions)
        for phase in PHASES:
            part = self.part(phase)
            if part.classes != names:
                raise ValueError(
                    f"{self.name}: the classes of {phase} are not the {len(names)} pairs of the set"
                )
            wrong = ~self.compositions.candidates(phase)[part.labels]
            if wrong.any():
                row = int(wrong.nonzero()[0])
                what = "not seen" if phase == "train" else f"neither seen nor one of {phase}"
                raise ValueError(
                    f"{self.name}: images of {phase} ({int(wrong.sum())} of them) show a pair "
                    f"that is {what}; the first is {part.paths[row]}: "
                    f"{names[int(part.labels[row])]}"
                )
        if not len(self.train):
            raise ValueError(f"{self.name}: there is no image to train on")

    @classmethod
    def of(
        cls,
        name: str,
        root: str | Path,
        images: Sequence[PairImage],
        compositions: Compositions | None = None,
        remarks: Sequence[str] = (),
        skipped: Mapping[str, int] | None = None,
    ) -> PairFiles:
        """The images of a list, each in its part and in the order of the list.

        Args:
            name: what the data is.
            root: folder that the paths start from.
            images: of all parts.
            compositions: the pairs. None: those that occur, seen if they do so in training.
            remarks: as of the class.
            skipped: as of the class.
        """
        if compositions is None:
            shown = {p: sorted({i.pair for i in images if i.split == p}) for p in PHASES}
            if not shown["train"]:
                raise ValueError(f"{name}: there is no image to train on")
            compositions = Compositions.of(shown["train"], shown["val"], shown["test"])
        numbers = {pair: number for number, pair in enumerate(compositions.names)}
        place, classes = Path(root).expanduser(), pair_names(compositions)
        parts: dict[Phase, ImageFiles] = {}
        for phase in PHASES:
            own = [image for image in images if image.split == phase]
            for image in own:
                if image.pair not in numbers:
                    shows = " ".join(image.pair)
                    raise ValueError(f"{name}: {image.image} shows {shows}, no pair of the set")
            labels = torch.tensor([numbers[image.pair] for image in own], dtype=torch.int64)
            paths = tuple(image.image for image in own)
            parts[phase] = ImageFiles(paths, labels, classes, place)
        return cls(name, compositions, **parts, remarks=tuple(remarks), skipped=dict(skipped or {}))

    def part(self, phase: Phase) -> ImageFiles:
        """The images of one phase."""
        return {"train": self.train, "val": self.val, "test": self.test}[phase]

    @property
    def sizes(self) -> dict[Phase, int]:
        """Number of images of each part."""
        return {phase: len(self.part(phase)) for phase in PHASES}

    @cached_property
    def split_sha256(self) -> str:
        """Hash of what is in each part: the path, attribute and object of every image, in order.

        It is taken over UTF-8 lines ``["train", path, attribute, object]``, as JSON writes them.
        """
        names, digest = self.compositions.names, hashlib.sha256()
        for phase in PHASES:
            part = self.part(phase)
            for path, label in zip(part.paths, part.labels.tolist(), strict=True):
                line = json.dumps([phase, path, *names[label]], ensure_ascii=False)
                digest.update(f"{line}\n".encode())
        return digest.hexdigest()

    def check_all(self) -> None:
        """Look for every file; raises FileNotFoundError with how many are missing."""
        for phase in PHASES:
            self.part(phase).check_all()


def pair_names(compositions: Compositions) -> tuple[str, ...]:
    """The P pairs as "attribute object".

    >>> pair_names(Compositions.of([("old", "cat")], [], [("wet", "cat")]))
    ('old cat', 'wet cat')
    """
    return tuple(" ".join(pair) for pair in compositions.names)
