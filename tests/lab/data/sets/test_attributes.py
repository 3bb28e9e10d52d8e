"""Features with class attributes: where they lie, how they are read, scaled and refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor

from batchformer.lab.data.sets.attribute_sets import (
    ATTRIBUTE_SETS,
    AttributeFiles,
    ensure_present,
    files_of,
)
from batchformer.lab.data.sets.attributes import AttributeFeatures, load_attribute_features
from helpers.data_files import touch

#: Rows of each class: 0, 2, 3, 5 are seen; 1 and 4 are not.
SIZES, SEEN, UNSEEN = (10, 6, 15, 20, 4, 5), (0, 2, 3, 5), (1, 4)


def made(seed: int = 0, **changes: Any) -> AttributeFeatures:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(6), torch.tensor(SIZES))
    labels = labels[torch.randperm(len(labels), generator=draw)]
    seen = torch.isin(labels, torch.tensor(SEEN)).nonzero().flatten()
    seen = seen[torch.randperm(len(seen), generator=draw)]
    # Two rows of each seen class at the end are tested on.
    last = torch.cat([seen[labels[seen] == c][-2:] for c in SEEN])
    values: dict[str, Any] = {
        "name": "toy",
        "features": torch.rand(len(labels), 7, generator=draw) * 9 - 2,
        "labels": labels,
        "attributes": torch.rand(6, 3, generator=draw),
        "classes": tuple("abcdef"),
        "trainval": seen[~torch.isin(seen, last)],
        "test_seen": last,
        "test_unseen": torch.isin(labels, torch.tensor(UNSEEN)).nonzero().flatten(),
        "val_classes": torch.tensor([5, 2]),
    }
    return AttributeFeatures(**{**values, **changes})


def test_the_scale_is_that_of_sklearn_on_the_training_rows() -> None:
    data = made()
    data.features[:, 3] = 1.5  # a channel that never changes
    scaler = MinMaxScaler().fit(data.features[data.trainval].numpy())
    largest = scaler.transform(data.features[data.trainval].numpy()).max()
    for rows in (data.trainval, data.test_unseen):
        expected = scaler.transform(data.features[rows].numpy()) / largest
        np.testing.assert_allclose(data.scaled(rows).numpy(), expected, atol=1e-6)
    assert data.scaled(data.trainval).max() == 1 and data.scaled(data.trainval).min() == 0
    beyond = dataclasses.replace(data, features=data.features.clone())
    beyond.features[data.test_unseen] += 100
    assert torch.equal(beyond.scaled(data.trainval), data.scaled(data.trainval))
    assert beyond.scaled(data.test_unseen).min() > 1


def test_the_hash_knows_every_row_and_where_one_part_ends() -> None:
    data = made()
    moved = dataclasses.replace(
        data,
        trainval=torch.cat((data.trainval, data.test_seen[:1])),
        test_seen=data.test_seen[1:],
    )
    swapped = dataclasses.replace(data, trainval=data.trainval.flip(0))
    hashes = {data.split_sha256, moved.split_sha256, swapped.split_sha256}
    assert data.split_sha256 == made().split_sha256
    for name in ("features", "attributes"):
        array = getattr(data, name).clone()
        array[-1, -1] += 0.5
        hashes.add(dataclasses.replace(data, **{name: array}).split_sha256)
    assert len(hashes) == 5


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_one_level_down(seed: int) -> None:
    data = made(seed)
    inner = data.for_selection()
    assert inner.classes == ("a", "c", "d", "f")
    assert [inner.classes[c] for c in inner.seen] == ["a", "d"]
    assert [inner.classes[c] for c in inner.unseen] == ["c", "f"]
    assert torch.equal(inner.attributes, data.attributes[torch.tensor(SEEN)])
    # Every training row is there once, with its class, and no other.
    assert torch.equal(inner.features, data.features[data.trainval])
    names = [data.classes[c] for c in data.labels[data.trainval]]
    assert [inner.classes[c] for c in inner.labels] == names
    parts = torch.cat((inner.trainval, inner.test_seen, inner.test_unseen))
    assert parts.sort().values.tolist() == list(range(len(data.trainval)))
    for c in inner.seen.tolist():
        rows, held = (int((inner.labels[r] == c).sum()) for r in (inner.trainval, inner.test_seen))
        assert held == (rows + held) // 5
    assert torch.equal(data.for_selection().test_seen, inner.test_seen)
    assert inner.val_classes is None


def test_the_draw_of_a_class_depends_on_no_other() -> None:
    data = made()
    fewer = dataclasses.replace(data, val_classes=torch.tensor([5]))

    def held(inner: AttributeFeatures) -> Tensor:
        rows = inner.test_seen
        return rows[inner.labels[rows] == 2]  # the class d

    assert torch.equal(held(data.for_selection()), held(fewer.for_selection()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": torch.zeros(60, 7, dtype=torch.float64)}, "features must be torch.float32"),
        ({"features": torch.zeros(60)}, "features must be torch.float32 with 2 axes"),
        ({"features": torch.full((60, 7), torch.nan)}, "features are not all finite"),
        ({"features": torch.full((60, 7), torch.inf)}, "features are not all finite"),
        ({"attributes": torch.full((6, 5), torch.nan)}, "attributes are not all finite"),
        ({"features": torch.zeros(59, 7)}, "59 features but 60 labels"),
        ({"classes": tuple("abcde")}, "6 classes but 5 class names"),
        ({"labels": torch.arange(60)}, "labels run from 0 to 59"),
        ({"labels": torch.arange(60) % 7 - 1}, "labels run from -1 to 5"),
        ({"test_seen": torch.tensor([60])}, "runs from 60 to 60"),
        ({"test_seen": torch.tensor([], dtype=torch.int64)}, "one or more int64"),
        ({"val_classes": torch.tensor([1])}, "one or more seen classes"),
        ({"val_classes": torch.tensor(SEEN)}, "leave no seen class"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**changes)


def test_seen_and_unseen_are_disjoint_and_complete() -> None:
    data = made()
    assert data.seen.tolist() == list(SEEN) and data.unseen.tolist() == list(UNSEEN)
    with pytest.raises(ValueError, match="stands twice"):
        dataclasses.replace(data, test_seen=data.trainval[:3])
    unseen = data.test_unseen
    with pytest.raises(ValueError, match="classes 1 are tested as unseen but"):
        kept = unseen[unseen != unseen[data.labels[unseen] == 1][0]]
        moved = unseen[data.labels[unseen] == 1][:1]
        dataclasses.replace(data, trainval=torch.cat((data.trainval, moved)), test_unseen=kept)
    with pytest.raises(ValueError, match="classes 4 have no training row and no unseen"):
        dataclasses.replace(data, test_unseen=unseen[data.labels[unseen] == 1])
    with pytest.raises(ValueError, match="rows of classes 0, which have no training"):
        lost = data.trainval[data.labels[data.trainval] != 0]
        gone = data.labels[data.test_seen] == 0
        dataclasses.replace(
            data,
            trainval=lost,
            test_unseen=torch.cat((unseen, data.test_seen[gone][:1])),
            test_seen=data.test_seen[gone.logical_not() | (gone.cumsum(0) == 2)],
        )


def test_no_classes_of_validation_is_said() -> None:
    with pytest.raises(ValueError, match="names no classes of validation"):
        made(val_classes=None).for_selection()


CLASSES, SEEN_CLASSES, EACH, CHANNELS, ATTRIBUTES = 32, 20, 6, 5, 4


def arrays(seed: int = 0) -> dict[str, Any]:
    """As many classes as aPY has, six rows of each; a third of the seen rows is tested on."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.repeat(np.arange(CLASSES), EACH))
    unseen = np.arange(CLASSES)[SEEN_CLASSES:]
    rows = draw.permutation(np.flatnonzero(~np.isin(labels, unseen)))
    tested = np.concatenate([rows[labels[rows] == c][:2] for c in range(SEEN_CLASSES)])
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
        assert load_attribute_features("apy", folder).val_classes is None


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


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    folder = write_mat(tmp_path / "APY", arrays(), att=None)
    with pytest.raises(ValueError, match="lacks att; it holds allclasses_names"):
        load_attribute_features("apy", folder)
    given = arrays()
    np.savez(tmp_path / "a.npz", **{key: given[key] for key in given if key != "labels"})
    with pytest.raises(ValueError, match=r"a\.npz is not a file of features.*lacks labels"):
        load_attribute_features("npz", tmp_path / "a.npz")


def test_arrays_are_of_numbers_with_axes(tmp_path: Path) -> None:
    for name, wrong, words in (
        ("features", np.full((3, 2), "x"), "features must be numbers, got <U1"),
        ("att", np.array(3.0), "is not a file of features and attributes: att is a single value"),
        ("class_names", np.array("a"), ".*class_names is a single value"),
    ):
        np.savez(tmp_path / "mine.npz", **{**arrays(), name: wrong})
        with pytest.raises(ValueError, match=rf"mine\.npz:? {words}"):
            load_attribute_features("npz", tmp_path / "mine.npz")
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.zeros(3))  # one array without a name
    with pytest.raises(ValueError, match=r"mine\.npz is not a file of features"):
        load_attribute_features("npz", tmp_path / "mine.npz")


def test_labels_and_rows_are_whole_numbers(tmp_path: Path) -> None:
    given, file = arrays(), tmp_path / "mine.npz"
    np.savez(file, **{**given, "labels": given["labels"].astype(float)[:, None]})
    found = load_attribute_features("npz", file)
    assert found.labels.tolist() == given["labels"].tolist()
    for name, wrong in (
        ("labels", given["labels"] + 0.5),
        ("labels", np.where(given["labels"] == 0, np.nan, given["labels"])),
        ("labels", given["class_names"][given["labels"]]),
        ("trainval_loc", given["labels"] < 4),  # a mask is no list of rows
    ):
        np.savez(file, **{**given, name: wrong})
        with pytest.raises(ValueError, match=rf"mine\.npz: {name} must be whole numbers, counted"):
            load_attribute_features("npz", file)


def test_another_set_under_a_known_name_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "sun_gzsl.npz", **arrays())
    with pytest.raises(ValueError, match="20 seen and 12 unseen classes instead of 645 and 72"):
        load_attribute_features("sun", tmp_path)


# Where they lie.


def test_what_is_known_of_the_data_sets() -> None:
    """Seen and unseen classes of the proposed splits, from the benchmark's paper."""
    found = [f"{name} {known.seen} {known.unseen}" for name, known in ATTRIBUTE_SETS.items()]
    wanted = ["cub 150 50", "awa1 40 10", "awa2 40 10", "sun 645 72", "apy 20 12", "flo 82 20"]
    assert {*found} >= {*wanted}


def test_a_folder_of_the_name_comes_first_then_the_root_then_an_npz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert files_of("awa2", tmp_path) is None
    npz = AttributeFiles(tmp_path / "awa2_gzsl.npz")
    both = ("res101.mat", "att_splits.mat")
    for folder, files, expected in (
        (tmp_path, ["awa2_gzsl.npz"], npz),
        (tmp_path, both, AttributeFiles(*(tmp_path / name for name in both))),
        (tmp_path / "AwA2", both, AttributeFiles(*(tmp_path / "AwA2" / name for name in both))),
    ):
        touch(folder, *files)
        assert files_of("awa2", tmp_path) == files_of("awa2") == expected
    for name in ("npz", "cub"):
        assert files_of(name, npz.features) == npz, "a file serves any name"
    assert files_of("npz", tmp_path / "other.npz") is files_of("npz", tmp_path) is None


def test_cub_prefers_its_sentences(tmp_path: Path) -> None:
    touch(tmp_path / "CUB", "res101.mat", "att_splits.mat", "sent_splits.mat")
    assert ensure_present("cub", tmp_path).splits == tmp_path / "CUB/sent_splits.mat"
    touch(tmp_path / "SUN", "res101.mat", "sent_splits.mat")
    assert files_of("sun", tmp_path) is None


def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    files = r"res101\.mat and sent_splits\.mat or att_splits\.mat, or cub_gzsl\.npz"
    with pytest.raises(FileNotFoundError, match=rf"CUB not .*{tmp_path} .*\n.*{files}.*\n.*mpg.de"):
        ensure_present("cub", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"mine\.npz.*trainval_loc"):
        ensure_present("npz", tmp_path / "mine.npz")
