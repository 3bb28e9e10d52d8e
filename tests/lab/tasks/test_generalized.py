"""Generalized zero-shot learning: what is trained on, and scores by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import FeatureConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.generalized import GeneralizedTask
from helpers.data_files import feature_rows

CPU = torch.device("cpu")
CLASSES, EACH = 6, 10


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Six classes of ten rows; 0 to 3 are seen, 3 of them for validation; 4 and 5 are unseen."""
    rows, path = feature_rows(CLASSES, EACH, unseen=2, tested=3), tmp_path / "mine.npz"
    number = np.arange(CLASSES * EACH) % EACH
    features = np.eye(CLASSES)[rows["labels"]] + 0.01 * number[:, None]
    features[3, 4:] = 0.9  # channels are scaled by their range in training, and these had none
    features = features.astype(np.float16)
    np.savez(path, features=features, att=np.eye(CLASSES), val_classes=np.array([3]), **rows)
    return path


def task(file: Path, **changes: object) -> GeneralizedTask:
    return GeneralizedTask.load(FeatureConfig(name="npz", root=str(file), **changes), CPU)  # type: ignore[arg-type]


class Nearest(Method):
    """Says the channel that is largest, but never class 5."""

    def predict(self, x: Tensor) -> Tensor:
        logits = x.clone()
        logits[:, 5:] = -9.0
        return logits


def test_scores_by_hand(file: Path) -> None:
    found = task(file).evaluate(Nearest(), OptimizerStep(TrainConfig(), CPU))
    # Classes 4 and 5 are unseen; seen ones are told whatever the bias, as long as it is small.
    wanted = {"hm": 2 * 50 * 100 / 150, "unseen": 50, "seen": 100, "auc": 50}
    assert found.metrics == pytest.approx(wanted) and next(iter(found.metrics)) == "hm"
    assert found.figures["bias_of"] == "classes"
    ends = (found.figures["bias_seen"][0], found.figures["bias_unseen"][-1])
    assert ends == pytest.approx((100, 50))
    assert found.figures["correct"].sum() == 12 + 10


def test_batches_are_of_seen_classes_scaled_to_one(file: Path) -> None:
    made = task(file)
    feed = made.feed(TrainConfig(batch_size=8), seed=0)
    batch = feed.batch(0)
    assert batch["x"].shape == (5 * 8, CLASSES) and int(batch["y"].max()) <= 3
    training = made.method_options["features"]
    assert float(training.min()) == 0 and float(training.max()) == 1
    assert torch.equal(batch["x"], training[batch["index"]])
    assert made.method_options["seen"].tolist() == [0, 1, 2, 3]
    assert made.method_options["unseen"].tolist() == [4, 5]
    assert made.seeded(3) is made and made.draws() == {}


def test_the_classes_of_validation_take_the_place_of_the_unseen(file: Path) -> None:
    choosing = task(file, unseen="val", choose=False)
    assert choosing.num_classes == 4, "classes of the test are not there at all"
    assert choosing.method_options["unseen"].tolist() == [3]
    assert choosing.facts()["split_sha256"] != task(file).facts()["split_sha256"]
    assert choosing.facts()["seen_classes"] == 3 and choosing.facts()["test_unseen"] == 7


def test_without_classes_of_validation_nothing_is_chosen(file: Path, tmp_path: Path) -> None:
    with np.load(file) as arrays:
        kept = {name: arrays[name] for name in arrays.files if name != "val_classes"}
    np.savez(tmp_path / "none.npz", **kept)
    with pytest.raises(ValueError, match="no classes of validation"):
        task(tmp_path / "none.npz")
    assert task(tmp_path / "none.npz", choose=False).num_classes == CLASSES
