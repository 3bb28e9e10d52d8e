"""Feature vectors with attributes of their classes; some classes are never trained on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchformer.insight.optional import extra
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.data.sets.attribute_sets import (
    ATTRIBUTE_SETS,
    OWN,
    AttributeSet,
    ensure_present,
)
from batchformer.lab.data.sets.images import (
    content_hash,
    read_arrays,
    require_keys,
    require_labels,
)
from batchformer.nn.randomness import generator


@dataclass(frozen=True, eq=False)
class AttributeFeatures:
    """Features of all images, attributes of all classes, and the rows of each part.

    Seen classes are those of the training rows, unseen ones those of `test_unseen`; together they
    are all K, and no class is both.
    """

    name: str
    features: Tensor  # (N, D) float32, as published; :meth:`scaled` is the input of networks
    labels: Tensor  # (N,) int64 class of each row, from 0
    attributes: Tensor  # (K, A) float32
    classes: tuple[str, ...]
    trainval: Tensor  # int64 rows that are trained on
    test_seen: Tensor  # rows of seen classes that scores are measured on
    test_unseen: Tensor  # those of unseen classes
    # Seen classes that play the unseen ones while settings are chosen, if the data names any.
    val_classes: Tensor | None = None

    def __post_init__(self) -> None:
        self._check_arrays()
        self._check_rows()
        self._check_classes()

    @cached_property
    def seen(self) -> Tensor:
        """(S,) int64 numbers of the classes that are trained on, ascending."""
        return classes_of(self.labels, self.trainval)

    @cached_property
    def unseen(self) -> Tensor:
        """(U,) int64 numbers of the classes that are never trained on, ascending."""
        return classes_of(self.labels, self.test_unseen)

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the class names, features, labels and attributes, and the rows of each part."""
        arrays = (self.features, self.labels, self.attributes)
        rows = (self.trainval, self.test_seen, self.test_unseen)
        return content_hash("\n".join(self.classes), *arrays, *rows)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """(D,) minimum and (D,) range over the training rows; a range of 0 counts as 1."""
        training = self.features[self.trainval]
        low, high = training.amin(0), training.amax(0)
        return low, torch.where(high > low, high - low, torch.ones_like(low))

    def scaled(self, rows: Tensor) -> Tensor:
        """Features (n, D) of rows (n,): each channel to [0, 1] over the training rows.

        Other rows may leave [0, 1]. A channel that is constant in training becomes 0 there.
        """
        low, span = self._scale
        return (self.features[rows] - low) / span

    def for_selection(self) -> AttributeFeatures:
        """The same task inside the training rows, for choosing settings without the test rows.

        `val_classes` become the unseen classes, with their training rows to be tested on. Of each
        other seen class, a fifth of its training rows (rounded down), drawn by the class's number,
        is held out as `test_seen`. Rows and classes of the test are left out: classes are
        renumbered in the old order, and rows are those of the old training part.
        """
        if self.val_classes is None:
            raise ValueError(
                f"{self.name} names no classes of validation to choose settings by; give "
                "val_classes, or train on all seen classes at once: --data.no-choose"
            )
        labels = self.labels[self.trainval]
        chosen = torch.isin(labels, self.val_classes)
        held = torch.zeros_like(chosen)
        for c in self.seen[~torch.isin(self.seen, self.val_classes)].tolist():
            rows = (labels == c).nonzero().flatten()
            order = torch.randperm(len(rows), generator=generator(0, "split", c))
            held[rows[order[: len(rows) // 5]]] = True
        return AttributeFeatures(
            name=f"{self.name}, classes of validation unseen",
            features=self.features[self.trainval],
            labels=torch.searchsorted(self.seen, labels),
            attributes=self.attributes[self.seen],
            classes=tuple(self.classes[c] for c in self.seen.tolist()),
            trainval=(~chosen & ~held).nonzero().flatten(),
            test_seen=held.nonzero().flatten(),
            test_unseen=chosen.nonzero().flatten(),
        )

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise ValueError(f"{self.name}: {problem}")

    def _check_arrays(self) -> None:
        wanted = {
            "features": (self.features, torch.float32, 2),
            "labels": (self.labels, torch.int64, 1),
            "attributes": (self.attributes, torch.float32, 2),
        }
        for name, (tensor, dtype, axes) in wanted.items():
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            right = tensor.dtype == dtype and tensor.ndim == axes
            self._require(right, f"{name} must be {dtype} with {axes} axes, got {got}")
            finite = dtype != torch.float32 or bool(tensor.isfinite().all())
            self._require(finite, f"{name} are not all finite numbers")
        rows, labels = len(self.features), len(self.labels)
        self._require(rows == labels, f"{rows} features but {labels} labels")
        described, named = len(self.attributes), len(self.classes)
        problem = f"attributes of {described} classes but {named} class names"
        self._require(described == named, problem)
        require_labels(f"{self.name}: labels run", self.labels, named)

    def _check_rows(self) -> None:
        parts = {
            "trainval": self.trainval,
            "test_seen": self.test_seen,
            "test_unseen": self.test_unseen,
        }
        for name, rows in parts.items():
            right = rows.dtype == torch.int64 and rows.ndim == 1 and len(rows) > 0
            self._require(right, f"{name} must be one or more int64 row numbers")
            low, high, last = int(rows.min()), int(rows.max()), len(self.labels) - 1
            problem = f"{name} runs from {low} to {high}, but the rows are 0..{last}"
            self._require(low >= 0 and high <= last, problem)
        once = int(torch.bincount(torch.cat(list(parts.values()))).max()) == 1
        problem = "a row stands twice in {}; each row belongs to one part at most"
        self._require(once, problem.format(", ".join(parts)))

    def _check_classes(self) -> None:
        seen, unseen = {*self.seen.tolist()}, {*self.unseen.tolist()}
        both, neither = seen & unseen, {*range(len(self.classes))} - seen - unseen
        stray = {*self.labels[self.test_seen].tolist()} - seen
        for classes, problem in (
            (both, "classes {} are tested as unseen but have training rows"),
            (neither, "classes {} have no training row and no unseen test row"),
            (stray, "test_seen has rows of classes {}, which have no training rows"),
        ):
            self._require(not classes, problem.format(shorten([str(c) for c in sorted(classes)])))
        if self.val_classes is not None:
            chosen = {*self.val_classes.tolist()}
            right = bool(chosen) and chosen <= seen
            self._require(right, "val_classes must be one or more seen classes")
            self._require(chosen != seen, "val_classes leave no seen class to train on")


def classes_of(labels: Tensor, rows: Tensor) -> Tensor:
    """The distinct class numbers of some rows, ascending.

    >>> classes_of(torch.tensor([7, 3, 3, 5]), torch.tensor([0, 1, 2]))
    tensor([3, 7])
    """
    return torch.bincount(labels[rows]).nonzero().flatten()


# Readers: the benchmark's pairs of `.mat` files, or one `.npz`.

Array = npt.NDArray[Any]

_ROWS = ("trainval_loc", "test_seen_loc", "test_unseen_loc")
_NPZ = ("features", "labels", "att", *_ROWS)


def load_attribute_features(name: str, root: str | Path | None = None) -> AttributeFeatures:
    """A known set by its name, or the user's own `.npz`.

    `root` is the folder of the set, or the one above, or an `.npz`; by default, where data is
    looked for.
    """
    files = ensure_present(name, root)
    title = files.features.stem if name == OWN else ATTRIBUTE_SETS[name].title
    arrays = _read_mat(files.features, files.splits) if files.splits else _read_npz(files.features)

    def whole(key: str) -> Tensor:
        return _integers(arrays[key], f"{files.features}: {key}")

    def numbers(key: str) -> Tensor:
        if arrays[key].dtype.kind not in "iuf":
            raise ValueError(f"{files.features}: {key} must be numbers, got {arrays[key].dtype}")
        return torch.from_numpy(np.ascontiguousarray(arrays[key], dtype=np.float32))

    found = AttributeFeatures(
        name=f"{title} ({(files.splits or files.features).name})",
        features=numbers("features"),
        labels=whole("labels"),
        attributes=numbers("att"),
        classes=tuple(map(str, arrays.get("class_names", range(len(arrays["att"]))))),
        trainval=whole("trainval_loc"),
        test_seen=whole("test_seen_loc"),
        test_unseen=whole("test_unseen_loc"),
        val_classes=whole("val_classes") if "val_classes" in arrays else None,
    )
    if name != OWN:
        _require_known(ATTRIBUTE_SETS[name], found, files.features)
    return found


def _read_npz(path: Path) -> dict[str, Array]:
    """Features (N, D), labels (N,), `att` (K, A) and rows, all counted from 0, from one file.

    The rows are `trainval_loc`, `test_seen_loc` and `test_unseen_loc`; `class_names` (K,) and
    `val_classes` are optional.
    """
    optional = ("class_names", "val_classes")
    return read_arrays(path, "a file of features and attributes", _NPZ, optional)


def _read_mat(features: Path, splits: Path) -> dict[str, Array]:
    """The same arrays from the benchmark's two files: samples are columns, and count from 1.

    The first file has `features` (D, N) and `labels` (N, 1), the second `att` (A, K),
    `allclasses_names` and the rows. Validation classes are those of `val_loc`, if `train_loc` has
    none of them. Only the classes are used: in the published files these two lists also name test
    rows of the seen classes.
    """
    vectors, attributes = _mat(features, ("features", "labels")), _mat(splits, ("att", *_ROWS))
    keys = [key for key in (*_ROWS, "train_loc", "val_loc") if key in attributes]
    arrays = {key: attributes[key].astype(np.int64).ravel() - 1 for key in keys}
    labels = vectors["labels"].astype(np.int64).ravel() - 1
    arrays |= {"features": vectors["features"].T, "labels": labels, "att": attributes["att"].T}
    if "allclasses_names" in attributes:
        # A name is in a cell, which is read as an array.
        cells = attributes["allclasses_names"].ravel()
        arrays["class_names"] = np.array([np.asarray(cell).item() for cell in cells])
    if "val_loc" in arrays and "train_loc" in arrays:
        chosen, others = (np.unique(labels[arrays[key]]) for key in ("val_loc", "train_loc"))
        if len(chosen) and not np.isin(chosen, others).any():
            arrays["val_classes"] = chosen
    return arrays


def _mat(path: Path, keys: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of a MATLAB file before version 7.3."""
    with extra("lab"):
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    try:
        arrays: dict[str, Array] = loadmat(str(path))
        require_keys(keys, [key for key in arrays if not key.startswith("__")])
    except NotImplementedError as error:
        raise ValueError(
            f"{path} is a MATLAB file of version 7.3 (HDF5), which cannot be read. Save it again "
            "in MATLAB with save(..., '-v7'), or give the arrays as an .npz with --data.root."
        ) from error
    except (ValueError, LookupError, TypeError, EOFError, OSError, MatReadError) as error:
        raise ValueError(f"{path} is damaged or not one of the benchmark's: {error}") from error
    return arrays


def _require_known(known: AttributeSet, found: AttributeFeatures, path: Path) -> None:
    """Refuse a set with other numbers of seen and unseen classes."""
    got = len(found.seen), len(found.unseen)
    if got != (known.seen, known.unseen):
        raise ValueError(
            f"{path} is not {known.title} as it is used: it has {got[0]} seen and {got[1]} unseen "
            f"classes instead of {known.seen} and {known.unseen}. Take the set from "
            f"{known.source}; features of your own are {OWN}"
        )


def _integers(array: Array, what: str) -> Tensor:
    """Whole numbers in one axis, which may be stored as floating point."""
    if array.dtype.kind not in "iuf" or not (array == array.round()).all():
        raise ValueError(f"{what} must be whole numbers, counted from 0, got {array.dtype}")
    return torch.from_numpy(array.ravel().astype(np.int64))
