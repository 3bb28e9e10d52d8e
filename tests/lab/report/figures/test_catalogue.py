"""Figures by name."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.cli.options import ShowOptions
from batchformer.lab.report.figures.catalogue import FIGURES, find_figure, listing


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_there_and_takes_its_options_with_the_same_defaults(name: str) -> None:
    offered = {field.name: field.default for field in dataclasses.fields(ShowOptions)}
    for option, parameter in FIGURES[name].options.items():
        assert parameter.default == offered[option], option


def test_every_option_belongs_to_a_figure() -> None:
    own = {option for entry in FIGURES.values() for option in entry.options}
    common = {"to", "against", "compute", "data", "device"}
    assert {field.name for field in dataclasses.fields(ShowOptions)} == own | common


def test_the_listing_has_a_line_for_each() -> None:
    lines = listing().splitlines()
    for name, entry in FIGURES.items():
        assert any(line.split() == [name, *entry.summary.split()] for line in lines)
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("wrong", "near"), [("atention", "attention"), ("class", "classes"), ("features2", "features")]
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"no figure '{wrong}'. Did you mean {near}?"):
        find_figure(wrong)
    with pytest.raises(ValueError, match=rf"no figure 'zzz'\. Figures: {', '.join(FIGURES)}\.$"):
        find_figure("zzz")
