"""Known sets of several domains: their layouts, and where they lie; finding one needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from batchformer.lab.data.files.location import (
    folder_named,
    looked_in,
    match_name,
    names_in,
    not_found,
)

if TYPE_CHECKING:
    from batchformer.lab.data.sets.domains import DomainFiles

#: The name of the user's own images.
TREE = "tree"
_LISTS = "image_list"
#: Parts that the list of a domain may be cut into; in some releases one repeats others.
_PARTS = ("all", "train", "val", "crossval", "test")
_DOMAINBED = "the download script of DomainBed, https://github.com/facebookresearch/DomainBed"


@dataclass(frozen=True)
class DomainLayout:
    """A known data set. Folder names are compared by their letters and digits only."""

    title: str
    folders: tuple[str, ...]  # usual names of its folder
    domains: dict[str, tuple[str, ...]]  # a domain's name in scores: usual names of its folder
    classes: int
    source: str
    names: tuple[str, ...] = ()  # names of the classes in use, if the published set has more


DOMAIN_SETS: dict[str, DomainLayout] = {
    "pacs": DomainLayout(
        "PACS",
        ("PACS",),
        {
            "art_painting": ("art_painting", "art"),
            "cartoon": ("cartoon",),
            "photo": ("photo",),
            "sketch": ("sketch",),
        },
        classes=7,
        source=f"https://domaingeneralization.github.io, or {_DOMAINBED}",
    ),
    "vlcs": DomainLayout(
        "VLCS",
        ("VLCS",),
        {
            "caltech101": ("Caltech101", "Caltech"),
            "labelme": ("LabelMe",),
            "sun09": ("SUN09", "SUN"),
            "voc2007": ("VOC2007", "PASCAL", "VOC"),
        },
        classes=5,
        source=_DOMAINBED,
    ),
    "office_home": DomainLayout(
        "OfficeHome",
        ("office_home", "OfficeHomeDataset_10072016"),
        {
            "art": ("Art",),
            "clipart": ("Clipart",),
            "product": ("Product",),
            "real_world": ("Real World", "Real"),
        },
        classes=65,
        source=f"https://www.hemanthdv.org/officeHomeDataset.html, or {_DOMAINBED}",
    ),
    "terra_incognita": DomainLayout(
        "TerraIncognita",
        ("terra_incognita", "terra"),
        {f"l{number}": (f"location_{number}", f"L{number}") for number in (100, 38, 43, 46)},
        classes=10,
        source=f"{_DOMAINBED}, which takes these places and classes out of Caltech Camera Traps, "
        "https://lila.science/datasets/caltech-camera-traps",
        names=(
            *("bird", "bobcat", "cat", "coyote", "dog"),
            *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
        ),
    ),
    "visda": DomainLayout(
        "VisDA-2017",
        ("visda", "VisDA-2017"),
        {"real": ("validation", "real"), "synthetic": ("train", "synthetic")},
        classes=12,
        source="train.tar and validation.tar of the classification track from "
        "https://ai.bu.edu/visda-2017",
    ),
}


def load_domains(name: str, root: str | Path | None = None, lists: bool = False) -> DomainFiles:
    """A known set by its name, or the user's own tree of ``<domain>/<class>/<image>``.

    With `lists`, the images are those that ``image_list/<domain>.txt`` names, with its labels,
    instead of all images in the folders. A list may be cut into ``<domain>_train.txt``,
    ``<domain>_val.txt``, ...; labels begin at 0 or 1. `root` is the folder of the set, or the one
    above.
    """
    ensure_present(name, root, lists)
    from batchformer.lab.data.sets.domains import domain_folders, domain_lists, domain_tree

    place = place_of(name, root)
    if name == TREE:
        return domain_tree(place)
    known = DOMAIN_SETS[name]
    if lists:
        found = domain_lists(known.title, place, _lists(known, place), known.classes)
    else:
        found = domain_folders(known.title, place, _folders(known, place))
    _require_known(known, place, found.classes)
    return found


def place_of(name: str, root: str | Path | None = None) -> Path:
    """The folder of the domains: one of the set's usual names in `root`, or `root` itself."""
    if name != TREE:
        return folder_named(root, DOMAIN_SETS[name].folders)
    if root is None:
        raise FileNotFoundError(
            "Whose images? Name a folder with <domain>/<class>/<image> by --data.root."
        )
    return looked_in(root)


def ensure_present(name: str, root: str | Path | None = None, lists: bool = False) -> None:
    """Raise an error that says what to do unless each domain has its folder, or its list."""
    place = place_of(name, root)
    if name == TREE:
        if lists:
            raise ValueError(f"{TREE}: lists are for the known sets; leave them out")
        if not place.is_dir():
            raise FileNotFoundError(
                f"{place} is not a folder. Expected: {place}/<domain>/<class>/<image>"
            )
        return
    known = DOMAIN_SETS[name]
    found: Mapping[str, object]
    kind, found = ("list", _lists(known, place)) if lists else ("folder", _folders(known, place))
    missing = [f"{kind} of {domain}" for domain in known.domains if domain not in found]
    if missing:
        usual = [names[0] for names in known.domains.values()]
        pattern = f"{_LISTS}/{{}}.txt" if lists else "{}/<class>/<image>"
        raise not_found(
            f"{known.title} not found: looked in {place}, and there is no {', no '.join(missing)}",
            f"{', '.join(map(pattern.format, usual))}, of {known.classes} classes",
            known.source,
            usual=known.folders[0],
        )


def _folders(known: DomainLayout, place: Path) -> dict[str, str]:
    """The folder of each domain that has one."""
    there = names_in(place, folders=True)
    found = {domain: match_name(there, usual) for domain, usual in known.domains.items()}
    return {domain: own for domain, own in found.items() if own is not None}


def _lists(known: DomainLayout, place: Path) -> dict[str, list[Path]]:
    """The lists of each domain that has any: one of its own name, or all of its parts."""
    folder = place / _LISTS
    there = [name[:-4] for name in names_in(folder, folders=False) if name.endswith(".txt")]
    found: dict[str, list[Path]] = {}
    for domain, usual in known.domains.items():
        own = [match_name(there, usual)]
        if own == [None]:
            endings = [f"{part}{fold}" for part in _PARTS for fold in ("", "_kfold")]
            own = [match_name(there, [f"{name}_{end}" for name in usual]) for end in endings]
        files = [folder / f"{name}.txt" for name in own if name is not None]
        if files:
            found[domain] = files
    return found


def _require_known(known: DomainLayout, place: Path, classes: tuple[str, ...]) -> None:
    """Refuse a set with other classes."""
    unknown = [name for name in classes if known.names and name not in known.names]
    if len(classes) != known.classes or unknown:
        what = f", among them {', '.join(unknown)}" if unknown else ""
        raise ValueError(
            f"{place} is not {known.title} as it is used: it has {len(classes)} classes{what}, "
            f"instead of {', '.join(known.names) or known.classes}. Take the set from "
            f"{known.source}; a set of your own is {TREE}"
        )
