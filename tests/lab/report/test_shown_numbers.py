"""Tables of a figure on the page."""

from __future__ import annotations

from batchformer.lab.report.figures.shown import Numbers, numbers_html


def test_a_table_is_named_scrolls_and_cannot_inject_markup() -> None:
    html = numbers_html(Numbers('A "b"', ("arm", "few", "interval"), [("<i>", "1 < 2", "")]))
    assert (
        '<div class="scroll runs" tabindex="0" role="region" aria-label="A &quot;b&quot;">' in html
    )
    assert '<th scope="row">&lt;i&gt;</th><td>1 &lt; 2</td>' in html
    assert '<th scope="col">arm</th><th scope="col">few</th>' in html
    assert "<i>" not in html and "interval" not in html, "an empty column is left out"


def test_intervals_lie_below_numbers_and_seeds_below_arms() -> None:
    rows = [("baseline", "3", "0.67 [0.64, 0.70]", "2"), ("batchformer", "1", "0.5", "<3")]
    html = numbers_html(Numbers("Separation", ("arm", "n", "many", "few"), rows))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("arm", "many", "few"))
    assert f"<tr>{head}</tr>" in html
    assert '<th scope="row">baseline <small>3 seeds</small></th>' in html
    assert "<td>0.67 <small>[0.64, 0.70]</small></td><td>2</td>" in html
    assert "<small>1 seed</small></th><td>0.5</td><td>&lt;3</td>" in html
