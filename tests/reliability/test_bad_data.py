"""Images that cannot be read, through the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from batchformer.cli import main as cli
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.log import read_records
from helpers.data_files import save_noise

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


def test_a_corrupt_image_is_named_and_what_was_trained_is_kept(
    images: Path, refused: Refused
) -> None:
    path = images / "train" / "ant" / "3.png"
    whole = damage(path)
    command = on_images(images)
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
