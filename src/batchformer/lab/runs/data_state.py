"""Whether the data of a recipe is here; answers without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from batchformer.lab.config.data import (
    ContrastConfig,
    DataConfig,
    DetectionConfig,
    DomainConfig,
    FeatureConfig,
    LongTailConfig,
    PairConfig,
)
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.files.location import available, ensure_present_or_reachable
from batchformer.lab.data.sets import attribute_sets, domain_layouts, imagenet_layout, voc_layout
from batchformer.lab.data.sets import known_pairs as pair_layouts
from batchformer.lab.data.sets.annotated import ANNOTATED, Lists, ensure_present, lists_of, present

State = Literal["present", "absent", "embedded", "yours"]
#: Names of data that a person brings, and data that needs no file.
YOURS, EMBEDDED = ("folder", "tree", "table", "npz"), ("digits", "rotated_digits")


def ensure_data(recipe: Recipe) -> None:
    """Refuse to start on data that is neither here nor to be had, before anything is loaded."""
    data = recipe.data.images() if isinstance(recipe.data, ContrastConfig) else recipe.data
    if data.name in EMBEDDED:
        return
    if isinstance(data, DomainConfig):
        domain_layouts.ensure_present(data.name, data.root, data.lists)
    elif isinstance(data, PairConfig):
        if data.name == "table":
            _ensure_table(str(data.table))
        else:
            pair_layouts.ensure_present(data.name, data.root)
    elif isinstance(data, FeatureConfig):
        attribute_sets.ensure_present(data.name, data.root)
    elif isinstance(data, DetectionConfig):
        voc_layout.ensure_present(data.root, (*data.trained_on, *data.scored_on))
    elif data.name == "imagenet":
        imagenet_layout.ensure_present(data.root)
    elif data.name == "cifar10" or data.name == "cifar100":
        ensure_present_or_reachable(data.name, None if data.root is None else Path(data.root))
    elif data.name in ANNOTATED:
        ensure_present(data.name, _lists(data))


def data_state(recipe: Recipe) -> State:
    """Whether a recipe's data is here."""
    data = recipe.data.images() if isinstance(recipe.data, ContrastConfig) else recipe.data
    if data.name in YOURS or recipe.name.startswith("my_"):
        return "yours"
    if data.name in EMBEDDED:
        return "embedded"
    return "present" if _present(data) else "absent"


def _present(data: DataConfig) -> bool:
    if isinstance(data, ContrastConfig):
        return _present(data.images())
    if isinstance(data, DetectionConfig):
        return voc_layout.present(data.root, (*data.trained_on, *data.scored_on))
    if data.name == "imagenet":
        return imagenet_layout.present(data.root)
    if isinstance(data, DomainConfig):
        return domain_layouts.present(data.name, data.root, data.lists)
    if isinstance(data, PairConfig):
        return pair_layouts.present(data.name, data.root)
    if isinstance(data, FeatureConfig):
        return attribute_sets.present(data.name, data.root)
    if data.name == "cifar10" or data.name == "cifar100":
        return available(data.name, None if data.root is None else Path(data.root)) is not None
    return present(_lists(data))


def in_words(recipe: Recipe) -> str:
    """The data of a recipe in a few words."""
    data = recipe.data
    if isinstance(data, DomainConfig) and data.adapt:
        return f"{data.name} {data.source} to {data.target}"
    if isinstance(data, PairConfig) and data.world == "open":
        return f"{data.name}, open world"
    if isinstance(data, ContrastConfig):
        data = data.images()
    if isinstance(data, LongTailConfig) and not data.of_files:
        return f"{data.name} r={data.ratio:g}"
    return data.name


def _lists(data: LongTailConfig) -> Lists:
    return lists_of(data.name, data.root, data.train_list, data.test_list, data.scored_on)


def _ensure_table(table: str) -> None:
    if not Path(table).expanduser().is_file():
        raise FileNotFoundError(
            f"There is no table {table}. It is a .csv with the columns image, attribute, object "
            "and split, named by --data.table; `batchformer data pairs` makes one of a tree of "
            "domains and classes."
        )
