"""CIFAR-10-LT and CIFAR-100-LT, from the official files or from one `.npz` file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from batchformer.insight.optional import extra
from batchformer.lab.data.files.location import looked_in
from batchformer.lab.data.files.lock import locked
from batchformer.lab.data.sets.image_layouts import (
    CIFAR_SETS,
    CifarLayout,
    cifar_not_found,
    find_cifar,
)
from batchformer.lab.data.sets.images import (
    ImageSplit,
    LongTailedData,
    Profile,
    class_counts,
    long_tail_list,
    read_arrays,
    require_labels,
)

_ARRAYS = ("x_train", "y_train", "rank_in_class", "x_test", "y_test", "classes")


def cifar_lt(
    name: str = "cifar100",
    ratio: float = 100.0,
    profile: Profile = "exponential",
    root: Path | None = None,
    seed: int = 0,
) -> LongTailedData[ImageSplit]:
    """CIFAR with a long-tailed training part and the complete balanced test part.

    The source is the first of: `root` as an `.npz` file; the official files in the folder `root`;
    `<name>_lt.npz` in that folder; a download of the official files into it. `ratio` is images of
    the largest class over those of the smallest. Seed 0 of the draw gives the widely used list.
    """
    layout = CIFAR_SETS[name]
    root = looked_in(root)
    source = find_cifar(name, root)
    title = f"{name}_lt_{profile}_{ratio:g}"
    if source is not None and source.suffix == ".npz":
        return read_long_tail(source, layout.num_classes, ratio, profile, seed, title)
    folder = _download_or_raise(name, root) if source is None else source.parent
    train = _read_official(folder, layout, train=True)
    test = _read_official(folder, layout, train=False)
    labels = np.asarray(train.targets, dtype=np.int64)
    kept, _ = long_tail_list(labels, ratio, profile, seed)
    return LongTailedData(
        train=ImageSplit.from_channels_last(train.data[kept], labels[kept]),
        test=ImageSplit.from_channels_last(test.data, np.asarray(test.targets)),
        classes=tuple(train.classes),
        name=title,
    )


def official_labels(name: str, root: Path | None = None) -> npt.NDArray[np.int64]:
    """(N,) labels of the official training files, in their order."""
    source = find_cifar(name, root := looked_in(root))
    if source is None or source.suffix == ".npz":
        raise FileNotFoundError(
            f"the official files of {name} are not in {root}; give --root the folder that holds "
            f"{CIFAR_SETS[name].folder}/"
        )
    train = _read_official(source.parent, CIFAR_SETS[name], train=True)
    return np.asarray(train.targets, dtype=np.int64)


def _read_official(folder: Path, layout: CifarLayout, train: bool) -> Any:
    """torchvision's reader of one part.

    The official files are pickles. torchvision checks the published MD5 of every file before it
    unpickles the first (in the constructor for the batches, in `_load_meta` for the names), so
    only files of the release are unpickled.
    """
    reader = getattr(_torchvision_datasets(), layout.reader)
    try:
        return reader(str(folder), train=train, download=False)
    except RuntimeError as error:
        raise RuntimeError(
            f"the files in {folder / layout.folder} are not those of the official release: "
            f"{', '.join(_damaged(folder, reader))} fail the MD5 check and were not opened. "
            "Delete that folder and run again to download it, or copy it from a good source"
        ) from error


def _damaged(folder: Path, reader: Any) -> list[str]:
    from torchvision.datasets.utils import check_integrity

    expected = [*reader.train_list, *reader.test_list]
    expected.append([reader.meta["filename"], reader.meta["md5"]])
    base = folder / reader.base_folder
    return [file for file, md5 in expected if not check_integrity(str(base / file), md5)]


def _download_or_raise(name: str, root: Path) -> Path:
    """Download into `root` and return it; raises FileNotFoundError if that is not possible."""
    layout = CIFAR_SETS[name]
    if root.suffix == ".npz":
        raise cifar_not_found(name, root, "the file does not exist")
    reader = getattr(_torchvision_datasets(), layout.reader)
    lock = root / f".{layout.folder}.lock"
    waiting = f"{layout.reader}: waiting for another process that downloads it into {root}."
    try:
        with locked(lock, waiting=waiting) as taken:
            if find_cifar(name, root) != root / layout.folder:
                _download(reader, layout, root, taken)
        return root
    except (OSError, RuntimeError) as error:
        raise cifar_not_found(name, root, f"the download failed ({error})") from error


def _download(reader: Any, layout: CifarLayout, root: Path, has_lock: bool) -> None:
    """Download and check the files in a temporary folder, then move them to the set's folder.

    A process with the lock first removes partial downloads that other processes have left.
    """
    from torchvision.datasets.utils import check_integrity

    start, end = f".{layout.folder}.", ".partial"
    if has_lock:
        for left in root.glob(f"{start}*{end}"):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(end, start, root) as beside:
        partial, archive = Path(beside), root / layout.archive
        if check_integrity(str(archive), reader.tgz_md5):
            (partial / layout.archive).symlink_to(archive.absolute())
        reader(str(partial), train=True, download=True)
        whole = root / layout.folder
        whole.mkdir(exist_ok=True)
        # Missing files are moved last: until then the folder does not look complete.
        files = (partial / layout.folder).iterdir()
        for file in sorted(files, key=lambda file: not (whole / file.name).exists()):
            file.replace(whole / file.name)


def _torchvision_datasets() -> Any:
    with extra("lab"):
        from torchvision import datasets
    return datasets


def read_long_tail(
    path: Path, num_classes: int, ratio: float, profile: Profile, seed: int, name: str
) -> LongTailedData[ImageSplit]:
    """The long tail in an `.npz` file, or a steeper one inside it.

    Its arrays: `x_train`, `x_test` (N, H, W, C) uint8; `y_train`, `y_test` (N,) labels;
    `rank_in_class` (N,) position of a training image inside its class; `classes` (K,) names. The
    training images are one long tail already drawn, so the seed must be 0; the ranks give every
    steeper tail inside it.
    """
    if seed != 0:
        raise ValueError(
            f"{path} holds one fixed draw, so seed {seed} is not possible; use seed 0 or the "
            "official files"
        )
    arrays = _read(path, num_classes)
    labels = arrays["y_train"].astype(np.int64)
    present = np.bincount(labels, minlength=num_classes)
    counts = class_counts(int(present.max()), num_classes, ratio, profile)
    short = [c for c, wanted in enumerate(counts) if wanted > present[c]]
    if short:
        c = short[0]
        raise ValueError(
            f"{path} is a long tail of ratio {present.max() / max(present.min(), 1):g}, too steep "
            f"for ratio {ratio:g} ({profile}): {len(short)} classes have too few images, first "
            f"{arrays['classes'][c]} (class {c}) with {counts[c]} wanted and {present[c]} present. "
            "Ask for a steeper tail, or use the official files"
        )
    kept = np.flatnonzero(arrays["rank_in_class"] < np.asarray(counts)[labels])
    if np.bincount(labels[kept], minlength=num_classes).tolist() != list(counts):
        raise ValueError(f"{path}: rank_in_class must number the images of each class 0, 1, 2, ...")
    return LongTailedData(
        train=ImageSplit.from_channels_last(arrays["x_train"][kept], labels[kept]),
        test=ImageSplit.from_channels_last(arrays["x_test"], arrays["y_test"]),
        classes=tuple(str(c) for c in arrays["classes"]),
        name=name,
    )


def _read(path: Path, num_classes: int) -> dict[str, npt.NDArray[Any]]:
    arrays = read_arrays(path, "a long-tailed image set", _ARRAYS)
    if len(arrays["classes"]) != num_classes:
        raise ValueError(
            f"{path} has {len(arrays['classes'])} classes instead of {num_classes}; name "
            "another file"
        )
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim != 4 or x.dtype != np.uint8:
            raise ValueError(
                f"{path}: x_{part} must be uint8 of shape (N, H, W, C), got {x.dtype} of shape "
                f"{x.shape}"
            )
        if not len(x):
            raise ValueError(f"{path} has no images for y_{part}")
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            raise ValueError(
                f"{path}: y_{part} must be whole numbers of shape ({len(x)},), one for each image, "
                f"got {y.dtype} of shape {y.shape}"
            )
        require_labels(f"{path}: y_{part} runs", y, num_classes)
    ranks = arrays["rank_in_class"].shape
    if ranks != arrays["y_train"].shape:
        raise ValueError(
            f"{path}: rank_in_class is of shape {ranks}, but must hold a rank for each image"
        )
    return arrays
