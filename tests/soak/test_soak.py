"""Memory and a small disk; and all trials, which take minutes: `make soak` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.__main__ import soak
from soak.full_disk import small_disk
from soak.kills import Unbroken
from soak.memory import memory_of_a_run


def test_a_disk_that_may_not_be_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        returncode, stderr = 32, "mount: must be superuser"

    monkeypatch.setattr("subprocess.run", lambda *_, **__: Refused())
    with pytest.raises(PermissionError, match="cannot be mounted: mount: must be superuser"):
        small_disk(tmp_path / "disk", Unbroken(tmp_path, 1.0))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_memory_of_a_training_is_seen(tmp_path: Path) -> None:
    found = memory_of_a_run(tmp_path / "runs", updates=120, warm_up=40, window=40)
    assert len(found.megabytes) >= 2 and 100 < min(found.megabytes) < 10_000


@pytest.mark.slow
def test_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    to = Path("runs/soak")
    with capsys.disabled():
        print()
        rows = soak(to)
    assert [row["what"] for row in rows if row["passed"] is False] == []
    assert json.loads((to / "soak.json").read_text())["rows"] == json.loads(json.dumps(rows))
