"""What is kept of a run with SWAD: plain names are the averaged network's, one name one meaning.

``photo``, ``val`` and ``per_class`` belong to the average of the weights, the same names after
``without_swad_`` to the network that was trained. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

#: Before names of the network without the average; alone, the mean over targets.
UNAVERAGED = "without_swad"
#: Before names of the averaged network, in runs of earlier versions.
ONCE_AVERAGED = "swad_"

T = TypeVar("T")


def todays_names(found: Mapping[str, T]) -> dict[str, T]:
    """Scores, or arrays, by the names that they have today.

    Earlier versions had the plain names for the network that was trained and ``swad_photo`` for the
    averaged one; over all targets they had the averaged scores, but a ``val`` without the average.

    >>> todays_names({"photo": 91.0, "val": 95.0, "swad_photo": 94.0, "swad_val": 97.0})
    {'photo': 94.0, 'val': 97.0, 'without_swad_photo': 91.0, 'without_swad_val': 95.0}
    >>> todays_names({"average": 94.0, "without_swad": 91.0, "val": 95.0})
    {'average': 94.0, 'without_swad': 91.0, 'without_swad_val': 95.0}
    >>> todays_names({"all": 51.0})
    {'all': 51.0}
    """
    twice = [name for name in found if ONCE_AVERAGED + name in found]
    if twice:
        averaged = {name: found[ONCE_AVERAGED + name] for name in twice}
        trained = {f"{UNAVERAGED}_{name}": found[name] for name in twice}
        known = {*twice, *(ONCE_AVERAGED + name for name in twice)}
        rest = {name: value for name, value in found.items() if name not in known}
        return {**averaged, **trained, **rest}
    before = UNAVERAGED in found and f"{UNAVERAGED}_val" not in found
    return {
        f"{UNAVERAGED}_val" if before and name == "val" else name: value
        for name, value in found.items()
    }
