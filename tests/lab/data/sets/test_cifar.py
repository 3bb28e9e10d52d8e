"""CIFAR-LT from official files and from an npz."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from batchformer.cli import questions
from batchformer.lab.data.sets import cifar
from batchformer.lab.data.sets.cifar import cifar_lt, read_long_tail
from batchformer.lab.data.sets.image_layouts import CIFAR_SETS
from batchformer.lab.data.sets.images import (
    LongTailedData,
    class_counts,
    draw,
    long_tail_list,
    split_hash,
)

PER_CLASS = 6


def _pickle(path: Path, content: dict[str, object]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def _batch(n: int, num_classes: int, key: str, seed: int) -> dict[str, object]:
    labels = np.random.RandomState(seed).permutation(np.arange(n) % num_classes)
    pixels = np.random.RandomState(seed + 1).randint(0, 256, (n, 3072), dtype=np.uint8)
    return {"data": pixels, key: labels.tolist()}


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a small release in the official layout, with torchvision told its checksums."""

    def write(name: str) -> Path:
        layout, reader = CIFAR_SETS[name], {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
        folder, classes = tmp_path / layout.folder, layout.num_classes
        kind = "label" if name == "cifar10" else "fine_label"
        *parts, names = layout.files
        each = PER_CLASS * classes
        sums = [
            [file, _pickle(folder / file, _batch(each, classes, f"{kind}s", number))]
            for number, file in enumerate(parts)
        ]
        meta = _pickle(folder / names, {f"{kind}_names": [f"c{i}" for i in range(classes)]})
        monkeypatch.setattr(reader, "train_list", sums[:-1])
        monkeypatch.setattr(reader, "test_list", sums[-1:])
        monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": meta})
        return tmp_path

    return write


def _check_official(data: LongTailedData, source: CIFAR10 | CIFAR100, counts: list[int]) -> None:
    kept = draw(source.targets, counts)
    assert data.train_counts.tolist() == counts
    assert np.array_equal(data.train.x.numpy().transpose(0, 2, 3, 1), source.data[kept])
    assert data.train.labels.tolist() == [source.targets[i] for i in kept]
    assert data.classes == tuple(source.classes)


def test_official_cifar100(official: Callable[[str], Path]) -> None:
    root = official("cifar100")
    data = cifar_lt("cifar100", ratio=3, root=root)
    _check_official(data, CIFAR100(str(root)), class_counts(PER_CLASS, 100, 3))
    assert data.test.x.shape == (100 * PER_CLASS, 3, 32, 32)
    assert data.name == "cifar100_lt_exponential_3"
    inside = root / "cifar-100-python"
    other = cifar_lt(ratio=3, root=inside, seed=1)
    assert data.train_counts.tolist() == other.train_counts.tolist()
    assert data.split_sha256 != other.split_sha256


def test_official_cifar10_with_steps(official: Callable[[str], Path]) -> None:
    root = official("cifar10")
    data = cifar_lt("cifar10", ratio=5, profile="step", root=root)
    _check_official(data, CIFAR10(str(root)), [5 * PER_CLASS] * 5 + [PER_CLASS] * 5)


@pytest.mark.parametrize("file", ["train", "meta"])
def test_file_with_another_checksum_is_never_unpickled(
    official: Callable[[str], Path], file: str
) -> None:
    root = official("cifar100")

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return (Path.touch, (root / "exploded",))

    damaged = root / "cifar-100-python" / file
    damaged.write_bytes(pickle.dumps({"data": Bomb()}))
    with pytest.raises(RuntimeError, match=f"cifar-100-python .*release: {file} fail the MD5"):
        cifar_lt(ratio=3, root=root)
    assert not (root / "exploded").exists()
    with damaged.open("rb") as stream:
        pickle.load(stream)
    assert (root / "exploded").exists(), "the bomb of this test is live"


def test_absent_data_says_where_what_and_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = "cifar-10-batches-py/ with .*test_batch, .*cifar10_lt.npz"
    words = rf"{tmp_path}, .*no network.*\n.*{files}.*\n.*cifar-10-python\.tar\.gz"
    monkeypatch.setattr(cifar, "_download", Mock(side_effect=OSError("no network")))
    with pytest.raises(FileNotFoundError, match=words):
        cifar_lt("cifar10", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"other\.npz, and the file does not exist"):
        cifar_lt(root=tmp_path / "other.npz")


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


def test_the_tail_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _read(_save(tmp_path / "cifar100_lt.npz"))
    arrays = _arrays()
    assert np.array_equal(data.train.x.numpy().transpose(0, 2, 3, 1), arrays["x_train"])
    assert data.train.labels.tolist() == arrays["y_train"].tolist()
    assert data.test.labels.tolist() == arrays["y_test"].tolist()
    assert data.classes == tuple(f"class {c}" for c in range(K))
    assert data.name == "toy"
    layout = dataclasses.replace(CIFAR_SETS["cifar100"], num_classes=K)
    monkeypatch.setitem(CIFAR_SETS, "cifar100", layout)
    for root in (tmp_path / "cifar100_lt.npz", tmp_path):
        found = cifar_lt(ratio=RATIO, root=root)
        assert found.split_sha256 == data.split_sha256


def test_steeper_tail_keeps_the_first_ranks(tmp_path: Path) -> None:
    """Also when the images of the file are not in class order."""
    arrays = _arrays()
    shuffle = np.random.RandomState(0).permutation(len(arrays["y_train"]))
    train = {key: arrays[key][shuffle] for key in ("x_train", "y_train", "rank_in_class")}
    data = _read(_save(tmp_path / "toy.npz", **train), ratio=40)
    counts = class_counts(N_MAX, K, 40)
    assert data.train_counts.tolist() == counts
    for c, n in enumerate(counts):
        images = data.train.x[data.train.labels == c]
        assert sorted(images[:, 0, 0, 0].tolist()) == list(range(n))
        assert (images[:, 1, 0, 0] == c).all()


@pytest.mark.parametrize(("ratio", "profile"), [(5, "exponential"), (10, "step")])
def test_flatter_tail_is_refused(tmp_path: Path, ratio: float, profile: str) -> None:
    path = _save(tmp_path / "toy.npz")
    message = r"toy\.npz is a long tail of ratio 10, too steep .* \d+ wanted and 25 present"
    with pytest.raises(ValueError, match=message):
        _read(path, ratio, profile)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": np.array(["a", "b"])}, "has 2 classes instead of 6"),
        ({"classes": np.array(["a"] * 6, dtype=object)}, "allow_pickle=False"),
        ({"x_test": np.zeros((12, 8, 8, 3))}, r"x_test must be uint8 .* got float64"),
        ({"x_test": np.zeros((0, 8, 8, 3), np.uint8)}, "has no images for y_test"),
        ({"y_test": np.zeros(11, int)}, r"y_test must be whole numbers of shape \(12,\)"),
        ({"y_test": np.zeros((12, 1), int)}, r"y_test must be whole numbers of shape \(12,\)"),
        ({"y_test": np.zeros(12)}, r"y_test must be whole numbers of shape \(12,\)"),
        ({"y_test": np.full(12, -1)}, "y_test runs from -1 to -1"),
        ({"y_test": np.full(12, 6)}, "y_test runs from 6 to 6, but the 6 classes are 0..5"),
        ({"rank_in_class": np.zeros(3)}, r"rank_in_class is of shape \(3,\)"),
        ({"rank_in_class": _arrays()["rank_in_class"] + 1}, "must number the images of each class"),
    ],
)
def test_wrong_arrays(tmp_path: Path, changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=rf"toy\.npz.*{message}"):
        _read(_save(tmp_path / "toy.npz", **changed))


def test_damaged_files_missing_arrays_and_other_seeds(tmp_path: Path) -> None:
    path = _save(tmp_path / "toy.npz")
    with pytest.raises(ValueError, match="one fixed draw, so seed 3"):
        _read(path, seed=3)
    np.savez_compressed(path, **_arrays())
    content = path.read_bytes()
    for damaged in (content[:200], content[:100] + bytes(40) + content[140:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"toy\.npz is not a long-tailed image set"):
            _read(path)
    arrays = _arrays()
    del arrays["rank_in_class"]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"toy\.npz .*lacks rank_in_class; it holds x_train"):
        _read(path)


def test_the_list_of_a_long_tail_is_that_of_the_training_images(
    official: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = official("cifar10")
    file = root / "list.csv"
    options = ["--name", "cifar10", "--ratio", "2", "--root", str(root), "--to", str(file)]
    questions.data(["long-tail", *options])
    rows = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int64)
    data = cifar_lt("cifar10", ratio=2, root=root)
    assert rows[:, 1].tolist() == data.train.labels.tolist()
    assert split_hash(rows[:, 0]) in capsys.readouterr().out


def test_a_list_needs_the_whole_balanced_part() -> None:
    with pytest.raises(ValueError, match=r"2 to 3 images, .* give the labels of the whole"):
        long_tail_list([0, 0, 1, 1, 1], ratio=2)
