"""A small disk: mounted if that is allowed, else refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.full_disk import small_disk
from soak.kills import Unbroken


def test_without_rights_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        returncode, stderr = 32, "mount: must be superuser"

    monkeypatch.setattr("subprocess.run", lambda *_, **__: Refused())
    with pytest.raises(PermissionError, match="cannot be mounted: mount: must be superuser"):
        small_disk(tmp_path / "disk", Unbroken(tmp_path, 1.0))
