"""Images in memory, hashes of data, and long-tailed profiles."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchformer.lab.data.files.image_files import ImageFiles, require_one_label_each


def content_hash(*parts: Tensor | str) -> str:
    """SHA-256 over tensors, each with its type and shape, and over texts, in order.

    Two data sets with the same hash give the same training.

    >>> content_hash("a", "b") == content_hash("ab")
    False
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            content = part.encode()
            total.update(f"text {len(content)}\n".encode())
            total.update(content)
        else:
            total.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            total.update(part.detach().cpu().contiguous().numpy())  # type: ignore[arg-type]
    return total.hexdigest()


def require_labels(what: str, labels: Tensor | npt.NDArray[Any], classes: int) -> None:
    """Refuse labels (N,) outside 0..classes - 1; `what`, as in "labels run", begins the error."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(
            f"{what} from {int(labels.min())} to {int(labels.max())}, but the {classes} "
            f"classes are 0..{classes - 1}"
        )


def require_keys(wanted: Sequence[str], there: Sequence[str]) -> None:
    """Refuse a file that lacks some of the arrays wanted."""
    missing = [key for key in wanted if key not in there]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}; it holds {', '.join(there)}")


def read_arrays(
    path: Path, what: str, wanted: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz`, without pickles; errors say that the file is not `what`."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            require_keys(wanted, file.files)
            arrays = {key: file[key] for key in (*wanted, *optional) if key in file}
            if single := [key for key, array in arrays.items() if not array.ndim]:
                raise ValueError(f"{', '.join(single)} is a single value and no array")
            return arrays
    except (ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not {what}: {error}") from error


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images and labels of one part of a data set."""

    x: Tensor  # (N, C, H, W) uint8 images
    labels: Tensor  # (N,) int64 labels

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.x.dtype != torch.uint8:
            raise ValueError(
                f"x must be uint8 of shape (N, C, H, W), got {self.x.dtype} of shape "
                f"{tuple(self.x.shape)}"
            )
        require_one_label_each(self.labels, len(self.x), "images")

    @classmethod
    def from_channels_last(
        cls, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]
    ) -> ImageSplit:
        """From arrays (N, H, W, C) and (N,), the layout of decoded images."""
        x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        return cls(x, torch.from_numpy(labels.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: Tensor) -> ImageSplit:
        """The images at these positions (n,), in this order."""
        rows = rows.to(self.x.device)
        return ImageSplit(self.x[rows], self.labels[rows])

    def relabelled(self, labels: Tensor, classes: tuple[str, ...]) -> ImageSplit:
        """The same images with other labels (N,)."""
        return ImageSplit(self.x, labels)

    @classmethod
    def concatenated(cls, parts: Sequence[ImageSplit]) -> ImageSplit:
        """The images of several parts."""
        return cls(torch.cat([p.x for p in parts]), torch.cat([p.labels for p in parts]))

    def require_fits(self, what: str, classes: tuple[str, ...], other: ImageSplit) -> None:
        """Refuse images of another shape or other classes; the error begins with `what`."""
        shape, wanted = (tuple(part.x.shape[1:]) for part in (self, other))
        if shape != wanted:
            raise ValueError(f"{what}: images are {shape} (C, H, W), in the first part {wanted}")
        require_labels(f"{what}: labels run", self.labels, len(classes))

    @property
    def content(self) -> Tensor:
        """What stands for the images in a hash: their pixels."""
        return self.x

    @cached_property
    def sha256(self) -> str:
        """Hash of the images and their labels, in order."""
        return content_hash(self.x, self.labels)

    def to(self, device: torch.device | str) -> ImageSplit:
        """The same images on a device."""
        return ImageSplit(self.x.to(device), self.labels.to(device))


#: Images of a part of a data set, in files or in memory.
Part = TypeVar("Part", ImageFiles, ImageSplit)


@dataclass(frozen=True, eq=False)
class LongTailedData(Generic[Part]):
    """A long-tailed training part and a test part."""

    train: Part
    test: Part
    classes: tuple[str, ...]  # K class names in label order
    name: str
    val: Part | None = None  # a third part, for what is learned besides the network
    part_of: str = ""  # hash of the whole training part, if this has only some of its classes

    def __post_init__(self) -> None:
        for name, part in (("training", self.train), ("test", self.test), ("third", self.val)):
            if part is not None:
                part.require_fits(f"{self.name}, {name} part", self.classes, self.train)

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the class names, and of the training and the test part."""
        return content_hash("\n".join(self.classes), self.train.sha256, self.test.sha256)

    @property
    def train_counts(self) -> Tensor:
        """(K,) int64 number of training images of each class."""
        return torch.bincount(self.train.labels, minlength=len(self.classes))


def classes_of_size(counts: Tensor, least: int, most: int) -> Tensor:
    """(n,) classes with `least` to `most` training images, of counts (K,); most 0: no bound.

    >>> classes_of_size(torch.tensor([500, 100, 20, 5]), 20, 100)
    tensor([1, 2])
    """
    chosen = counts >= max(least, 1)
    if most:
        chosen &= counts <= most
    if not chosen.any():
        bounds = f"{least} to {most}" if most else f"{least} or more"
        raise ValueError(
            f"no class has {bounds} training images: they have {int(counts.min())} to "
            f"{int(counts.max())}. Set other --data.min-images and --data.max-images"
        )
    return chosen.nonzero()[:, 0]


Data = TypeVar("Data", bound=LongTailedData[Any])


def only_classes(data: Data, least: int, most: int) -> Data:
    """Keep classes with `least` to `most` training images, renumbered in order; 0 and 0: all."""
    if not (least or most):
        return data
    kept = classes_of_size(data.train_counts, least, most)
    names = tuple(data.classes[c] for c in kept.tolist())

    def renumbered(part: Any) -> Any:
        own = part.subset(torch.isin(part.labels, kept).nonzero()[:, 0])
        return own.relabelled(torch.searchsorted(kept, own.labels), names)

    return dataclasses.replace(
        data,
        train=renumbered(data.train),
        test=renumbered(data.test),
        classes=names,
        name=f"{data.name}_of_{least}_to_{most or 'all'}",
        val=None if data.val is None else renumbered(data.val),
        part_of=data.train.sha256,
    )


# Long-tailed profiles: how many images each class keeps, and which ones.

Indices = npt.NDArray[np.int64]
Profile = Literal["exponential", "step"]


def exact_floor(value: float) -> int:
    """Round down, but a whole number that rounding errors made smaller stays that number.

    >>> math.floor(0.29 * 100), exact_floor(0.29 * 100)
    (28, 29)
    """
    return math.floor(value + 1e-9)


def class_counts(
    n_max: int, num_classes: int, ratio: float, profile: Profile = "exponential"
) -> list[int]:
    """Number of images of each class, in label order, largest class first.

    `exponential`: class c keeps `int(n_max * (1 / ratio) ** (c / (K - 1)))` images. `step`: the
    first half of the classes (rounded down) keeps `n_max`, the others `int(n_max / ratio)`.

    >>> class_counts(5000, 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    >>> class_counts(500, 4, 100, "step")
    [500, 500, 5, 5]
    """
    if ratio < 1:
        raise ValueError(
            f"ratio is the largest class over the smallest, so at least 1, got {ratio}; give "
            "ratio 100 for an imbalance factor of 0.01"
        )
    if profile == "exponential":
        last = max(num_classes - 1, 1)
        sizes = [n_max * (1 / ratio) ** (c / last) for c in range(num_classes)]
    elif profile == "step":
        head = num_classes // 2
        sizes = [float(n_max)] * head + [n_max / ratio] * (num_classes - head)
    else:
        raise ValueError(f"unknown profile {profile!r}; choose 'exponential' or 'step'")
    counts = [exact_floor(size) for size in sizes]
    if 0 in counts:
        raise ValueError(
            f"ratio {ratio:g} leaves class {counts.index(0)} without an image; "
            f"with {n_max} images in the largest class the ratio can be at most {n_max}"
        )
    return counts


def draw(labels: npt.ArrayLike, counts: Sequence[int], seed: int = 0) -> Indices:
    """Positions of the images that form the long tail, class after class.

    Seed 0 on the official file order gives the list that most published code uses: with one legacy
    NumPy generator, the positions of each class, in label order, are shuffled and the first
    `counts[c]` are kept. Labels are (N,), in the order of the data set; counts are (K,).
    """
    y = np.asarray(labels)
    # The published lists come from this legacy generator; a Generator would give other images.
    stream = np.random.RandomState(seed)
    kept = []
    for c, wanted in enumerate(counts):
        positions = np.flatnonzero(y == c).astype(np.int64)
        if wanted > len(positions):
            raise ValueError(
                f"class {c}: {wanted} images wanted, {len(positions)} present; "
                "lower the largest class or raise the ratio"
            )
        stream.shuffle(positions)
        kept.append(positions[:wanted])
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)


def long_tail_list(
    labels: npt.ArrayLike, ratio: float, profile: Profile = "exponential", seed: int = 0
) -> tuple[Indices, str]:
    """The long tail of a balanced data set: which images to keep, and the hash of that list.

    With the official training labels (N,) of CIFAR-10 or CIFAR-100, in their order, this is the
    list that most published code uses (seed 0). The ratio is images of the largest class over those
    of the smallest, usually 10, 50, 100 or 200. Publish the hash with your numbers: two lists with
    the same hash are the same list.

    >>> kept, digest = long_tail_list([0, 1, 2] * 50, ratio=10)
    >>> len(kept), digest[:8]
    (70, '319ad729')
    """
    y = np.asarray(labels)
    present = np.bincount(y)
    if len(set(present.tolist())) != 1:
        raise ValueError(
            f"labels: the classes have {present.min()} to {present.max()} images, and the list is "
            "drawn from a balanced set; give the labels of the whole training part"
        )
    kept = draw(y, class_counts(int(present[0]), len(present), ratio, profile), seed)
    return kept, split_hash(kept)


def split_hash(indices: npt.ArrayLike) -> str:
    """SHA-256 of a list of positions, over its little-endian int64 bytes.

    >>> split_hash([0, 1, 2])[:16]
    'ab25350e3e65efeb'
    """
    return hashlib.sha256(np.asarray(indices, dtype="<i8").tobytes()).hexdigest()
