from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from batchformer.lab.config.data import DetectionConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.base import load
from batchformer.lab.tasks.detection import DetectionTask
from helpers.data_files import Written, save_plain, save_voc

CPU = torch.device("cpu")
TRAIN = TrainConfig(batch_size=2, workers=0)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> DetectionTask:
    """Two images to train on and three to score, the last without an object."""
    root = tmp_path_factory.mktemp("VOCdevkit")
    for number, name in enumerate("abcde"):
        path = root / f"VOC2007/JPEGImages/{name}.jpg"
        save_plain(path, 90, 40 + number, 60 - 3 * number)
    both: list[Written] = [("bolt", (3, 5, 20, 30), 0), ("nut", (12, 6, 29, 31), 1)]
    tested = {"c": both, "d": both[:1], "e": []}
    save_voc(root, {"2007/trainval": {"a": both[:1], "b": both}, "2007/test": tested})
    config = DetectionConfig(
        root=str(root),
        trained_on=("2007/trainval",),
        shorter=(24, 32),
        shorter_at_test=36,
        longest=50,
    )
    made = load(config, CPU)
    assert isinstance(made, DetectionTask)
    return made


class Told(Method):
    """Finds what it is told, image by image.

    Args:
        answer: boxes (n, 4) in the pixels of the file and labels (n,) of the n-th image.
        task: has the sizes that images are scored at.
    """

    def __init__(self, answer: Callable[[int], tuple[Tensor, Tensor]], task: DetectionTask) -> None:
        super().__init__()
        self.answer, self.task, self.asked = answer, task, 0

    def predict(self, x: Any) -> Any:
        (image,) = x
        with Image.open(self.task.data.test[self.asked].path) as file:
            old = torch.tensor([file.width, file.height] * 2)
        new = torch.tensor([image.shape[2], image.shape[1]] * 2)
        assert int(new.min()) == 36 or int(new.max()) == 50
        boxes, labels = self.answer(self.asked)
        self.asked += 1
        return [{"boxes": boxes * new / old, "labels": labels, "scores": torch.ones(len(labels))}]


def test_what_it_says_of_its_data(task: DetectionTask) -> None:
    facts = task.facts()
    sizes = ("train", "test", "train_objects", "test_objects", "classes")
    assert [facts[name] for name in sizes] == [2, 3, 3, 3, 2]
    assert len(facts["split_sha256"]) == 64 and task.draws() == {}
    assert task.num_classes == 2 and task.seeded(4) is task
    assert task.method_options["classes"] == ("bolt", "nut")
    assert task.method_options["class_counts"].tolist() == [2, 1]


def test_all_found_and_nothing_found(task: DetectionTask) -> None:
    optimizer_step, images = OptimizerStep(TRAIN, CPU), task.data.test
    right = Told(lambda n: (images[n].boxes, images[n].labels), task)
    found = task.evaluate(right, optimizer_step)
    names = ["ap", "ap50", "ap75"]
    assert list(found.metrics) == [*names, *(f"voc07_{name}" for name in names)]
    assert all(value == pytest.approx(100) for value in found.metrics.values())
    assert right.asked == 3
    # The only nut is difficult.
    assert found.figures["class_ap"][0] == pytest.approx(100)
    assert np.isnan(found.figures["class_ap"][1])
    assert found.figures["classes"].tolist() == ["bolt", "nut"]
    silent = Told(lambda _: (torch.empty(0, 4), torch.empty(0, dtype=torch.int64)), task)
    assert task.evaluate(silent, optimizer_step).metrics == dict.fromkeys(found.metrics, 0)


def test_boxes_in_the_wrong_scale_are_wrong(task: DetectionTask) -> None:
    images = task.data.test
    wrong = Told(lambda n: (images[n].boxes * 1.6, images[n].labels), task)
    assert task.evaluate(wrong, OptimizerStep(TRAIN, CPU)).metrics["ap50"] == 0


def test_batches(task: DetectionTask) -> None:
    feed = task.feed(TRAIN, seed=0)
    assert feed.per_epoch == 1
    batch = feed.batch(0)
    assert sorted(batch["index"].tolist()) == [0, 1]
    assert all(min(x.shape[1:]) in (24, 32) for x in batch["x"])
    assert sorted(batch["y"].tolist()) == [1, 2]
    with pytest.raises(ValueError, match="no full batch"):
        task.feed(dataclasses.replace(TRAIN, batch_size=3, drop_last=True), seed=0)


def test_difficult_objects_may_be_left_out(task: DetectionTask) -> None:
    config = dataclasses.replace(task.config, difficult=False)
    assert DetectionTask.load(config, CPU).facts()["train_objects"] == 2


class Normalised(Told):
    """Counts the images it is trained on, and normalises their means."""

    def __init__(self, task: DetectionTask) -> None:
        super().__init__(lambda _: (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), task)
        self.norm, self.weight = nn.BatchNorm1d(3), nn.Parameter(torch.ones(1))
        self.seen: list[Tensor] = []

    def step(self, batch: Any) -> dict[str, Tensor]:
        assert self.training and not torch.is_grad_enabled()
        rows = torch.stack([x.float().mean((1, 2)) + torch.rand(3) for x in batch["x"]])
        self.seen.append(rows)
        return {"loss": self.norm(rows).sum() * self.weight}


def test_statistics_are_measured_before_scoring(task: DetectionTask) -> None:
    precise = dataclasses.replace(task, config=dataclasses.replace(task.config, precise_norm=3))
    optimizer_step, means = OptimizerStep(TRAIN, CPU), []
    for times in range(2):
        torch.manual_seed(times)
        method = Normalised(task).eval()
        before = torch.get_rng_state()
        precise.evaluate(method, optimizer_step)
        assert torch.equal(torch.get_rng_state(), before), "no other draw changes"
        assert len(method.seen) == 3 and all(len(rows) == 2 for rows in method.seen)
        wanted = torch.stack(method.seen).mean((0, 1))
        torch.testing.assert_close(method.norm.running_mean, wanted)
        assert not method.training and method.norm.momentum == 0.1 and method.weight.grad is None
        means.append(wanted)
    assert torch.equal(*means), "the same batches and draws in every evaluation"
    method = Normalised(task).eval()
    task.evaluate(method, optimizer_step)
    assert not method.seen, "running means where it is off"
