"""Where data is looked for, however names are spelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.files.location import looked_in, match_name, names_in


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert looked_in() == tmp_path and looked_in(Path("~/x")) == Path.home() / "x"
    monkeypatch.delenv("BATCHFORMER_DATA")
    assert looked_in() == Path.home() / ".cache/batchformer"


@pytest.mark.parametrize("spelling", ["Real World", "Real_World", "RealWorld", "real-world"])
def test_letters_and_digits_count(spelling: str) -> None:
    assert match_name(["Art", spelling, "Realm"], ["Real World"]) == spelling


def test_the_usual_spelling_and_the_first_usual_name_come_first() -> None:
    assert match_name(["real_world", "Real World"], ["Real World"]) == "Real World"
    assert match_name(["SUN", "sun09"], ["SUN09", "SUN"]) == "sun09"
    assert match_name(["sun10"], ["SUN09", "SUN"]) is None


def test_names_of_folders_and_of_files(tmp_path: Path) -> None:
    for folder in ("b", "a"):
        (tmp_path / folder).mkdir()
    (tmp_path / "c.txt").touch()
    assert names_in(tmp_path, folders=True) == ["a", "b"]
    assert names_in(tmp_path, folders=False) == ["c.txt"]
    assert names_in(tmp_path / "none", folders=True) == []
