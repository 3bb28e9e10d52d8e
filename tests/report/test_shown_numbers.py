"""Tables of a figure on the page."""

from __future__ import annotations

from batchformer.report.shown import Numbers, numbers_html


def test_a_table_is_named_scrolls_and_cannot_inject_markup() -> None:
    html = numbers_html(Numbers('A "b"', ("arm", "few", "interval"), [("<i>", "1 < 2", "")]))
    assert (
        '<div class="scroll runs" tabindex="0" role="region" aria-label="A &quot;b&quot;">' in html
    )
    assert '<th scope="row">&lt;i&gt;</th><td>1 &lt; 2</td>' in html
    assert '<th scope="col">arm</th><th scope="col">few</th>' in html
    assert "<i>" not in html and "interval" not in html, "an empty column is left out"
