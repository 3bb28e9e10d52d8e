"""Images of several domains that share their classes, in files or in memory, and their splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from batchformer.lab.data.files.file_lists import read_list, shorten
from batchformer.lab.data.files.image_files import ImageFiles, without_images
from batchformer.lab.data.files.location import names_in
from batchformer.lab.data.sets.images import Part, content_hash, exact_floor, split_hash
from batchformer.nn.randomness import generator


@dataclass(frozen=True, eq=False)
class Domains(Generic[Part]):
    """Images of D domains that share their classes."""

    name: str
    domains: tuple[str, ...]  # D names, sorted
    classes: tuple[str, ...]  # K class names in label order; each has an image in some domain
    parts: tuple[Part, ...]  # the images of each domain

    def __post_init__(self) -> None:
        if list(self.domains) != sorted(set(self.domains)):
            got = ", ".join(self.domains)
            raise ValueError(f"{self.name}: domains must be sorted and differ, got {got}")
        for domain, part in zip(self.domains, self.parts, strict=True):
            part.require_fits(f"{self.name}, {domain}", self.classes, self.parts[0])
        absent = without_images(self.counts.sum(0), self.classes)
        if absent:
            raise ValueError(
                f"{self.name}: {len(absent)} of {len(self.classes)} classes have no image in any "
                f"domain: {shorten(absent)}"
            )

    @property
    def counts(self) -> Tensor:
        """(D, K) int64 number of images of each domain and class."""
        every = len(self.classes)
        return torch.stack([torch.bincount(own.labels, minlength=every) for own in self.parts])

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images of each domain."""
        return {domain: len(part) for domain, part in zip(self.domains, self.parts, strict=True)}

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the domains, the classes, and each image (of files: its path) and label."""
        content = (value for own in self.parts for value in (own.content, own.labels))
        return content_hash("\n".join(self.domains), "\n".join(self.classes), *content)

    def joined(self, rows: Mapping[str, Tensor]) -> tuple[Part, Tensor]:
        """Rows of some domains one after the other: M images and (M,) int64 domain numbers.

        `rows` are int64 positions in each domain; domains are numbered in the order given.
        """
        taken = [self.parts[self.domains.index(name)].subset(own) for name, own in rows.items()]
        sizes = torch.tensor([len(own) for own in rows.values()])
        domain = torch.arange(len(rows)).repeat_interleave(sizes)
        return type(taken[0]).concatenated(taken), domain


class DomainFiles(Domains[ImageFiles]):
    """The image files of D domains, all from one root."""

    def check_all(self) -> None:
        """Look for every file; raises FileNotFoundError with how many are missing."""
        for part in self.parts:
            part.check_all()


def domain_tree(root: str | Path) -> DomainFiles:
    """One domain for each folder in `root` that has folders of images, which are its classes.

    The classes are those of all domains; a domain may lack some. Other files and folders are
    skipped.
    """
    place = Path(root).expanduser()
    expected = f"Expected: {place}/<domain>/<class>/<image>, with two domains or more"
    if not place.is_dir():
        raise FileNotFoundError(f"{place} is not a folder. {expected}")
    folders = names_in(place, folders=True)
    found: dict[str, ImageFiles] = {}
    for folder in folders:
        with suppress(FileNotFoundError):  # no classes, or no image in them
            found[folder] = ImageFiles.from_folder(place / folder, allow_empty=True)
    if not found:
        has = f"none of its folders ({shorten(folders)}) has" if folders else "it has no"
        raise FileNotFoundError(
            f"{place} has no domain: {has} folders with images in them. {expected}; if these are "
            "the classes of one domain, name the folder above it, or use the recipe my_folder"
        )
    if len(found) == 1:
        raise ValueError(f"{place} has one domain only, {next(iter(found))}. {expected}")
    if "train" in (names := {name.lower() for name in found}) and names <= {"train", "test", "val"}:
        raise ValueError(
            f"{place} has the folders {', '.join(found)}, which are parts of one domain: use the "
            f"recipe my_folder. {expected}"
        )
    return _of_one_root(place.resolve().name, place, found)


def domain_folders(name: str, root: Path, folders: Mapping[str, str]) -> DomainFiles:
    """Domains whose folders in `root` are known, each ``<class>/<image>``."""
    found = {
        domain: ImageFiles.from_folder(root / folders[domain], allow_empty=True)
        for domain in sorted(folders)
    }
    return _of_one_root(name, root, found)


def _of_one_root(name: str, root: Path, found: Mapping[str, ImageFiles]) -> DomainFiles:
    """Domains, each read from its own folder below `root`."""
    # A folder that is empty in every domain is not a class.
    occurring = ({part.classes[c] for c in part.labels.tolist()} for part in found.values())
    classes = tuple(sorted(set[str]().union(*occurring)))
    parts = []
    for part in found.values():
        folder = part.root.relative_to(root).as_posix()
        paths = tuple(f"{folder}/{path}" for path in part.paths)
        parts.append(dataclasses.replace(part.with_classes(classes), paths=paths, root=root))
    return DomainFiles(name, tuple(found), classes, tuple(parts))


# Lists of images, with labels that begin at 0 or at 1.


def domain_lists(
    name: str, root: Path, lists: Mapping[str, Sequence[Path]], classes: int
) -> DomainFiles:
    """Images of K classes that lists name, one ``path label`` per line.

    Labels count from 1 if those of all lists together run from 1 to K, otherwise from 0. Lists
    of one domain may repeat an image. Classes are named after the folders of their images if there
    are K such folders, and otherwise by number.
    """
    found = {domain: _merged(lists[domain]) for domain in sorted(lists)}
    values = [value for own in found.values() for value in own.values()]
    first = 1 if (min(values), max(values)) == (1, classes) else 0
    for domain, own in found.items():
        for path, value in own.items():
            if value - first >= classes:
                raise ValueError(
                    f"{_joined(lists[domain])}: {path} has the label {value}, but the {classes} "
                    f"classes are 0..{classes - 1}"
                )
    images = [(path, value - first) for own in found.values() for path, value in own.items()]
    names = _class_names(images, classes)
    parts = (
        ImageFiles(tuple(own), torch.tensor([*own.values()]) - first, names, root)
        for own in found.values()
    )
    return DomainFiles(name, tuple(found), names, tuple(parts))


def _joined(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files))


def _merged(files: Sequence[Path]) -> dict[str, int]:
    """The images of one domain and their labels as written; lists may repeat an image."""
    merged: dict[str, int] = {}
    for file in files:
        for path, value, line in read_list(file):
            if merged.setdefault(path, int(value)) != int(value):
                raise ValueError(
                    f"{file}, line {line}: {path} has the label {value} here and {merged[path]} "
                    "before; correct one of the lines"
                )
    if not merged:
        raise ValueError(f"{_joined(files)} names no images")
    return merged


def _class_names(images: Sequence[tuple[str, int]], classes: int) -> tuple[str, ...]:
    """K names from the folders ``<domain>/<class>/<image>``, which must agree between domains."""
    folders = [path.split("/")[-2] if path.count("/") > 1 else "" for path, _ in images]
    if len(set(folders)) != classes or "" in folders:
        return tuple(map(str, range(classes)))
    names: dict[int, str] = {}
    for (path, label), folder in zip(images, folders, strict=True):
        if names.setdefault(label, folder) != folder:
            raise ValueError(
                f"{path} has the label {label} (from 0), which images of {names[label]} have as "
                "well: number the classes in the same way in all lists"
            )
    return tuple(names[label] for label in range(classes))


# Which images of each domain are trained on and which are held out.


def split_domain(
    count: int, fraction: float, seed: int, domain_number: int
) -> tuple[Tensor, Tensor]:
    """Rows of a domain that are kept and rows that are held out, both sorted int64.

    ``floor(fraction * count)`` rows are held out, drawn from (seed, domain number) alone, so the
    split of a domain does not depend on the others. The number is its place among all domains.

    >>> kept, held = split_domain(count=10, fraction=0.2, seed=0, domain_number=1)
    >>> len(kept), len(held)
    (8, 2)
    """
    order = torch.randperm(count, generator=generator(seed, "split", domain_number))
    held = exact_floor(fraction * count)
    return order[held:].sort().values, order[:held].sort().values


@dataclass(frozen=True)
class DomainSplit:
    """Rows of the source domains for training and for model selection, and of the target domain.

    >>> split = DomainSplit({"a": 10, "b": 20, "c": 30}, ("a", "b"), target="c", seed=0)
    >>> {domain: len(rows) for domain, rows in split.train.items()}, len(split.target_in)
    ({'a': 8, 'b': 16}, 24)
    """

    sizes: Mapping[str, int]  # images of every domain; domains are numbered in sorted order
    sources: tuple[str, ...]
    target: str
    seed: int
    fraction: float = 0.2  # part of each domain to hold out

    def __post_init__(self) -> None:
        named = (*self.sources, self.target)
        if not self.sources or len(set(named)) < len(named):
            raise ValueError(
                "sources must be one or more domains, each once, and not the target: got "
                f"{', '.join(self.sources) or 'none'} and the target {self.target}"
            )
        if self.fraction:
            for domain, rows in self.val.items():
                if not len(rows):
                    raise ValueError(
                        f"{domain} has {self.sizes[domain]} images, too few to hold out "
                        f"{self.fraction:g} of them: hold out a larger part, or nothing (0)"
                    )

    @cached_property
    def _rows(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Rows kept and held of each source, then of the target."""
        numbers = {domain: number for number, domain in enumerate(sorted(self.sizes))}
        return {
            domain: split_domain(self.sizes[domain], self.fraction, self.seed, numbers[domain])
            for domain in (*self.sources, self.target)
        }

    @property
    def train(self) -> dict[str, Tensor]:
        """Rows of each source domain to train on."""
        return {domain: self._rows[domain][0] for domain in self.sources}

    @property
    def val(self) -> dict[str, Tensor]:
        """Rows of each source domain that are held out for model selection."""
        return {domain: self._rows[domain][1] for domain in self.sources}

    @property
    def target_in(self) -> Tensor:
        """Rows of the target domain that are not held out."""
        return self._rows[self.target][0]

    @property
    def target_all(self) -> Tensor:
        """All rows of the target domain."""
        return torch.arange(self.sizes[self.target])

    @property
    def split_sha256(self) -> str:
        """Hash of all rows.

        It covers, for each source and then the target: its position among all domains, the number
        of kept rows and these rows, the number of held-out rows and these rows.
        """
        places = sorted(self.sizes)
        words: list[int] = []
        for domain, (kept, held) in self._rows.items():
            words += [places.index(domain), len(kept), *kept.tolist(), len(held), *held.tolist()]
        return split_hash(words)
