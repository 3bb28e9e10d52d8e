"""The contrastive task: pairs of views, and scores of features by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.transforms import digits_test
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.metrics.representation import feature_std, uniformity
from batchformer.lab.tasks.base import load
from batchformer.lab.tasks.contrastive import ContrastiveTask
from helpers.data_files import save_plain

CPU = torch.device("cpu")
DIGITS = ContrastConfig(name="digits", ratio=50.0, views="byol")
STEP = OptimizerStep(TrainConfig(workers=0), CPU)


class Pixels(Method):
    """Features that are the pixels themselves."""

    def __init__(self, neighbours: int = 3) -> None:
        super().__init__()
        self.hyper = MethodConfig(neighbours=neighbours, vote_temperature=0.2)

    def predict(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.fixture(scope="module")
def digits() -> ContrastiveTask:
    return ContrastiveTask.load(DIGITS, CPU)


def test_the_facts_are_those_of_the_images_with_labels(digits: ContrastiveTask) -> None:
    labelled = load(DIGITS.images(sampler="class_balanced", shots="thirds"), CPU)
    assert digits.facts() == labelled.facts() and digits.num_classes == labelled.num_classes
    assert isinstance(load(DIGITS, CPU), ContrastiveTask)
    assert digits.draws() == {} and digits.seeded(3).facts() == digits.facts()


def test_batches_have_two_views(digits: ContrastiveTask) -> None:
    feed = digits.feed(TrainConfig(batch_size=32, drop_last=True), seed=4)
    assert feed.per_epoch == len(digits.labelled.data.train) // 32
    batch = feed.batch(0)
    assert batch["x"].shape == batch["view2"].shape == (32, 1, 8, 8)
    assert not torch.equal(batch["x"], batch["view2"])
    again = digits.feed(TrainConfig(batch_size=32, drop_last=True), seed=4).batch(0)
    assert torch.equal(batch["view2"], again["view2"])
    # The same images: an unshifted one is among the nine shifts of each.
    whole = digits_test()(digits.labelled.data.train.x)[batch["index"]]  # type: ignore[index]
    for view in ("x", "view2"):
        unshifted = (batch[view] == whole).flatten(1).all(1)
        assert 0 < unshifted.sum() < 32


def test_scores_by_scikit_learn(digits: ContrastiveTask) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    data = digits.labelled.data
    normalise, seeded = digits_test(), digits.seeded(7)
    rows = seeded.labelled.bank(7).rows
    train, test = (normalise(part.x).flatten(1).numpy() for part in (data.train, data.test))  # type: ignore[arg-type]
    labels = data.train.labels[rows].numpy()  # type: ignore[union-attr]
    reference = KNeighborsClassifier(
        3, metric="cosine", algorithm="brute", weights=lambda apart: np.exp((1 - apart) / 0.2)
    ).fit(train[rows], labels)
    truth = data.test.labels.numpy()  # type: ignore[union-attr]
    right = reference.predict(test) == truth
    evaluation = seeded.evaluate(Pixels(), STEP)
    metrics, figures = evaluation.metrics, evaluation.figures
    names = ["knn", "knn_many", "knn_medium", "knn_few", "alignment", "uniformity", "feature_std"]
    assert list(metrics) == names, "the headline comes first"
    # Images that are in the bank several times make ties, which libraries break differently.
    assert metrics["knn"] == pytest.approx(100 * right.mean(), abs=1)
    assert figures["correct"].mean() * 100 == pytest.approx(metrics["knn"])
    counts = data.train_counts.numpy()
    few = [figures["correct"][truth == c].mean() for c in range(10) if counts[c] < 20]
    assert metrics["knn_few"] == pytest.approx(100 * np.mean(few))
    assert figures["confusion"].sum() == 500 and figures["per_class"].shape == (10,)
    assert metrics["uniformity"] == pytest.approx(uniformity(torch.from_numpy(test)))
    assert metrics["feature_std"] == pytest.approx(feature_std(torch.from_numpy(test)))
    assert 0 < metrics["alignment"] < 2


def test_the_same_in_every_evaluation_and_alignment_with_every_seed(
    digits: ContrastiveTask,
) -> None:
    first, again, other = (
        digits.seeded(seed).evaluate(Pixels(), STEP).metrics for seed in (1, 1, 2)
    )
    assert first == again
    fixed = ("alignment", "uniformity", "feature_std")
    assert [first[name] for name in fixed] == [other[name] for name in fixed]


def test_features_that_are_all_alike(digits: ContrastiveTask) -> None:
    class Same(Pixels):
        def predict(self, x: Tensor) -> Tensor:
            return torch.tensor([[1.0, 2.0]]).expand(len(x), 2)

    metrics = digits.evaluate(Same(), STEP).metrics
    for name in ("alignment", "uniformity", "feature_std"):
        assert metrics[name] == pytest.approx(0, abs=1e-6)
    assert metrics["knn"] == pytest.approx(10), "one answer for all images"


def test_balanced_classes_have_no_shots() -> None:
    task = ContrastiveTask.load(dataclasses.replace(DIGITS, ratio=1.0), CPU)
    metrics = task.evaluate(Pixels(), STEP).metrics
    assert list(metrics) == ["knn", "alignment", "uniformity", "feature_std"]
    assert metrics["knn"] > 90


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one hue for each class."""
    folder = tmp_path_factory.mktemp("hues")
    for label, count in enumerate((9, 4, 2)):
        for part, images in (("train", count), ("test", 2)):
            for i in range(images):
                red, green, blue = (220 if label == k else 20 + i for k in range(3))
                path = folder / part / str(label) / f"{i}.png"
                save_plain(path, (red, green, blue), 30 + i, 50 - i)
    return folder


def test_image_files(root: Path) -> None:
    config = ContrastConfig(name="folder", root=str(root), size=16, views="byol")
    task = ContrastiveTask.load(config, CPU)
    feed = task.feed(TrainConfig(batch_size=4, workers=0), seed=0)
    batch = feed.batch(0)
    assert feed.per_epoch == 4 and batch["x"].shape == batch["view2"].shape == (4, 3, 16, 16)
    assert not torch.equal(batch["x"], batch["view2"])
    close(feed)
    evaluation = task.evaluate(Pixels(neighbours=1), STEP)
    assert evaluation.metrics["knn"] == 100 and "knn_many" not in evaluation.metrics
    assert evaluation.figures["correct"].tolist() == [True] * 6
