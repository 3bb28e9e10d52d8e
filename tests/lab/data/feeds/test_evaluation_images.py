"""Images to be shown: of memory and of files, and small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from batchformer.insight.classes import Classes, third_groups
from batchformer.insight.images import thumbnails
from batchformer.lab.config.data import DomainConfig, LongTailConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import EvaluationImageFiles
from batchformer.lab.data.feeds.memory import EvaluationImages
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import IMAGENET, digits_test
from batchformer.lab.tasks.domains import DomainTask
from batchformer.lab.tasks.image_files import ImageFileTask
from batchformer.lab.tasks.long_tailed import LongTailedTask

CPU = torch.device("cpu")
CLASSES = Classes.by_shots(("a", "b"), torch.tensor([5, 2]))


def test_images_in_memory() -> None:
    x = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8)
    shown = EvaluationImages(CLASSES, ImageSplit(x, torch.arange(9) % 2), digits_test(), CPU)
    rows = torch.tensor([7, 0, 3])
    parts = list(shown.batches(rows, 2))
    assert [len(part) for part in parts] == [2, 1]
    assert torch.equal(torch.cat(parts), digits_test()(x[rows]))
    assert shown.labels.tolist() == [0, 1] * 4 + [0]
    small = shown.thumbnails(rows, 48)
    assert small.shape == (3, 8, 8, 3) and small.dtype == torch.uint8
    assert all(torch.equal(small[..., channel], x[rows, 0]) for channel in range(3))


def test_images_in_files(tmp_path: Path) -> None:
    names, labels = tuple(f"{number}.png" for number in range(5)), torch.arange(5) % 2
    for number, name in enumerate(names):
        Image.new("RGB", (60, 40), (50 * number,) * 3).save(tmp_path / name)
    files = ImageFiles(names, labels, ("a", "b"), tmp_path)
    view = (framing.ResizeCentreCrop(32, 36), IMAGENET)
    shown = EvaluationImageFiles(CLASSES, files, view, CPU, workers=0)
    rows = torch.tensor([4, 1, 2])
    parts = list(shown.batches(rows, 2))
    assert [tuple(part.shape) for part in parts] == [(2, 3, 32, 32), (1, 3, 32, 32)]
    means = torch.cat(parts)[:, 0].mean((1, 2)) * 0.229 + 0.485
    torch.testing.assert_close(means, torch.tensor([200, 50, 100]) / 255, atol=1e-5, rtol=0)
    small = shown.thumbnails(rows, 16)
    assert small.shape == (3, 16, 16, 3)
    assert small[:, 0, 0, 0].tolist() == [200, 50, 100]
    assert torch.equal(shown.labels, labels)


def test_a_pixel_of_a_thumbnail_is_the_mean_of_what_it_covers() -> None:
    images = torch.randint(0, 256, (2, 3, 12, 24), dtype=torch.uint8)
    small = thumbnails(images, 8)
    assert small.shape == (2, 4, 8, 3)
    blocks = images.double().view(2, 3, 4, 3, 8, 3).mean((3, 5)).permute(0, 2, 3, 1)
    assert (small.double() - blocks).abs().max() <= 0.5 + 1e-4


def test_long_tailed_tasks_show_what_they_score() -> None:
    task = LongTailedTask.load(LongTailConfig(name="digits", ratio=20, shots="thirds"), CPU)
    shown = task.figure_images()
    assert shown is not None
    rows = torch.arange(len(task.data.test)).flip(0)
    scored = torch.cat([x for x, _ in task.as_at_test(task.data.test)])
    assert torch.equal(torch.cat(list(shown.batches(rows, 100))), scored.flip(0))
    assert torch.equal(shown.labels, task.data.test.y)
    assert torch.equal(shown.classes.train_counts, task.data.train_counts)
    groups = third_groups(task.data.train_counts)
    assert shown.classes.shot_of_class.tolist() == (groups["medium"] + 2 * groups["few"]).tolist()


def test_tasks_on_files_show_what_they_score(
    tmp_path: Path, noise_files: Callable[..., ImageFiles]
) -> None:
    for part, images in (("train", 6), ("test", 4)):
        (tmp_path / part).mkdir()
        noise_files(tmp_path / part, [(40, 50)] * images, classes=2)
    config = LongTailConfig(name="folder", root=str(tmp_path), augment="resized", size=32)
    task = ImageFileTask.load(config, CPU)
    shown = task.figure_images(workers=0)
    assert shown is not None and shown.labels.tolist() == [0, 0, 1, 1]
    scored = torch.cat([x for x, _ in task.as_at_test(task.data.test, workers=0)])
    rows = torch.tensor([3, 1])
    assert torch.equal(torch.cat(list(shown.batches(rows, 1))), scored[rows])
    assert shown.thumbnails(rows, 16).shape == (2, 16, 16, 3)
    assert shown.classes.names == ("class0", "class1")
    assert shown.classes.train_counts.tolist() == [3, 3]


def test_tasks_of_domains_show_the_target() -> None:
    config = DomainConfig(name="rotated_digits", target="r30", augment="shift")
    task = DomainTask.load(config, CPU).seeded(1)
    shown = task.figure_images()
    assert shown is not None
    target = task.data.domains.index("r30")
    assert torch.equal(
        shown.classes.train_counts, task.data.counts.sum(0) - task.data.counts[target]
    )
    rows = torch.tensor([5, 0])
    (x,) = shown.batches(rows, 2)
    kept = task.split.target_all if config.scored_on == "all" else task.split.target_in
    images = task.data.parts[target]
    assert torch.equal(x, digits_test()(images.x[kept[rows]]))
    assert torch.equal(shown.labels, images.y[kept])
