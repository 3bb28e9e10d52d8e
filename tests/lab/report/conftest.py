"""What tests of the report share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import RunTree


@pytest.fixture
def tree(tmp_path: Path) -> RunTree:
    return RunTree(tmp_path / "runs")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures out of the page: they take most of its time."""
    monkeypatch.setattr("batchformer.lab.report.page.html.sections_of", lambda *_: [])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, where it and playwright are installed."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    silent = ("background-networking", "component-update", "sync", "gpu")
    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in silent)]
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()


class OpenedPage:
    """A page in a browser, with what it says to the console and what it asks for."""

    def __init__(self, context: Any, path: Path) -> None:
        self.context, self.page, self.address = context, context.new_page(), path.as_uri()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", lambda request: self.complaints.append(request.url))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.address)

    def close(self) -> None:
        """It must have been silent, and must have asked for nothing but itself."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]
        self.context.close()


@contextmanager
def pages_of(browser: Any) -> Iterator[Callable[..., OpenedPage]]:
    pages: list[OpenedPage] = []

    def opened(path: Path, **options: Any) -> OpenedPage:
        pages.append(OpenedPage(browser.new_context(**options), path))
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., OpenedPage]]:
    """Opens a file in a context with these options; what was opened is checked at the end."""
    with pages_of(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def open_shared_page(browser: Any) -> Iterator[Callable[..., OpenedPage]]:
    """The same for a page of all tests of a file."""
    with pages_of(browser) as opened:
        yield opened
