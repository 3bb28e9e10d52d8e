"""Read features with class attributes: the benchmark's pairs of `.mat` files, or one `.npz`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchformer.lab.data.sets.attribute_features import AttributeFeatures, classes_of
from batchformer.lab.data.sets.attribute_sets import (
    ATTRIBUTE_SETS,
    OWN,
    AttributeSet,
    ensure_present,
)

Array = npt.NDArray[Any]

_ROWS = ("trainval_loc", "test_seen_loc", "test_unseen_loc")
_NPZ = ("features", "labels", "att", *_ROWS)


def load_attribute_features(name: str, root: str | Path | None = None) -> AttributeFeatures:
    """A known set by its name, or a person's own `.npz`.

    Args:
        name: cub, awa1, awa2, sun, apy, flo, or npz for one's own.
        root: folder of the set, or the one above, or an `.npz`. None: $BATCHFORMER_DATA, else
            ~/.cache/batchformer.

    Raises:
        FileNotFoundError: with what is missing and how to provide it.
        ValueError: a file is damaged, or is not that set.
    """
    files = ensure_present(name, root)
    title = files.features.stem if name == OWN else ATTRIBUTE_SETS[name].title
    if files.splits is None:
        found = read_npz(files.features, title)
    else:
        found = read_mat(files.features, files.splits, title)
    if name != OWN:
        _require_known(ATTRIBUTE_SETS[name], found, files.features)
    return found


def read_npz(path: Path, name: str) -> AttributeFeatures:
    """Features (N, D), labels (N,), `att` (K, A) and rows, all counted from 0, of one file.

    The rows are `trainval_loc`, `test_seen_loc` and `test_unseen_loc`; `class_names` (K,) and
    `val_classes` may be left out.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            _require_keys(_NPZ, file.files)
            arrays = {
                key: file[key] for key in (*_NPZ, "class_names", "val_classes") if key in file
            }
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a file of features and attributes: {error}") from error
    names = arrays.get("class_names", np.arange(len(arrays["att"])))
    val = arrays.get("val_classes")
    return AttributeFeatures(
        name=f"{name} ({path.name})",
        features=_numbers(arrays["features"]),
        labels=_integers(arrays["labels"]),
        attributes=_numbers(arrays["att"]),
        classes=tuple(str(c) for c in names),
        trainval=_integers(arrays["trainval_loc"]),
        test_seen=_integers(arrays["test_seen_loc"]),
        test_unseen=_integers(arrays["test_unseen_loc"]),
        val_classes=None if val is None else _integers(val),
    )


def read_mat(features: Path, splits: Path, name: str) -> AttributeFeatures:
    """The benchmark's two files, in which samples are columns and counting begins at 1.

    Classes of validation are those of `val_loc`, where `train_loc` has none of them. Only the
    classes are taken: in the published files these two lists also name rows of the seen classes'
    test part.

    Args:
        features: `features` (D, N) and `labels` (N, 1).
        splits: `att` (A, K), `allclasses_names` and the rows.
        name: given to the data, with the name of the second file.
    """
    vectors = _mat(features, ("features", "labels"))
    attributes = _mat(splits, ("att", *_ROWS))
    labels = _integers(vectors["labels"]) - 1
    rows = {
        key: _integers(attributes[key]) - 1
        for key in (*_ROWS, "train_loc", "val_loc")
        if key in attributes
    }
    classes = attributes.get("allclasses_names")
    if classes is None:
        classes = np.arange(attributes["att"].shape[1])
    return AttributeFeatures(
        name=f"{name} ({splits.name})",
        features=_numbers(vectors["features"].T),
        labels=labels,
        attributes=_numbers(attributes["att"].T),
        classes=tuple(_word(c) for c in classes.ravel()),
        trainval=rows["trainval_loc"],
        test_seen=rows["test_seen_loc"],
        test_unseen=rows["test_unseen_loc"],
        val_classes=_validation(labels, rows),
    )


def _validation(labels: Tensor, rows: dict[str, Tensor]) -> Tensor | None:
    """Classes of validation, or None where it shares classes with training, or has no rows."""
    if "val_loc" not in rows or "train_loc" not in rows or not len(rows["val_loc"]):
        return None
    chosen, others = (classes_of(labels, rows[key]) for key in ("val_loc", "train_loc"))
    return None if bool(torch.isin(chosen, others).any()) else chosen


def _mat(path: Path, keys: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of a MATLAB file, of a version before 7.3."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise ImportError(
            "reading .mat files needs scipy: pip install 'batchformer[lab]'"
        ) from error
    try:
        arrays: dict[str, Array] = loadmat(str(path))
        _require_keys(keys, [key for key in arrays if not key.startswith("__")])
    except NotImplementedError as error:
        raise ValueError(
            f"{path} is a MATLAB file of version 7.3 (HDF5), which is not read here. Save it again "
            "in MATLAB with save(..., '-v7'), or give the arrays as an .npz by --data.root."
        ) from error
    except (ValueError, LookupError, TypeError, EOFError, OSError, MatReadError) as error:
        raise ValueError(f"{path} is damaged or not one of the benchmark's: {error}") from error
    return arrays


def _require_keys(wanted: tuple[str, ...], there: list[str]) -> None:
    missing = [key for key in wanted if key not in there]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}; it holds {', '.join(there)}")


def _require_known(known: AttributeSet, found: AttributeFeatures, path: Path) -> None:
    """Refuse a set with other classes, or another split of them."""
    got = len(found.seen), len(found.unseen)
    if got != (known.seen, known.unseen):
        raise ValueError(
            f"{path} is not {known.title} as it is used: it has {got[0]} seen and {got[1]} unseen "
            f"classes instead of {known.seen} and {known.unseen}. Take the set from "
            f"{known.source}; features of your own are {OWN}"
        )


def _numbers(array: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _integers(array: Array) -> Tensor:
    return torch.from_numpy(array.ravel().astype(np.int64))


def _word(cell: Any) -> str:
    """A name, out of the array that MATLAB's cells become."""
    return str(cell.item() if isinstance(cell, np.ndarray) else cell)
