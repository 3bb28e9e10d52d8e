from __future__ import annotations

import importlib.resources
import re
from itertools import combinations

import pytest

from batchformer.insight.figures.canvas import INK
from batchformer.lab.report.results.names import (
    ARMS,
    COLOURS,
    OTHER_COLOURS,
    arm_colours,
    metric_label,
)
from helpers.colours import contrast


def themes() -> list[dict[str, str]]:
    """The colours of the light and of the dark page, from its style sheet."""
    page = (
        importlib.resources.files("batchformer.insight.page")
        .joinpath("base.html.jinja")
        .read_text()
    )
    roots = re.findall(r":root \{(.*?)\}", page, flags=re.DOTALL)
    assert len(roots) == 2
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", root)) for root in roots]


@pytest.mark.parametrize("theme", [0, 1])
def test_arms_and_ink_can_be_seen_on_both_pages(theme: int) -> None:
    colours = themes()[theme]
    for colour in [*COLOURS.values(), *OTHER_COLOURS, INK]:
        for ground in ("page", "card"):
            assert contrast(colour, colours[ground]) >= 3.0, (colour, colours[ground])


@pytest.mark.parametrize("theme", [0, 1])
def test_text_can_be_read_on_both_pages(theme: int) -> None:
    colours = themes()[theme]
    for text in ("text", "muted", "gain", "loss", "link"):
        for ground in ("page", "card"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["muted"], colours["soft"]) >= 4.5


def test_colours_are_those_of_known_arms_and_all_differ() -> None:
    assert COLOURS.keys() <= ARMS.keys()
    every = [*COLOURS.values(), *OTHER_COLOURS, INK]
    assert all(one != two for one, two in combinations(every, 2))


def test_an_arm_keeps_its_colour_whatever_is_beside_it() -> None:
    assert arm_colours(["batchformer"])["batchformer"] == COLOURS["batchformer"]
    crowd = arm_colours(["new", "batchformer", "baseline", "newer", "new"])
    assert list(crowd) == ["baseline", "batchformer", "new", "newer"]
    assert crowd["batchformer"] == COLOURS["batchformer"]
    assert len(set(crowd.values())) == 4


def test_an_unknown_metric_is_called_by_its_name() -> None:
    assert (metric_label("few"), metric_label("top_9")) == ("Few", "top 9")
    assert (metric_label("top1"), metric_label("top5")) == ("Top-1", "Top-5")
