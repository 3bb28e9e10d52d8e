"""Where features with attributes are looked for, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.sets.attribute_sets import (
    ATTRIBUTE_SETS,
    AttributeFiles,
    ensure_present,
    files_of,
)

#: Seen and unseen classes of the proposed splits, from the benchmark's paper.
KNOWN = {
    "cub": (150, 50),
    "awa1": (40, 10),
    "awa2": (40, 10),
    "sun": (645, 72),
    "apy": (20, 12),
    "flo": (82, 20),
}


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_what_is_known_of_the_data_sets() -> None:
    assert {name: (k.seen, k.unseen) for name, k in ATTRIBUTE_SETS.items()} == KNOWN


def test_a_folder_of_the_name_comes_first_then_the_root_then_an_npz(tmp_path: Path) -> None:
    assert files_of("awa2", tmp_path) is None
    touch(tmp_path, "awa2_gzsl.npz")
    assert files_of("awa2", tmp_path) == AttributeFiles(tmp_path / "awa2_gzsl.npz")
    touch(tmp_path, "res101.mat", "att_splits.mat")
    assert files_of("awa2", tmp_path) == AttributeFiles(
        tmp_path / "res101.mat", tmp_path / "att_splits.mat"
    )
    touch(tmp_path / "AwA2", "res101.mat", "att_splits.mat")
    found = files_of("awa2", tmp_path)
    assert found is not None and found.features.parent == tmp_path / "AwA2"


def test_cub_prefers_its_sentences(tmp_path: Path) -> None:
    touch(tmp_path / "CUB", "res101.mat", "att_splits.mat", "sent_splits.mat")
    found = ensure_present("cub", tmp_path)
    assert found.splits == tmp_path / "CUB/sent_splits.mat"
    touch(tmp_path / "SUN", "res101.mat", "sent_splits.mat")
    assert files_of("sun", tmp_path) is None


def test_the_environment_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert files_of("flo") is None
    touch(tmp_path / "FLO", "res101.mat", "att_splits.mat")
    assert files_of("flo") is not None


def test_a_file_serves_any_name(tmp_path: Path) -> None:
    touch(tmp_path, "mine.npz")
    for name in ("npz", "cub"):
        assert files_of(name, tmp_path / "mine.npz") == AttributeFiles(tmp_path / "mine.npz")
    assert files_of("npz", tmp_path / "other.npz") is files_of("npz", tmp_path) is None


def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ensure_present("cub", tmp_path)
    words = ("CUB not found", "res101.mat", "sent_splits.mat or att_splits.mat", "cub_gzsl.npz")
    for said in (*words, str(tmp_path), "--data.root", "BATCHFORMER_DATA", "zsl-benchmark"):
        assert said in str(caught.value)
    with pytest.raises(FileNotFoundError, match="trainval_loc") as caught:
        ensure_present("npz", tmp_path / "mine.npz")
    assert "mine.npz" in str(caught.value)
    with pytest.raises(ValueError, match="choose one of cub, awa1"):
        ensure_present("imagenet", tmp_path)
