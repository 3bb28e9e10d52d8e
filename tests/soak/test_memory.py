"""The memory of a process, measured from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.memory import Memory, memory_of_a_run


def test_the_spread_is_that_of_the_windows() -> None:
    assert Memory(2000, 500, (500.0, 505.0, 502.0)).spread == pytest.approx(0.01)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_training_is_seen(tmp_path: Path) -> None:
    found = memory_of_a_run(tmp_path / "runs", updates=120, warm_up=40, window=40)
    assert len(found.megabytes) >= 2 and 100 < min(found.megabytes) < 10_000
