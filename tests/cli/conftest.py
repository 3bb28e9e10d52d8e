"""Commands that fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchformer.cli import main as cli


@pytest.fixture
def failing(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Calls a command that fails; gives its exit code and its words."""

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return int(stop.value.code or 0), " ".join((seen.err + seen.out).replace("│", " ").split())

    return call
