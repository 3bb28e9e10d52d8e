"""Which settings decide whether two runs are comparable; nothing here needs torch.

A run that continues in its folder, a run that is reused in a sweep, a report that averages runs and
a published record all ask this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from batchformer.lab.config.recipe import Recipe

#: Fields that describe a recipe. They change no result.
DESCRIPTION = ("name", "summary", "table", "paper")
#: Settings that change no result, by dotted name. A run may continue with other values of them.
NO_EFFECT = frozenset(
    {
        "train.workers",
        "train.parallel",
        "train.figures",
        "train.log_every",
        "train.checkpoint_every",
    }
)
#: Where runs are known to have the same data by its hash, the folder of the data does not matter
#: either. A run folder refuses another data folder: nobody has hashed that data yet.
NO_EFFECT_ON_SAME_DATA = NO_EFFECT | {"data.root"}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name.

    >>> flatten({"model": "resnet32", "train": {"updates": 6, "workers": 2}})
    {'model': 'resnet32', 'train.updates': 6, 'train.workers': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changed_settings(
    before: Recipe | Mapping[str, Any], after: Recipe | Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Settings in which two recipes differ, by dotted name, with both values.

    A setting that one of them lacks is None there. The description is left out.
    """
    old, new = _settings(before), _settings(after)
    both = dict.fromkeys([*old, *new])
    return {key: (old.get(key), new.get(key)) for key in both if old.get(key) != new.get(key)}


def effective_changes(
    before: Recipe | Mapping[str, Any], after: Recipe | Mapping[str, Any]
) -> list[str]:
    """In words, the settings with an effect in which two recipes differ.

    >>> effective_changes({"train": {"updates": 6, "workers": 2}}, {"train": {"updates": 7}})
    ['train.updates was 6, is 7']
    """
    return [
        f"{key} was {old}, is {new}"
        for key, (old, new) in changed_settings(before, after).items()
        if key not in NO_EFFECT
    ]


def _settings(recipe: Recipe | Mapping[str, Any]) -> dict[str, Any]:
    plain = recipe if isinstance(recipe, Mapping) else dataclasses.asdict(recipe)
    return flatten({key: value for key, value in plain.items() if key not in DESCRIPTION})
