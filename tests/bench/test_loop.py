"""The benchmark measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchformer.bench import loop


def test_a_small_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "UPDATES", 2)
    loop.main(1, tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["bare_ms"] > 0 and figures["loop_ms"] > 0
    ratio = 100 * (figures["loop_ms"] / figures["bare_ms"] - 1)
    assert figures["overhead_percent"] == pytest.approx(ratio)
    assert "the loop adds" in capsys.readouterr().out
