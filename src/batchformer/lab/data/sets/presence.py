"""Named data sets: is one here, where is it looked for, what is missing; answers without torch.

A family of sets that lie on disk in the same way is one :class:`Family`. The files of the families
beside this one know their layouts and where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchformer.lab.data.files.location import (
    LAYOUTS,
    available,
    ensure_present_or_reachable,
    looked_in,
)
from batchformer.lab.data.sets import (
    annotated,
    attribute_sets,
    domain_layouts,
    imagenet_layout,
    known_pairs,
    voc_layout,
)

State = Literal["present", "absent", "embedded", "yours"]
#: Lists of images that the paper's detectors are trained and scored on.
VOC_LISTS = ("2007/trainval", "2012/trainval", "2007/test")


@dataclass(frozen=True)
class Family:
    """Data sets that lie on disk in the same way.

    Args:
        ensure: raises FileNotFoundError, which says what is missing, what is expected and how to
            provide it. It takes the configuration of the data, as `present` does.
        present: whether the files are there; none is opened, and no host is asked.
        where: takes a set's name; whether it is in its usual place, and that place, or what was
            looked for and where it comes from.
        state: "published": it is present or absent; others always are what this says.
    """

    ensure: Callable[[Any], object] = lambda data: None
    present: Callable[[Any], bool] = lambda data: True
    where: Callable[[str], tuple[bool, str]] = lambda name: (True, "")
    state: Literal["published", "embedded", "yours"] = "published"


def _root(data: Any) -> Path | None:
    return None if data.root is None else Path(data.root)


def _lists(data: Any) -> annotated.Lists:
    return annotated.lists_of(data.name, data.root, data.train_list, data.test_list, data.scored_on)


def _voc_lists(data: Any) -> tuple[str, ...]:
    return (*data.trained_on, *data.scored_on)


def _where_cifar(name: str) -> tuple[bool, str]:
    found = available(name)  # type: ignore[arg-type]
    absent = f"looked in {looked_in()}; downloaded at first use"
    return found is not None, absent if found is None else str(found)


def _where_listed(name: str) -> tuple[bool, str]:
    known, lists = annotated.ANNOTATED[name], annotated.lists_of(name)
    here = annotated.present(lists)
    absent = f"looked for {known.train} and {known.test} in {lists.root}; {known.source}"
    return here, str(lists.root) if here else absent


def _where_folder(here: bool, folder: Path) -> tuple[bool, str]:
    return here, f"{'' if here else 'looked in '}{folder}"


def _where_domains(name: str) -> tuple[bool, str]:
    known, place = domain_layouts.DOMAIN_SETS[name], domain_layouts.place_of(name)
    here = domain_layouts.present(name)
    folders = ", ".join(names[0] for names in known.domains.values())
    absent = f"looked for the folders {folders} in {place}; {known.source}"
    return here, str(place) if here else absent


def _where_pairs(name: str) -> tuple[bool, str]:
    here, place = known_pairs.present(name), known_pairs.place_of(name)
    absent = f"looked for {place}; {known_pairs.PAIR_SETS[name].source}"
    return here, str(place) if here else absent


def _where_features(name: str) -> tuple[bool, str]:
    known, files = attribute_sets.ATTRIBUTE_SETS[name], attribute_sets.files_of(name)
    absent = f"looked for the features of {known.title} in {looked_in()}; {known.source}"
    return files is not None, absent if files is None else str(files.features)


def _ensure_table(data: Any) -> None:
    if not Path(data.table).expanduser().is_file():
        raise FileNotFoundError(
            f"There is no table {data.table}. It is a .csv with the columns image, attribute, "
            "object and split, named by --data.table; `batchformer data pairs` makes one of a tree "
            "of domains and classes."
        )


_EMBEDDED = Family(where=lambda name: (True, "scikit-learn"), state="embedded")
_CIFAR = Family(
    ensure=lambda data: ensure_present_or_reachable(data.name, _root(data)),
    present=lambda data: available(data.name, _root(data)) is not None,
    where=_where_cifar,
)
_LISTED = Family(
    ensure=lambda data: annotated.ensure_present(data.name, _lists(data)),
    present=lambda data: annotated.present(_lists(data)),
    where=_where_listed,
)
_IMAGENET = Family(
    ensure=lambda data: imagenet_layout.ensure_present(data.root),
    present=lambda data: imagenet_layout.present(data.root),
    where=lambda name: _where_folder(
        imagenet_layout.present(None), imagenet_layout.folder_of(None)
    ),
)
_VOC = Family(
    ensure=lambda data: voc_layout.ensure_present(data.root, _voc_lists(data)),
    present=lambda data: voc_layout.present(data.root, _voc_lists(data)),
    where=lambda name: _where_folder(
        voc_layout.present(None, VOC_LISTS), voc_layout.folder_of(None)
    ),
)
_DOMAINS = Family(
    ensure=lambda data: domain_layouts.ensure_present(data.name, data.root, data.lists),
    present=lambda data: domain_layouts.present(data.name, data.root, data.lists),
    where=_where_domains,
)
_PAIRS = Family(
    ensure=lambda data: known_pairs.ensure_present(data.name, data.root),
    present=lambda data: known_pairs.present(data.name, data.root),
    where=_where_pairs,
)
_FEATURES = Family(
    ensure=lambda data: attribute_sets.ensure_present(data.name, data.root),
    present=lambda data: attribute_sets.present(data.name, data.root),
    where=_where_features,
)

#: The family of every named set, in the order of `batchformer data`; then what people bring.
FAMILIES: dict[str, Family] = {
    "digits": _EMBEDDED,
    **dict.fromkeys(LAYOUTS, _CIFAR),
    **dict.fromkeys(annotated.ANNOTATED, _LISTED),
    "imagenet": _IMAGENET,
    "voc": _VOC,
    "rotated_digits": _EMBEDDED,
    **dict.fromkeys(domain_layouts.DOMAIN_SETS, _DOMAINS),
    **dict.fromkeys(known_pairs.PAIR_SETS, _PAIRS),
    **dict.fromkeys(attribute_sets.ATTRIBUTE_SETS, _FEATURES),
    "folder": Family(state="yours"),
    domain_layouts.TREE: Family(ensure=_DOMAINS.ensure, state="yours"),
    "table": Family(ensure=_ensure_table, state="yours"),
    attribute_sets.OWN: Family(ensure=_FEATURES.ensure, state="yours"),
}


def ensure_present(data: Any) -> None:
    """Refuse data that is neither here nor can be downloaded, before anything is loaded.

    Args:
        data: configuration of the data; of images with their labels, where it has none.

    Raises:
        FileNotFoundError: with what was looked for, what is expected and how to provide it.
    """
    FAMILIES[data.name].ensure(data)


def places() -> Iterator[tuple[str, State, str]]:
    """Every named set: its state in its usual place, and that place or what was looked for."""
    for name, family in FAMILIES.items():
        if family.state != "yours":
            here, words = family.where(name)
            published: State = "present" if here else "absent"
            yield name, family.state if family.state == "embedded" else published, words


def state_of(data: Any) -> State:
    """Whether data is here."""
    family = FAMILIES[data.name]
    if family.state != "published":
        return family.state
    return "present" if family.present(data) else "absent"
