"""Where ImageNet is looked for, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.sets.imagenet_layout import ensure_present, folder_of, present


def test_both_parts_need_a_class(tmp_path: Path) -> None:
    (tmp_path / "train" / "n01440764").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG").touch()  # not sorted into classes
    assert not present(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"val is missing or has no class folder") as e:
        ensure_present(str(tmp_path))
    assert str(tmp_path) in str(e.value) and "train is missing" not in str(e.value)
    (tmp_path / "val" / "n01440764").mkdir()
    assert present(str(tmp_path))
    ensure_present(str(tmp_path))


def test_by_default_it_lies_where_data_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert folder_of(None) == tmp_path / "imagenet" and not present(None)
    with pytest.raises(FileNotFoundError, match="train and val"):
        ensure_present(None)
