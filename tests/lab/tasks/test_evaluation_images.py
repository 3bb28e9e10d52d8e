"""Images to be shown are those that are scored: in memory, in files, and small."""

from __future__ import annotations

from pathlib import Path

import torch

from batchformer.insight.classes import third_groups
from batchformer.insight.images import thumbnails
from batchformer.lab.config.data import DomainConfig, LongTailConfig
from batchformer.lab.data.transforms import digits_test
from batchformer.lab.tasks.domains import DomainTask
from batchformer.lab.tasks.image_files import ImageFileTask
from batchformer.lab.tasks.long_tailed import LongTailedTask
from helpers.data_files import save_plain

CPU = torch.device("cpu")


def test_a_pixel_of_a_thumbnail_is_the_mean_of_what_it_covers() -> None:
    images = torch.randint(0, 256, (2, 3, 12, 24), dtype=torch.uint8)
    small = thumbnails(images, 8)
    assert small.shape == (2, 4, 8, 3)
    blocks = images.double().view(2, 3, 4, 3, 8, 3).mean((3, 5)).permute(0, 2, 3, 1)
    assert (small.double() - blocks).abs().max() <= 0.5 + 1e-4


def test_images_in_memory() -> None:
    task = LongTailedTask.load(LongTailConfig(name="digits", ratio=20, shots="thirds"), CPU)
    shown, test = task.figure_images(), task.data.test
    rows = torch.arange(len(test)).flip(0)
    scored = torch.cat([x for x, _ in task.as_at_test(test)])
    parts = list(shown.batches(rows, 100))
    assert [len(part) for part in parts] == [100] * 5
    assert torch.equal(torch.cat(parts), scored.flip(0))
    small = shown.thumbnails(rows, 48)
    assert small.shape == (500, 8, 8, 3) and small.dtype == torch.uint8
    assert all(torch.equal(small[..., channel], test.x[rows, 0]) for channel in range(3))
    assert torch.equal(shown.labels, test.labels)
    assert torch.equal(shown.classes.train_counts, task.data.train_counts)
    groups = third_groups(task.data.train_counts)
    assert shown.classes.shot_of_class.tolist() == (groups["medium"] + 2 * groups["few"]).tolist()


def test_images_in_files(tmp_path: Path) -> None:
    for part, images in (("train", 6), ("test", 4)):
        for number in range(images):
            path = tmp_path / part / f"class{number % 2}" / f"{number}.png"
            save_plain(path, 50 * number % 256, 40, 60)
    config = LongTailConfig(name="folder", root=str(tmp_path), augment="resized", size=32)
    task = ImageFileTask.load(config, CPU)
    shown = task.figure_images(workers=0)
    rows = torch.tensor([3, 0, 1])  # 3.png, 0.png and 2.png: files are sorted by class
    parts = list(shown.batches(rows, 2))
    assert [tuple(part.shape) for part in parts] == [(2, 3, 32, 32), (1, 3, 32, 32)]
    scored = torch.cat([x for x, _ in task.as_at_test(task.data.test, workers=0)])
    assert torch.equal(torch.cat(parts), scored[rows])
    small = shown.thumbnails(rows, 16)
    assert small.shape == (3, 16, 16, 3) and small[:, 0, 0, 0].tolist() == [150, 0, 100]
    assert shown.labels.tolist() == [0, 0, 1, 1]
    assert shown.classes.names == ("class0", "class1")
    assert shown.classes.train_counts.tolist() == [3, 3]


def test_tasks_of_domains_show_the_target() -> None:
    config = DomainConfig(name="rotated_digits", target="r30", augment="shift")
    task = DomainTask.load(config, CPU).seeded(1)
    shown, target = task.figure_images(), task.data.domains.index("r30")
    counts = task.data.counts
    assert torch.equal(shown.classes.train_counts, counts.sum(0) - counts[target])
    rows, kept, images = torch.tensor([5, 0]), task.split.target_all, task.data.parts[target]
    (x,) = shown.batches(rows, 2)
    assert torch.equal(x, digits_test()(images.x[kept[rows]]))
    assert torch.equal(shown.labels, images.labels[kept])
