"""All of it: minutes, so that `make soak` runs it and `make test` does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.__main__ import soak


@pytest.mark.slow
def test_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    to = Path("runs/soak")
    with capsys.disabled():
        print()
        rows = soak(to)
    assert [row["what"] for row in rows if row["passed"] is False] == []
    assert json.loads((to / "soak.json").read_text())["rows"] == json.loads(json.dumps(rows))
