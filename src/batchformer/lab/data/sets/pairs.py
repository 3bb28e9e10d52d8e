"""Images of attributes and objects: the pairs, their files, and tables of them."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from batchformer.insight.files import write_atomically
from batchformer.lab.data.files.file_lists import shorten, table_rows
from batchformer.lab.data.files.image_files import ImageFiles

Phase = Literal["train", "val", "test"]
Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Compositions:
    """A attributes, O objects, and the P pairs of them that an image may show.

    Some pairs are never trained on.
    """

    attributes: tuple[str, ...]  # A names, sorted
    objects: tuple[str, ...]  # O names, sorted
    attribute: Tensor  # (P,) int64 number of each pair's attribute
    object: Tensor  # (P,) int64 number of each pair's object
    seen: Tensor  # (P,) bool, whether training images show it
    val: Tensor  # (P,) bool, whether it is a pair of the validation part
    test: Tensor  # (P,) bool, whether it is a pair of the test part

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
        """The P pairs by name."""
        numbers = zip(self.attribute.tolist(), self.object.tolist(), strict=True)
        return tuple((self.attributes[a], self.objects[o]) for a, o in numbers)

    def candidates(self, phase: Phase) -> Tensor:
        """(P,) bool: candidate pairs for images of this phase in the closed world."""
        own = {"train": self.seen, "val": self.val, "test": self.test}[phase]
        return own | self.seen

    def __len__(self) -> int:
        return len(self.attribute)


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

    Every part has all P pairs as its classes, named "attribute object"; most parts have no image
    of some pairs. Every image shows a candidate pair of its part.
    """

    name: str
    compositions: Compositions
    train: ImageFiles  # images to train on, of seen pairs; one at least
    val: ImageFiles
    test: ImageFiles
    remarks: tuple[str, ...] = ()  # what the user should know before training
    skipped: Mapping[str, int] = field(default_factory=dict)  # images left out, by reason

    def __post_init__(self) -> None:
        names = pair_names(self.compositions)
        for phase in PHASES:
            part = self.part(phase)
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

        Without `compositions`, the pairs are those that occur; those that occur in training are
        seen.
        """
        if compositions is None:
            shown = {p: sorted({i.pair for i in images if i.split == p}) for p in PHASES}
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
        """Hash of each part: the path, attribute and object of every image, in order.

        It covers UTF-8 lines ``["train", path, attribute, object]``, as JSON writes them.
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


# Tables of the user's own images.

COLUMNS = ("image", "attribute", "object", "split")
# Phases as remarks call them.
_SPOKEN: dict[Phase, str] = {"val": "validation", "test": "the test"}


def pair_table(table: str | Path, root: str | Path) -> PairFiles:
    """The images of a comma-separated table with the columns image, attribute, object, split.

    Further columns are ignored. A pair is seen if it occurs in a row of train. Pairs that no model
    could learn get a remark and are not refused.
    """
    file = Path(table).expanduser()
    images = read_pairs(file)
    _refuse_shared(file, images)
    for phase in ("train", "test"):
        if not any(image.split == phase for image in images):
            raise ValueError(f"{file}: no row has the split {phase}; give at least one image")
    return PairFiles.of(file.stem, root, images, remarks=remarks_on(images))


def read_pairs(file: Path) -> list[PairImage]:
    """The rows of a table in order; errors name the line and the column."""
    images: list[PairImage] = []
    for line, (path, attribute, thing, split) in table_rows(file, COLUMNS):
        if split not in PHASES:
            raise ValueError(
                f"{file}, line {line}, column split: expected one of {', '.join(PHASES)}, got "
                f"{split!r}"
            )
        images.append(PairImage(path, attribute, thing, split))
    if not images:
        raise ValueError(f"{file} names no images")
    return images


def write_pair_table(file: str | Path, images: Iterable[PairImage]) -> None:
    """Write a table that `pair_table` reads, in the order given."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *images])
    write_atomically(Path(file).expanduser(), text.getvalue().encode())


def remarks_on(images: Sequence[PairImage]) -> tuple[str, ...]:
    """Doubts about a split, as sentences.

    >>> remarks_on([PairImage("1.jpg", "wet", "cat", "train"), *[
    ...     PairImage(f"{n}.jpg", "wet", "dog", phase) for n, phase in ((2, "val"), (3, "test"))]])
    ('objects of the test that never occur in training, so that nothing of them is learned: dog',)
    """
    remarks: list[str] = []
    trained = [image for image in images if image.split == "train"]
    for phase, spoken in _SPOKEN.items():
        own = [image for image in images if image.split == phase]
        if not own:
            remarks.append(f"there are no images of {spoken}")
        elif not {image.pair for image in own} - {image.pair for image in trained}:
            remarks.append(f"no pair of {spoken} is unseen: training has images of all of them")
    tested = [image for image in images if image.split == "test"]
    for column, place in (("attribute", 1), ("object", 2)):
        unknown = sorted({i[place] for i in tested} - {i[place] for i in trained})
        if unknown:
            remarks.append(
                f"{column}s of the test that never occur in training, so that nothing of them is "
                f"learned: {shorten(unknown)}"
            )
    return tuple(remarks)


def _refuse_shared(file: Path, images: Sequence[PairImage]) -> None:
    """Refuse an image that is in two parts: it would be trained on and scored."""
    parts: dict[str, Phase] = {}
    for image in images:
        first = parts.setdefault(os.path.normpath(image.image), image.split)
        if first != image.split:
            raise ValueError(
                f"{file}: {image.image} is in {first} and in {image.split}; leave it in one of them"
            )
