"""What a person should read of a task's facts before anything is trained; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchformer.lab.data.files.file_lists import some


def remarks_in(facts: Mapping[str, Any]) -> list[str]:
    """Remarks on the data, and words that have no vector of their own, each a line.

    Args:
        facts: of a task; those that it has no entries for give no lines.

    >>> remarks_in({"train": 9, "remarks": ["no pair is unseen"], "random_vectors": ["cat", "dog"]})
    ['no pair is unseen', 'no word vector, and a random one drawn: cat, dog']
    """
    lines = list(facts.get("remarks", ()))
    if parts := facts.get("words_without_vector"):
        names = [f"{name} ({', '.join(lacking)})" for name, lacking in parts.items()]
        lines.append(f"parts without a word vector, left out of the mean: {some(names)}")
    if drawn := facts.get("random_vectors"):
        lines.append(f"no word vector, and a random one drawn: {some(drawn)}")
    return lines
