from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

from matplotlib.figure import Figure

from batchformer.lab.report.figures.canvas import INK, WIDTH, inline_svg, legend, new_figure, title


def drawn() -> Figure:
    figure, panels = new_figure([1.0, 2.0])
    panels[0].plot([1, 2, 3], [1, 5, 2], marker="o", color="#1f7ac4", label="a $b$ <c>")
    panels[1].fill_between([1, 2, 3], [0, 1, 0], [2, 3, 2], color="#d55e00", alpha=0.2)
    title(panels[1], "Cost in $ and in % & more")
    legend(figure, panels[0])
    return figure


def test_it_is_one_well_formed_element_with_a_description() -> None:
    root = ElementTree.fromstring(inline_svg(drawn(), 'Says "what" & why', "one"))
    assert root.tag == "svg"
    assert (root.get("role"), root.get("aria-label")) == ("img", 'Says "what" & why')
    assert root.get("width") is root.get("height") is None, "the page sets the size"
    assert root.get("viewBox", "").startswith(f"0 0 {72 * WIDTH:g} ")


def test_nothing_in_it_reaches_outside_or_styles_the_page() -> None:
    text = inline_svg(drawn(), "x", "one")
    assert "http" not in text
    assert "<style" not in text
    assert "<metadata" not in text


def test_ink_is_the_colour_of_the_page_and_the_ground_is_clear() -> None:
    text = inline_svg(drawn(), "x", "one")
    assert INK not in text
    assert "currentColor" in text
    assert not re.search(r"fill: (#ffffff|white)", text)
    assert not re.search(r"(fill|stroke): (#000000|black)", text), "black is lost on a dark page"
    texts = ElementTree.fromstring(text).iter("text")
    assert all("currentColor" in element.get("style", "") for element in texts)


def test_text_stays_text_in_the_fonts_of_the_page() -> None:
    text = inline_svg(drawn(), "x", "one")
    words = [element.text for element in ElementTree.fromstring(text).iter("text")]
    assert "Cost in $ and in % & more" in words
    assert "a $b$ <c>" in words
    assert "DejaVu" not in text
    assert "font-size: 9px" in text


def test_references_are_met_and_ids_differ_between_figures() -> None:
    ids = []
    for prefix in ("one", "two"):
        text = inline_svg(drawn(), "x", prefix)
        own = set(re.findall(r'\bid="([^"]+)"', text))
        used = set(re.findall(r'url\(#([^)"]+)\)|href="#([^"]+)"', text))
        assert {a or b for a, b in used} == own
        assert own
        ids.append(own)
    assert not ids[0] & ids[1]


def test_equal_figures_are_equal_text() -> None:
    assert inline_svg(drawn(), "x", "one") == inline_svg(drawn(), "x", "one")


def test_pyplot_and_its_global_state_are_left_alone() -> None:
    # Asking for "backend" would import pyplot.
    code = (
        "import sys; from batchformer.lab.report.figures.canvas import *; import matplotlib;"
        "kept = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'};"
        "before = kept(); figure, panels = new_figure([1.0]); inline_svg(figure, 'x', 'y');"
        "assert kept() == before; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
