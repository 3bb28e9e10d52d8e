"""Settings of detection that make no sense are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.data import DetectionConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precise_norm": -1}, "data.precise-norm is -1, below 0"),
        ({"trained_on": ()}, "names no list of images"),
        ({"scored_on": ()}, "names no list of images"),
        ({"trained_on": ("trainval",)}, "'trainval' is no list of images; write it as 2007/"),
        ({"scored_on": ("2007/Main/test",)}, "'2007/Main/test' is no list of images"),
        ({"scored_on": ("/test",)}, "'/test' is no list of images"),
        ({"shorter": ()}, "has no length of a side"),
        ({"shorter": (480, 0)}, "has no length of a side"),
        ({"shorter_at_test": 0}, "has no length of a side"),
        ({"longest": 799}, "data.longest is 799, below data.shorter"),
        ({"shorter_at_test": 1400}, "data.longest is 1333, below data.shorter"),
    ],
)
def test_boxes_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DetectionConfig(**settings)


def test_the_longest_side_may_be_the_shortest() -> None:
    """Squares: every side is as long as the other."""
    assert DetectionConfig(shorter=(32,), shorter_at_test=32, longest=32).longest == 32
