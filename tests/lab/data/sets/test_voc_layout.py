"""Where lists of images with boxes are looked for, and what is said where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.sets.voc_layout import ensure_present, folder_of, list_file, present

LISTS = ("2007/trainval", "2012/trainval")


def test_every_list_has_to_be_there(tmp_path: Path) -> None:
    root = str(tmp_path)
    first, second = (list_file(root, name) for name in LISTS)
    first.parent.mkdir(parents=True)
    first.touch()
    assert present(root, LISTS[:1]) and not present(root, LISTS)
    with pytest.raises(FileNotFoundError, match="Lists of images not found") as error:
        ensure_present(root, LISTS)
    assert str(second) in str(error.value) and str(first) not in str(error.value)
    second.parent.mkdir(parents=True)
    second.touch()
    ensure_present(root, LISTS)


def test_by_default_they_lie_where_data_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert folder_of(None) == tmp_path / "VOCdevkit"
