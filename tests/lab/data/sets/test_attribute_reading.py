"""Both layouts give the same data; what is wrong with a file is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from batchformer.lab.data.sets.attribute_sets import ATTRIBUTE_SETS
from batchformer.lab.data.sets.attributes import load_attribute_features, read_mat, read_npz

CLASSES, SEEN, EACH, CHANNELS, ATTRIBUTES = 32, 20, 6, 5, 4


def arrays(seed: int = 0) -> dict[str, Any]:
    """As many classes as aPY has, six rows of each; a third of the seen rows is tested on."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.repeat(np.arange(CLASSES), EACH))
    unseen = np.arange(CLASSES)[SEEN:]
    rows = draw.permutation(np.flatnonzero(~np.isin(labels, unseen)))
    tested = np.concatenate([rows[labels[rows] == c][:2] for c in range(SEEN)])
    return {
        "features": draw.random((len(labels), CHANNELS)).astype(np.float16),
        "labels": labels.astype(np.int16),
        "att": draw.random((CLASSES, ATTRIBUTES)).astype(np.float32),
        "class_names": np.array([f"class{c}" for c in range(CLASSES)]),
        "trainval_loc": rows[~np.isin(rows, tested)],
        "test_seen_loc": tested,
        "test_unseen_loc": np.flatnonzero(np.isin(labels, unseen)),
        "val_classes": np.arange(3, 9, dtype=np.int16),
    }


def write_mat(folder: Path, given: dict[str, Any], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    labels = given["labels"].astype(np.float64)[:, None] + 1
    savemat(
        folder / "res101.mat", {"features": given["features"].T.astype(float), "labels": labels}
    )
    names = np.empty((CLASSES, 1), dtype=object)
    names[:, 0] = [str(name) for name in given["class_names"]]
    splits = {"att": given["att"].T.astype(float), "allclasses_names": names}
    for key in ("trainval_loc", "test_seen_loc", "test_unseen_loc"):
        splits[key] = given[key].astype(np.float64)[:, None] + 1
    # As published: rows of the test part of seen classes are in these two lists as well.
    seen = np.concatenate((given["trainval_loc"], given["test_seen_loc"]))
    chosen = np.isin(given["labels"][seen], given["val_classes"])
    splits["val_loc"], splits["train_loc"] = seen[chosen][:, None] + 1, seen[~chosen][:, None] + 1
    kept = {k: v for k, v in {**splits, **changes}.items() if v is not None}
    savemat(folder / "att_splits.mat", kept)
    return folder


def same(first: Any, second: Any) -> None:
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name != "name":
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


def test_npz_and_mat_give_the_same(tmp_path: Path) -> None:
    given = arrays()
    np.savez(tmp_path / "apy_gzsl.npz", **given)
    from_npz = load_attribute_features("apy", tmp_path)
    assert from_npz.name == "APY (apy_gzsl.npz)"
    np.testing.assert_array_equal(from_npz.features, given["features"].astype(np.float32))
    np.testing.assert_array_equal(from_npz.labels, given["labels"])
    np.testing.assert_array_equal(from_npz.attributes, given["att"])
    np.testing.assert_array_equal(from_npz.test_seen, given["test_seen_loc"])
    assert from_npz.classes[31] == "class31"
    write_mat(tmp_path / "APY", given)
    from_mat = load_attribute_features("apy", tmp_path)
    assert from_mat.name == "APY (att_splits.mat)"
    same(from_mat, from_npz)
    assert from_mat.val_classes is not None and from_mat.val_classes.tolist() == [3, 4, 5, 6, 7, 8]


def test_validation_that_is_not_of_classes_is_none(tmp_path: Path) -> None:
    given = arrays()
    rows = given["trainval_loc"][:, None] + 1
    for number, changes in enumerate(
        [{"val_loc": rows[::2], "train_loc": rows[1::2]}, {"val_loc": None}, {"train_loc": None}]
    ):
        folder = write_mat(tmp_path / str(number), given, **changes)
        found = read_mat(folder / "res101.mat", folder / "att_splits.mat", "x")
        assert found.val_classes is None


def test_names_and_validation_may_be_left_out(tmp_path: Path) -> None:
    given = arrays()
    del given["class_names"], given["val_classes"]
    np.savez(tmp_path / "mine.npz", **given)
    found = load_attribute_features("npz", tmp_path / "mine.npz")
    assert found.name == "mine (mine.npz)" and found.classes[:2] == ("0", "1")
    assert found.val_classes is None


def test_newer_matlab_files_are_told_apart(tmp_path: Path) -> None:
    folder = write_mat(tmp_path / "APY", arrays())
    # The header of version 7.3: text, then version 0x0200 and the mark of byte order.
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (folder / "res101.mat").write_bytes(header + b"\x00" * 512)
    with pytest.raises(ValueError, match=r"7\.3 \(HDF5\).*-v7"):
        load_attribute_features("apy", tmp_path)


@pytest.mark.parametrize("content", [b"", b"not matlab at all", None], ids=["empty", "text", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    folder = write_mat(tmp_path / "APY", arrays())
    file = folder / "att_splits.mat"
    file.write_bytes(file.read_bytes()[:700] if content is None else content)
    with pytest.raises(ValueError, match=r"att_splits\.mat is damaged or not one"):
        load_attribute_features("apy", tmp_path)


def test_missing_arrays_and_pickles_are_named(tmp_path: Path) -> None:
    folder = write_mat(tmp_path / "APY", arrays(), att=None)
    with pytest.raises(ValueError, match="lacks att; it holds allclasses_names"):
        load_attribute_features("apy", folder)
    given = arrays()
    del given["labels"]
    np.savez(tmp_path / "a.npz", **given)
    with pytest.raises(ValueError, match=r"a\.npz is not a file of features.*lacks labels"):
        read_npz(tmp_path / "a.npz", "a")
    np.savez(tmp_path / "b.npz", **{**arrays(), "class_names": np.array([{}] * CLASSES)})
    with pytest.raises(ValueError, match=r"b\.npz is not a file of features"):
        read_npz(tmp_path / "b.npz", "b")
    (tmp_path / "c.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"c\.npz is not a file of features"):
        read_npz(tmp_path / "c.npz", "c")


def test_another_set_under_a_known_name_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "sun_gzsl.npz", **arrays())
    with pytest.raises(ValueError, match="20 seen and 12 unseen classes instead of 645 and 72"):
        load_attribute_features("sun", tmp_path)
    assert ATTRIBUTE_SETS["sun"].classes == 717
