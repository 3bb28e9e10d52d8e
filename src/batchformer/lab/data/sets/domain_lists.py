"""Lists of images of several domains, with labels that begin at 0 or at 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from batchformer.lab.data.files.file_lists import Entries, read_list
from batchformer.lab.data.files.files import ImageFiles
from batchformer.lab.data.sets.domains import DomainFiles


def domain_lists(
    name: str, root: Path, lists: Mapping[str, Sequence[Path]], classes: int
) -> DomainFiles:
    """Images that lists name, one ``path label`` a line.

    Labels run from 1 if the smallest of all lists is 1 and the largest K, otherwise from 0. Lists
    of one domain may repeat an image. Classes are called as the folders their images are in, if
    there are K such folders, and otherwise by number.

    Args:
        name: what the data is.
        root: folder that the paths start from.
        lists: those of each domain.
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
    """All lists of one domain as one; an image that is named again is passed over."""
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
    """K names by the folders ``<domain>/<class>/<image>``, which must agree between domains."""
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
                "well: the lists are not of one numbering of the classes"
            )
    return tuple(names[label] for label in range(classes))
