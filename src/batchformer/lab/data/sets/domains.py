"""Images of several domains that share their classes: files, in memory, by lists; their split."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from batchformer.lab.data.files.file_lists import Entries, read_list, shorten
from batchformer.lab.data.files.image_files import ImageFiles, torchvision_folder, without_images
from batchformer.lab.data.sets.images import (
    ImageSplit,
    content_hash,
    exact_floor,
    require_labels,
    split_hash,
)
from batchformer.nn.randomness import generator


@dataclass(frozen=True, eq=False)
class DomainFiles:
    """The image files of D domains."""

    name: str
    domains: tuple[str, ...]  # D names, sorted
    classes: tuple[str, ...]  # K class names in label order; each has an image in some domain
    files: tuple[ImageFiles, ...]  # one part for each domain, all from one root

    def __post_init__(self) -> None:
        _check(self.name, self.domains, len(self.files))
        for domain, part in zip(self.domains, self.files, strict=True):
            if part.classes != self.classes:
                raise ValueError(f"{self.name}: the classes of {domain} are not those of the set")
            if part.root != self.root:
                raise ValueError(
                    f"{self.name}: the paths of {domain} start from {part.root}, those of "
                    f"{self.domains[0]} from {self.root}; give paths from one folder"
                )
        _check_classes(self.name, self.classes, self.counts)

    @property
    def root(self) -> Path:
        """Folder that all paths start from."""
        return self.files[0].root

    @property
    def counts(self) -> Tensor:
        """(D, K) int64 number of images of each domain and class."""
        return torch.stack([part.counts for part in self.files])

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the domains, the classes, and the path and label of every image."""
        lists = (value for part in self.files for value in ("\n".join(part.paths), part.labels))
        return content_hash("\n".join(self.domains), "\n".join(self.classes), *lists)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images of each domain."""
        return {domain: len(part) for domain, part in zip(self.domains, self.files, strict=True)}

    def check_all(self) -> None:
        """Look for every file; raises FileNotFoundError with how many are missing."""
        for part in self.files:
            part.check_all()

    def joined(self, rows: Mapping[str, Tensor]) -> tuple[ImageFiles, Tensor]:
        """Rows of some domains one after the other: M files and (M,) int64 domain numbers.

        Args:
            rows: int64 positions in each domain; domains are numbered in the order given.
        """
        domain = _numbers(self.domains, rows)
        taken = [(self.files[self.domains.index(own)], rows[own]) for own in rows]
        paths = tuple(part.paths[row] for part, own in taken for row in own.tolist())
        labels = torch.cat([part.labels[own] for part, own in taken])
        return ImageFiles(paths, labels, self.classes, self.root), domain


@dataclass(frozen=True, eq=False)
class DomainImages:
    """Images of D domains, in memory."""

    name: str
    domains: tuple[str, ...]  # D names, sorted
    classes: tuple[str, ...]  # K class names in label order; each has an image in some domain
    images: tuple[ImageSplit, ...]  # one part for each domain, all of one shape (C, H, W)

    def __post_init__(self) -> None:
        _check(self.name, self.domains, len(self.images))
        for domain, part in zip(self.domains, self.images, strict=True):
            shape, first = (tuple(p.x.shape[1:]) for p in (part, self.images[0]))
            if shape != first:
                raise ValueError(
                    f"{self.name}: images of {domain} are {shape}, those of {self.domains[0]} "
                    f"{first} (C, H, W)"
                )
            require_labels(f"{self.name}: labels of {domain} run", part.y, len(self.classes))
        _check_classes(self.name, self.classes, self.counts)

    @property
    def counts(self) -> Tensor:
        """(D, K) int64 number of images of each domain and class."""
        every = len(self.classes)
        return torch.stack([torch.bincount(part.y, minlength=every) for part in self.images])

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the domains, the classes, and every image and label."""
        arrays = (value for part in self.images for value in (part.x, part.y))
        return content_hash("\n".join(self.domains), "\n".join(self.classes), *arrays)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images of each domain."""
        return {domain: len(part) for domain, part in zip(self.domains, self.images, strict=True)}

    def joined(self, rows: Mapping[str, Tensor]) -> tuple[ImageSplit, Tensor]:
        """Rows of some domains one after the other: M images and (M,) int64 domain numbers.

        Args:
            rows: int64 positions in each domain; domains are numbered in the order given.
        """
        domain = _numbers(self.domains, rows)
        taken = [(self.images[self.domains.index(own)], rows[own]) for own in rows]
        x = torch.cat([part.x[own] for part, own in taken])
        return ImageSplit(x, torch.cat([part.y[own] for part, own in taken])), domain


def domain_tree(root: str | Path) -> DomainFiles:
    """One domain for each folder in `root` that has folders of images, which are its classes.

    The classes are those of all domains; a domain may lack some. Files, and folders without
    images such as those of lists, are skipped.
    """
    place = Path(root).expanduser()
    expected = f"Expected: {place}/<domain>/<class>/<image>, with two domains or more"
    if not place.is_dir():
        raise FileNotFoundError(f"{place} is not a folder. {expected}")
    folders = sorted(folder.name for folder in place.iterdir() if folder.is_dir())
    domains = [folder for folder in folders if _has_classes(place / folder)]
    if not domains:
        has = f"none of its folders ({shorten(folders)}) has" if folders else "it has no"
        raise FileNotFoundError(
            f"{place} has no domain: {has} folders with images in them. {expected}; if these are "
            "the classes of one domain, name the folder above it"
        )
    if len(domains) == 1:
        raise ValueError(f"{place} has one domain only, {domains[0]}. {expected}")
    return domain_folders(place.resolve().name, place, {own: own for own in domains})


def domain_folders(name: str, root: Path, folders: Mapping[str, str]) -> DomainFiles:
    """Domains whose folders in `root` are known, each ``<class>/<image>``."""
    found = {
        domain: ImageFiles.from_folder(root / folders[domain], allow_empty=True)
        for domain in sorted(folders)
    }
    # A folder that is empty in every domain is not a class.
    occurring = ({part.classes[c] for c in part.labels.tolist()} for part in found.values())
    classes = tuple(sorted(set[str]().union(*occurring)))
    parts = []
    for domain, part in found.items():
        paths = tuple(f"{folders[domain]}/{path}" for path in part.paths)
        parts.append(dataclasses.replace(part.with_classes(classes), paths=paths, root=root))
    return DomainFiles(name, tuple(found), classes, tuple(parts))


def _has_classes(folder: Path) -> bool:
    """Whether an image lies in a folder of this one, at any depth."""
    extensions, _ = torchvision_folder()
    inside = (own for own in folder.iterdir() if own.is_dir())
    walks = (names for own in inside for _, _, names in os.walk(own, followlinks=True))
    return any(name.lower().endswith(extensions) for names in walks for name in names)


def _check(name: str, domains: tuple[str, ...], parts: int) -> None:
    if list(domains) != sorted(set(domains)):
        raise ValueError(f"{name}: domains must be sorted and differ, got {', '.join(domains)}")
    if len(domains) != parts or not parts:
        raise ValueError(f"{name}: {len(domains)} domains but {parts} parts")


def _check_classes(name: str, classes: tuple[str, ...], counts: Tensor) -> None:
    absent = without_images(counts.sum(0), classes)
    if absent:
        raise ValueError(
            f"{name}: {len(absent)} of {len(classes)} classes have no image in any domain: "
            f"{shorten(absent)}"
        )


def _numbers(domains: tuple[str, ...], rows: Mapping[str, Tensor]) -> Tensor:
    """(M,) 0 for each row of the first domain in `rows`, 1 for each of the second, ..."""
    unknown = [domain for domain in rows if domain not in domains]
    if unknown or not rows:
        said = f"there is no domain {', '.join(unknown)}" if unknown else "no domain is named"
        raise ValueError(f"{said}; choose of {', '.join(domains)}")
    sizes = torch.tensor([len(own) for own in rows.values()])
    return torch.arange(len(sizes)).repeat_interleave(sizes)


# Lists of images, with labels that begin at 0 or at 1.


def domain_lists(
    name: str, root: Path, lists: Mapping[str, Sequence[Path]], classes: int
) -> DomainFiles:
    """Images that lists name, one ``path label`` per line.

    Labels count from 1 if the smallest of all lists is 1 and the largest K, otherwise from 0. Lists
    of one domain may repeat an image. Classes are named after the folders of their images if there
    are K such folders, and otherwise by number.

    Args:
        classes: K.
    """
    entries = {domain: _merged(lists[domain]) for domain in sorted(lists)}
    values = [int(value) for own in entries.values() for value in own.values]
    if not values:
        raise ValueError(f"{name}: the lists in {root} name no images")
    first = 1 if (min(values), max(values)) == (1, classes) else 0
    labels = {domain: _labels(own, classes, first) for domain, own in entries.items()}
    names = _class_names(entries, labels, classes)
    parts = (
        ImageFiles(tuple(own.paths), torch.tensor(labels[domain]), names, root)
        for domain, own in entries.items()
    )
    return DomainFiles(name, tuple(entries), names, tuple(parts))


def _merged(files: Sequence[Path]) -> Entries:
    """All lists of one domain as one; an image that is named again is skipped."""
    merged = Entries(", ".join(map(str, files)))
    seen: dict[str, str] = {}
    for file in files:
        own = read_list(file)
        for path, value, line in zip(own.paths, own.values, own.lines, strict=True):
            if path not in seen:
                merged.add(path, value, line)
            elif seen[path] != value:
                raise ValueError(
                    f"{file}, line {line}: {path} has the label {value} here and {seen[path]} "
                    "before; correct one of the lines"
                )
            seen[path] = value
    if not merged.paths:
        raise ValueError(f"{merged.source} names no images")
    return merged


def _labels(entries: Entries, classes: int, first: int) -> list[int]:
    """Labels from 0, of labels that begin at `first`."""
    labels = [int(value) - first for value in entries.values]
    for path, label in zip(entries.paths, labels, strict=True):
        if not 0 <= label < classes:
            raise ValueError(
                f"{entries.source}: {path} has the label {label + first}, but the {classes} "
                f"classes are {first}..{classes - 1 + first}"
            )
    return labels


def _class_names(
    entries: Mapping[str, Entries], labels: Mapping[str, list[int]], classes: int
) -> tuple[str, ...]:
    """K names from the folders ``<domain>/<class>/<image>``, which must agree between domains."""
    images = [
        (label, path)
        for domain, own in entries.items()
        for path, label in zip(own.paths, labels[domain], strict=True)
    ]
    folders = [path.split("/")[-2] if path.count("/") > 1 else "" for _, path in images]
    if len(set(folders)) != classes or "" in folders:
        return tuple(map(str, range(classes)))
    names: dict[int, str] = {}
    for (label, path), folder in zip(images, folders, strict=True):
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
    split of a domain does not depend on the others.

    Args:
        domain_number: place of the domain among all of its set.

    >>> kept, held = split_domain(count=10, fraction=0.2, seed=0, domain_number=1)
    >>> len(kept), len(held)
    (8, 2)
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be at least 0 and less than 1, got {fraction}")
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

    sizes: Mapping[str, int]  # images of every domain; sorted, their place is their number
    sources: tuple[str, ...]
    target: str
    seed: int
    fraction: float = 0.2  # part of each domain to hold out

    def __post_init__(self) -> None:
        named = (*self.sources, self.target)
        unknown = [domain for domain in named if domain not in self.sizes]
        if unknown:
            raise ValueError(
                f"there is no domain {', '.join(unknown)}; choose of {', '.join(self.sizes)}"
            )
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
