"""Which named data sets are here, where they are looked for, what is missing; needs no torch.

A family of sets that lie on disk in the same way is one :class:`Family`. The modules beside this
one know how the sets of a family lie on disk and where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from batchformer.lab.data.files.location import DataNotFoundError, looked_in
from batchformer.lab.data.sets import attribute_sets, domain_layouts, image_layouts, known_pairs

State = Literal["present", "absent", "embedded", "yours"]


@dataclass(frozen=True)
class Family:
    """Data sets that lie on disk in the same way."""

    # Takes the configuration of the data; raises a FileNotFoundError that says what to do.
    ensure: Callable[[Any], object] = lambda data: None
    # Whether the files are there; it opens none and asks no host. None: whether `ensure` passes.
    present: Callable[[Any], bool] | None = None
    # Takes a set's name; returns where the set is.
    place: Callable[[str], object] = lambda name: ""
    # Published sets are looked for on disk; the others always have this state.
    state: Literal["published", "embedded", "yours"] = "published"

    def missing(self, data: Any) -> str:
        """What was looked for and is not here; empty if nothing is missing."""
        if self.present is not None:
            return "" if self.present(data) else f"looked in {looked_in()}; downloaded at first use"
        try:
            self.ensure(data)
        except DataNotFoundError as error:
            return error.brief
        return ""

    def state_of(self, data: Any) -> State:
        """Whether data of this family is here."""
        if self.state != "published":
            return self.state
        return "absent" if self.missing(data) else "present"


def _lists(data: Any) -> image_layouts.Lists:
    named = data.train_list, data.test_list, data.scored_on
    return image_layouts.lists_of(data.name, data.root, *named)


def _ensure_table(data: Any) -> None:
    if not Path(data.table).expanduser().is_file():
        raise FileNotFoundError(
            f"There is no table {data.table}. It is a .csv with the columns image, attribute, "
            "object and split, named by --data.table; `batchformer data pairs` makes one of a tree "
            "of domains and classes."
        )


_EMBEDDED = Family(place=lambda name: "scikit-learn", state="embedded")
_CIFAR = Family(
    ensure=lambda data: image_layouts.ensure_cifar(data.name, data.root),
    present=lambda data: image_layouts.find_cifar(data.name, data.root) is not None,
    place=image_layouts.find_cifar,
)
_LISTED = Family(
    ensure=lambda data: image_layouts.ensure_lists(data.name, _lists(data)),
    place=lambda name: image_layouts.lists_of(name).root,
)
_IMAGENET = Family(
    ensure=lambda data: image_layouts.ensure_imagenet(data.root),
    place=lambda name: image_layouts.imagenet_folder(None),
)
_VOC = Family(
    ensure=lambda data: image_layouts.ensure_voc(data.root, (*data.trained_on, *data.scored_on)),
    place=lambda name: image_layouts.voc_folder(None),
)
_COCO = Family(
    ensure=lambda data: image_layouts.ensure_coco(data.root, (*data.trained_on, *data.scored_on)),
    place=lambda name: image_layouts.coco_folder(None),
)
_DOMAINS = Family(
    ensure=lambda data: domain_layouts.ensure_present(data.name, data.root, data.lists),
    place=domain_layouts.place_of,
)
_PAIRS = Family(
    ensure=lambda data: known_pairs.ensure_present(data.name, data.root),
    place=known_pairs.place_of,
)
_FEATURES = Family(
    ensure=lambda data: attribute_sets.ensure_present(data.name, data.root),
    place=lambda name: attribute_sets.ensure_present(name).features,
)

#: The family of every named set, in the order of `batchformer data`; then users' own data.
FAMILIES: dict[str, Family] = {
    "digits": _EMBEDDED,
    **dict.fromkeys(image_layouts.CIFAR_SETS, _CIFAR),
    **dict.fromkeys(image_layouts.ANNOTATED, _LISTED),
    "imagenet": _IMAGENET,
    "voc": _VOC,
    "coco": _COCO,
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
    """Raise a FileNotFoundError that says what to do unless data is here or can be downloaded."""
    FAMILIES[data.name].ensure(data)


def state_of(data: Any) -> State:
    """Whether data is here."""
    return FAMILIES[data.name].state_of(data)


def places() -> Iterator[tuple[str, State, str]]:
    """Every named set: its state in its usual place, and that place or what was looked for."""
    lists = {
        "voc": (("2007/trainval", "2012/trainval"), ("2007/test",)),
        "coco": (("train2017",), ("val2017",)),
    }
    for name, family in FAMILIES.items():
        trained_on, scored_on = lists.get(name, ((), "test"))
        usual = SimpleNamespace(
            name=name,
            root=None,
            lists=False,
            train_list=None,
            test_list=None,
            trained_on=trained_on,
            scored_on=scored_on,
        )
        state = family.state_of(usual)
        if state == "absent":
            yield name, state, family.missing(usual)
        elif state != "yours":
            yield name, state, str(family.place(name))
