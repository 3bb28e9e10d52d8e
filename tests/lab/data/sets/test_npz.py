from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchformer.lab.data.sets.cifar import read_long_tail
from batchformer.lab.data.sets.images import class_counts

K, N_MAX, RATIO = 6, 40, 10


def _arrays() -> dict[str, np.ndarray]:
    """A ratio-10 tail in class order; the first pixel of an image holds its rank and class."""
    counts = class_counts(N_MAX, K, RATIO)
    y = np.repeat(np.arange(K, dtype=np.uint8), counts)
    rank = np.concatenate([np.arange(n, dtype=np.uint16) for n in counts])
    x = np.zeros((len(y), 8, 8, 3), dtype=np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = rank, y
    return {
        "x_train": x,
        "y_train": y,
        "rank_in_class": rank,
        "x_test": np.full((2 * K, 8, 8, 3), 9, dtype=np.uint8),
        "y_test": np.tile(np.arange(K, dtype=np.uint8), 2),
        "classes": np.array([f"class {c}" for c in range(K)]),
    }


def _save(path: Path, **changed: np.ndarray) -> Path:
    np.savez(path, **{**_arrays(), **changed})
    return path


def _read(path: Path, ratio: float = RATIO, profile: str = "exponential", seed: int = 0):  # type: ignore[no-untyped-def]
    return read_long_tail(path, K, ratio, profile, seed, "toy")  # type: ignore[arg-type]


def test_the_tail_of_the_file(tmp_path: Path) -> None:
    data = _read(_save(tmp_path / "toy.npz"))
    arrays = _arrays()
    assert np.array_equal(data.train.x.numpy().transpose(0, 2, 3, 1), arrays["x_train"])
    assert data.train.y.tolist() == arrays["y_train"].tolist()
    assert data.test.y.tolist() == arrays["y_test"].tolist()
    assert data.classes == tuple(f"class {c}" for c in range(K))
    assert data.name == "toy"


@pytest.mark.parametrize("array", ["x_train", "x_test"])
def test_files_with_other_images_have_other_hashes(tmp_path: Path, array: str) -> None:
    images = _arrays()[array]
    images[1, 0, 0, 2] += 1
    data = _read(_save(tmp_path / "toy.npz"))
    other = _read(_save(tmp_path / "other.npz", **{array: images}))
    assert data.train_counts.tolist() == other.train_counts.tolist()
    assert data.split_sha256 != other.split_sha256
    assert data.split_sha256 == _read(_save(tmp_path / "copy.npz")).split_sha256


def test_steeper_tail_keeps_the_first_ranks(tmp_path: Path) -> None:
    """Also when the images of the file are not in class order."""
    arrays = _arrays()
    shuffle = np.random.RandomState(0).permutation(len(arrays["y_train"]))
    train = {key: arrays[key][shuffle] for key in ("x_train", "y_train", "rank_in_class")}
    data = _read(_save(tmp_path / "toy.npz", **train), ratio=40)
    counts = class_counts(N_MAX, K, 40)
    assert data.train_counts.tolist() == counts
    for c, n in enumerate(counts):
        images = data.train.x[data.train.y == c]
        assert sorted(images[:, 0, 0, 0].tolist()) == list(range(n))
        assert (images[:, 1, 0, 0] == c).all()


@pytest.mark.parametrize(("ratio", "profile"), [(5, "exponential"), (10, "step")])
def test_flatter_tail_is_refused(tmp_path: Path, ratio: float, profile: str) -> None:
    path = _save(tmp_path / "toy.npz")
    message = r"toy\.npz is a long tail of ratio 10, too steep .* \d+ wanted and 25 present"
    with pytest.raises(ValueError, match=message):
        _read(path, ratio, profile)


def test_other_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one fixed draw, so seed 3"):
        _read(_save(tmp_path / "toy.npz"), seed=3)


def test_missing_array_is_named(tmp_path: Path) -> None:
    arrays = _arrays()
    del arrays["rank_in_class"]
    np.savez(tmp_path / "toy.npz", **arrays)
    with pytest.raises(ValueError, match=r"toy\.npz .*lacks rank_in_class; it holds x_train"):
        _read(tmp_path / "toy.npz")


def test_pickled_array_is_not_loaded(tmp_path: Path) -> None:
    path = _save(tmp_path / "toy.npz", classes=np.array(["a"] * K, dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        _read(path)


def test_damaged_file_is_named(tmp_path: Path) -> None:
    path = _save(tmp_path / "toy.npz")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"toy\.npz is not a long-tailed image set"):
        _read(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": np.zeros((5, 8, 8, 3))}, "x_train must be uint8 .* got float64"),
        ({"classes": np.array(["a", "b"])}, "has 2 classes instead of 6"),
    ],
)
def test_wrong_arrays(tmp_path: Path, changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _read(_save(tmp_path / "toy.npz", **changed))
