"""The page of one network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from batchformer.insight.page.insight_page import write_insight_page
from helpers.simulated_networks import simulated_batches, simulated_insight


def test_every_figure_of_the_network_is_there_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)  # the extra "report" does not bring it
    insight = simulated_insight("batchformer", 0) | simulated_batches()
    page = write_insight_page(insight, tmp_path / "a" / "page.html", "<Mine>").read_text()
    assert "<title>&lt;Mine&gt;</title>" in page and "<Mine>" not in page
    first, *others = re.findall(r"<h3>(.*?)</h3>", page)
    assert first == "Inside a batch"
    assert sorted(others) == [
        "Attention between samples",
        "Feature space",
        "Influence by gradient",
        "Reliability",
        "Where the network looks",
    ]
    assert page.count('role="img"') >= 5
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert len(page) < 2_000_000
    assert "script-src &#39;sha256-" in page
    assert "Turn on JavaScript" in page
    said = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"\bseeds? \d|\d seed", said), "of one network no seed is known"


def test_a_network_without_batchformer_has_fewer_figures(tmp_path: Path) -> None:
    page = write_insight_page(simulated_insight("baseline", 0), tmp_path / "page.html").read_text()
    titles = ["Reliability", "Feature space", "Where the network looks"]
    assert re.findall(r"<h3>(.*?)</h3>", page) == titles
    assert "script-src" not in page


def test_nothing_to_draw_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Nothing to draw"):
        write_insight_page({}, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(IsADirectoryError, match="Give the name of a file"):
        write_insight_page(simulated_insight("baseline", 0), tmp_path)
