"""Damaged or mislabelled data and NaN, through the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.log import read_records
from helpers.data_files import save_noise, save_tail

Refused = Callable[..., str]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes of a few images each."""
    root, draw = tmp_path / "images", np.random.default_rng(0)
    for name, size in (("ant", 8), ("bee", 5), ("cow", 4)):
        for part, count in (("train", size), ("test", 2)):
            for i in range(count):
                save_noise(root / part / name / f"{i}.png", draw, 36, 40)
    return root


def on_images(root: Path, *more: object) -> list[str]:
    options = ("--data.size", 32, "--model", "test_resnet", "--train.batch-size", 4)
    length = ("--train.updates", 8, "--train.eval-every", 1, "--train.log-every", 1)
    own = ("--data.root", root, "--device", "cpu", "--quiet", "--runs", root.parent / "runs")
    command = ("train", "my_folder", *own, *options, *length, "--train.workers", 0, *more)
    return [str(part) for part in command]


def damage(path: Path) -> bytes:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return content


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_named_and_what_was_trained_is_kept(
    images: Path, refused: Refused, workers: int
) -> None:
    path = images / "train" / "ant" / "3.png"
    whole = damage(path)
    command = on_images(images, "--train.workers", workers)
    said = refused(*command)
    assert said.startswith(f"batchformer: {path} cannot be decoded") and said.count("\n") == 1
    assert "Replace the file" in said and "--train.damaged skip" in said
    folder = images.parent / "runs/my_folder/batchformer/seed0"
    kept = checkpoint.load_newest(folder / "checkpoints")
    assert kept is not None and 0 < kept["counters"]["update"] < 8
    path.write_bytes(whole)
    cli.main(command)
    steps = [r["step"] for r in read_records(folder / "metrics.jsonl") if r["kind"] == "train"]
    assert steps == list(range(1, 9)) and (folder / "result.json").exists()


def test_a_run_skips_corrupt_training_images_if_asked_and_no_others(
    images: Path, refused: Refused
) -> None:
    damage(images / "train" / "ant" / "3.png")
    command = on_images(images, "--train.damaged", "skip")
    with pytest.warns(RuntimeWarning, match="takes its place") as told:
        cli.main(command)
    warning = str(told[0].message)
    assert "ant/3.png cannot be decoded" in warning and "--train.damaged" not in warning
    shutil.rmtree(images.parent / "runs")
    damage(images / "test" / "bee" / "1.png")
    said = refused(*command)
    assert str(images / "test" / "bee" / "1.png") in said


def test_a_list_with_an_impossible_label_is_named(images: Path, refused: Refused) -> None:
    (images / "train.txt").write_text("train/ant/0.png 0\ntrain/bee/0.png 1\n")
    (images / "test.txt").write_text("test/ant/0.png 0\ntest/bee/0.png 7\n")
    lists = [f"--data.{part}-list={images / part}.txt" for part in ("train", "test")]
    assert "test.txt, line 2: the label 7 is outside" in refused(*on_images(images, *lists))


def test_a_file_in_place_of_the_images(images: Path, refused: Refused) -> None:
    file = images.parent / "file"
    file.write_text("mine")
    assert f"{file}" in refused(*on_images(file)) and file.read_text() == "mine"


def test_batches_of_no_sample(images: Path, refused: Refused) -> None:
    said = refused(*on_images(images, "--train.batch-size", -1), code=2)
    assert "train.batch-size is -1, below 0" in " ".join(said.split())
    assert "of each domain" in refused(*on_images(images, "--train.batch-size", 0))
    said = refused(*on_images(images, "--train.batch-size", 100))
    assert "17 images make no full batch of 100" in said and "train.batch-size" in said


def test_features_that_are_no_numbers(tmp_path: Path, refused: Refused) -> None:
    draw, labels, row = np.random.default_rng(0), np.arange(60) % 6, np.arange(60)
    features = draw.normal(size=(60, 8)).astype(np.float32)
    features[3, 2] = np.nan
    np.savez(
        tmp_path / "f.npz",
        features=features,
        labels=labels,
        att=draw.normal(size=(6, 5)).astype(np.float32),
        trainval_loc=np.flatnonzero((labels < 4) & (row < 48)),
        test_seen_loc=np.flatnonzero((labels < 4) & (row >= 48)),
        test_unseen_loc=np.flatnonzero(labels >= 4),
        val_classes=np.array([3]),
    )
    own = ("--data.name", "npz", "--data.root", tmp_path / "f.npz", "--runs", tmp_path / "r")
    said = refused("train", "my_features_ce_gzsl", *own, "--device", "cpu")
    assert "features are not all finite numbers" in said
    assert not list(tmp_path.rglob("result.json"))


def test_arrays_of_images_with_two_channels(tmp_path: Path, refused: Refused) -> None:
    save_tail(tmp_path / "cifar10.npz", 10, largest=10, ratios=(2,))
    with np.load(tmp_path / "cifar10.npz") as file:
        arrays = {name: a[..., :2] if a.ndim == 4 else a for name, a in file.items()}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    own = ("--data.root", tmp_path / "cifar10.npz", "--data.ratio", 2, "--runs", tmp_path / "runs")
    train = ("train", "cifar10_lt_balanced_softmax", *own, "--device", "cpu")
    said = refused(*train, "--train.batch-size", 8)
    assert "x has 2 channels (N, C, H, W) but mean has 3" in said


def test_a_loss_that_is_no_number_stops_in_words_and_keeps_the_last_good_state(
    tmp_path: Path, refused: Refused
) -> None:
    steps = ("--train.updates", 12, "--train.checkpoint-every", 2, "--train.log-every", 1)
    rate = ("--optim.lr", 1e6, "--schedule.warmup", 0, "--schedule.kind", "constant")
    said = refused("train", "demo", *steps, *rate, "--device", "cpu", "--runs", tmp_path)
    assert "part of the loss became" in said and "optim.lr" in said
    folder = tmp_path / "demo/batchformer/seed0"
    for path in (folder / "checkpoints").glob("*.pt"):
        rows = checkpoint.load(path)["window"]["rows"]
        assert torch.isfinite(rows).all()
    assert not (folder / "result.json").exists()
    assert json.loads((folder / "config.json").read_text())["arm"] == "batchformer"
