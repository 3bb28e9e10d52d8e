"""The long-tailed task on image files."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.loader import FileFeed
from batchformer.lab.data.feeds.memory import ExtendedFeed, close
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.sets import image_layouts
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.image_files import ImageFileTask
from helpers.data_files import save_plain

CPU = torch.device("cpu")
SIZES = {"a": 12, "b": 6, "c": 2}
CONFIG = LongTailConfig(name="folder", augment="jitter", size=28, shots="thirds")
IN_PROCESS = TrainConfig(batch_size=6, workers=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one colour for each class, of different shapes."""
    folder, lines = tmp_path_factory.mktemp("images"), []
    for label, (name, size) in enumerate(SIZES.items()):
        for part, count in (("train", size), ("test", 2)):
            for i in range(count):
                save_plain(folder / part / name / f"{i}.png", 60 + 60 * label, 30 + i, 50 - i)
                lines += [f"test/{name}/{i}.png {label}"] if part == "test" else []
    (folder / "val.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def task(root: Path) -> ImageFileTask:
    return ImageFileTask.load(dataclasses.replace(CONFIG, root=str(root)), CPU)


class ByBrightness(Method):
    """Knows the classes by their colours, and takes the last one for the first."""

    def predict(self, x: Tensor) -> Tensor:
        std, mean = torch.tensor([0.229, 0.485]).unbind()
        value = 255 * (x[:, 0].mean((1, 2)) * std + mean)
        label = (value / 60 - 1).round().long()
        return torch.eye(3)[label % 2]


def test_facts(task: ImageFileTask) -> None:
    facts = task.facts()
    assert facts["train"] == 20 and facts["test"] == 6 and facts["classes"] == 3
    assert (facts["largest_class"], facts["smallest_class"]) == (12, 2)
    assert facts["classes_without_test_image"] == 0 and len(facts["split_sha256"]) == 64
    assert "remarks" not in facts
    assert task.method_options["class_counts"].tolist() == [12, 6, 2] and task.num_classes == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_scores_by_hand(task: ImageFileTask, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFileTask, "test_batch", 4)
    optimizer_step = OptimizerStep(TrainConfig(workers=workers), CPU)
    evaluation = task.evaluate(ByBrightness(), optimizer_step)
    metrics = evaluation.metrics
    assert metrics["all"] == pytest.approx(400 / 6) and next(iter(metrics)) == "all"
    assert (metrics["many"], metrics["medium"], metrics["few"]) == (100, 100, 0)
    assert evaluation.figures["correct"].tolist() == [True] * 4 + [False] * 2
    assert evaluation.figures["classes"].tolist() == ["a", "b", "c"]
    assert evaluation.figures["train_counts"].tolist() == [12, 6, 2]
    assert not multiprocessing.active_children()


def test_batches(task: ImageFileTask) -> None:
    feed = task.feed(IN_PROCESS, seed=5)
    assert feed.per_epoch == 4
    batches = [feed.batch(step) for step in range(4)]
    order, (view, _) = Steps(Shuffle(20, seed=5), 6), task.training_views()
    by_hand = FileFeed(task.data.train, *view, order, 5, CPU, 0)
    assert all(torch.equal(by_hand.batch(n)["x"], batch["x"]) for n, batch in enumerate(batches))
    assert [len(batch["y"]) for batch in batches] == [6, 6, 6, 2]
    assert batches[0]["x"].shape == (6, 3, 28, 28) and batches[0]["x"].dtype == torch.float32
    shown = torch.cat([batch["index"] for batch in batches])
    assert shown.sort().values.tolist() == list(range(20))
    again = task.feed(dataclasses.replace(IN_PROCESS, drop_last=True), seed=5)
    assert again.per_epoch == 3 and torch.equal(again.batch(1)["x"], batches[1]["x"])


def test_balanced_batches_beside_and_both_feeds_closed(task: ImageFileTask) -> None:
    config = dataclasses.replace(task.config, meta_batch=3)
    train = dataclasses.replace(IN_PROCESS, workers=1)
    feed = dataclasses.replace(task, config=config).feed(train, seed=0)
    assert isinstance(feed, ExtendedFeed)
    batch = feed.batch(0)
    assert batch["meta_y"].sort().values.tolist() == [0, 1, 2]
    assert batch["meta_x"].shape == (3, 3, 28, 28)
    assert torch.equal(batch["x"], task.feed(IN_PROCESS, seed=0).batch(0)["x"])
    assert len(multiprocessing.active_children()) == 2
    close(feed)
    assert not multiprocessing.active_children()


def test_balanced_batches_of_the_third_list(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "third.txt").write_text("".join(f"test/{c}/0.png {n}\n" for n, c in enumerate("abc")))
    numbers = {"classes": 3, "images": 6, "most": 2, "fewest": 2, "tested": 6, "validated": 3}
    names = {"train": "val.txt", "test": "val.txt", "val": "third.txt"}
    small = dataclasses.replace(image_layouts.ANNOTATED["places_lt"], **numbers, **names)  # type: ignore[arg-type]
    monkeypatch.setitem(image_layouts.ANNOTATED, "places_lt", small)
    config = LongTailConfig(
        name="places_lt", root=str(root), augment="jitter", size=28, meta_batch=6, meta_from="val"
    )
    task = ImageFileTask.load(config, CPU)
    assert task.data.classes == ("a", "b", "c") and task.data.val is not None
    batch = task.feed(IN_PROCESS, seed=0).batch(0)
    assert batch["meta_y"].bincount().tolist() == [1, 1, 1], "it has three images"


def test_a_missing_image_is_found_before_training(root: Path, tmp_path: Path) -> None:
    lists = []
    for part in ("train", "test"):
        lists.append(tmp_path / f"{part}.txt")
        paths = [f"{part}/a/{i % 2}.png 0\n" for i in range(200)]
        paths[77] = f"{part}/a/gone.png 0\n"  # between those that are looked for at once
        lists[-1].write_text("".join(paths))
    config = dataclasses.replace(
        CONFIG, root=str(root), train_list=str(lists[0]), test_list=str(lists[1])
    )
    with pytest.raises(FileNotFoundError, match=r"1 of 200 images(.|\n)*train/a/gone\.png"):
        ImageFileTask.load(config, CPU)
