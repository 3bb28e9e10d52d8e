"""A page as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "wbr", "img"}


class Markup(HTMLParser):
    """A page, or a part of it, whose elements are closed in order.

    It has every element with its attributes, the cells of its tables, what is small in them, and
    its text.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.small: list[str] = []
        self._open: list[str] = []
        self._words: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        elif tag == "small":
            self.small.append("")

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self._open):
            self.rows[-1][-1] += data
        if "small" in self._open:
            self.small[-1] += data
        if "style" not in self._open:
            self._words.append(data)

    def values(self, *attributes: str) -> list[str]:
        """The values of these attributes."""
        every = (item for _, attrs in self.elements for item in attrs.items())
        return [value or "" for name, value in every if name in attributes]

    @property
    def text(self) -> str:
        return " ".join("".join(self._words).split())
