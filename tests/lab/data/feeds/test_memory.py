"""Batches in memory are a function of the step, with domains too; files are read into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from batchformer.lab.data.feeds import loader
from batchformer.lab.data.feeds.loader import common_side, read_all
from batchformer.lab.data.feeds.memory import ExtendedFeed, FeatureFeed, Feed, close
from batchformer.lab.data.feeds.order import DomainSteps, Shuffle
from batchformer.lab.data.files.decode import DamagedImageError, decode
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import digits_test, digits_train
from batchformer.nn.randomness import generator

SPLIT = ImageSplit(
    torch.randint(0, 256, (23, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator()),
    torch.arange(23) % 5,
)


def feed(seed: int = 0, drop_last: bool = False) -> Feed:
    return Feed(SPLIT, digits_train(), 8, seed, drop_last)


def test_an_epoch_holds_every_sample_once() -> None:
    batches = [feed().batch(step) for step in range(3)]
    assert [len(b["y"]) for b in batches] == [8, 8, 7] and feed().per_epoch == 3
    seen = torch.cat([b["index"] for b in batches])
    assert seen.sort().values.tolist() == list(range(23)) and seen.tolist() != list(range(23))
    for batch in batches:
        assert torch.equal(batch["y"], SPLIT.y[batch["index"]])
    full = feed(drop_last=True)
    assert full.per_epoch == 2 and len(full.batch(3)["y"]) == 8


def test_any_step_can_be_asked_for_in_any_order() -> None:
    forward, backward = feed(), feed()
    expected = [forward.batch(step) for step in range(7)]
    for step in reversed(range(7)):
        torch.manual_seed(step)  # the global generator plays no part
        got = backward.batch(step)
        assert all(torch.equal(got[key], expected[step][key]) for key in got)
        got["x"] = None  # what a user does to a batch stays with that user
        assert backward.batch(step)["x"] is not None


def test_epochs_steps_and_seeds_draw_differently() -> None:
    a, b, c = feed().batch(0), feed().batch(3), feed(1).batch(0)
    assert not torch.equal(a["index"], b["index"]) and not torch.equal(a["index"], c["index"])
    same = Feed(ImageSplit(SPLIT.x[:1].expand(8, -1, -1, -1), SPLIT.y[:8]), digits_train(), 8, 0)
    assert not torch.equal(same.batch(0)["x"], same.batch(1)["x"]), "augmentation is by step"


@settings(max_examples=12)
@given(chunk=st.integers(1, 9), steps=st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_batches_do_not_depend_on_what_is_augmented_together(chunk: int, steps: list[int]) -> None:
    alone = feed()
    together = Feed(SPLIT, digits_train(), 8, 0, chunk=chunk)
    for step in steps:
        got, expected = together.batch(step), alone.batch(step)
        assert all(torch.equal(got[key], expected[key]) for key in expected)


def test_a_second_view_shows_the_same_images_otherwise() -> None:
    views = Feed(SPLIT, digits_train(), 8, 0, second=digits_train(), chunk=3)
    batch = views.batch(4)
    assert batch["view2"].shape == batch["x"].shape
    assert not torch.equal(batch["view2"], batch["x"])
    assert torch.equal(batch["index"], feed().batch(4)["index"])
    plain = Feed(SPLIT, digits_train(), 8, 0, second=digits_test()).batch(4)
    assert torch.equal(plain["view2"], digits_test()(SPLIT.x[plain["index"]]))


@pytest.mark.parametrize("chunk", [1, 4])
def test_steps_of_another_kind(chunk: int) -> None:
    """Which samples come is theirs to say; the rest is drawn as ever."""
    domain = torch.arange(23) % 2
    steps = DomainSteps(domain, groups=2, each=3, seed=5, per_epoch=10)
    source = Feed(SPLIT, digits_train(), 8, 0, chunk=chunk, steps=steps)
    assert source.per_epoch == 10
    for step in (0, 3, 25):
        batch, rows = source.batch(step), steps.index(step)
        assert torch.equal(batch["index"], rows) and torch.equal(batch["y"], SPLIT.y[rows])
        draw = generator(0, "augmentation", step)
        u = torch.rand(6, digits_train().draws, dtype=torch.float64, generator=draw)
        assert torch.equal(batch["x"], digits_train()(SPLIT.x[rows], u))
    with pytest.raises(ValueError, match="not both"):
        Feed(SPLIT, digits_train(), 8, 0, sampler=Shuffle(23, 0), steps=steps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_streams_share_a_feed() -> None:
    shared = Feed(SPLIT, digits_train(), 8, 0, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    sums: list[list[torch.Tensor]] = [[] for _ in streams]
    for step in range(200):
        for stream, kept in zip(streams, sums, strict=True):
            with torch.cuda.stream(stream):
                kept.append(shared.batch(step)["x"].double().sum())
    torch.cuda.synchronize()
    expected = [float(feed().batch(step)["x"].double().sum()) for step in range(200)]
    for kept in sums:
        assert [float(total) for total in kept] == pytest.approx(expected)


X, Y = torch.arange(30.0).view(10, 3), torch.arange(10)


def test_each_batch_of_a_step_has_no_row_twice() -> None:
    feed = FeatureFeed(X, Y, batch_size=4, seed=1, times=3)
    assert feed.per_epoch == 3
    for step in range(5):
        batch = feed.batch(step)
        for part in batch["index"].split(4):
            assert len(part.unique()) == 4
        assert torch.equal(batch["x"], X[batch["index"]])
        assert torch.equal(batch["y"], batch["index"])


def test_a_function_of_seed_and_step() -> None:
    first, again = (FeatureFeed(X, Y, 4, seed=1, times=2) for _ in range(2))
    for step in (7, 0, 7):
        assert torch.equal(first.batch(step)["index"], again.batch(step)["index"])
    assert not torch.equal(first.batch(0)["index"], first.batch(1)["index"])
    other = FeatureFeed(X, Y, 4, seed=2, times=2)
    assert not torch.equal(first.batch(0)["index"], other.batch(0)["index"])


def test_every_row_comes_equally_often() -> None:
    feed = FeatureFeed(X, Y, 4, seed=0, times=2)
    drawn = torch.cat([feed.batch(step)["index"] for step in range(500)]).bincount(minlength=10)
    assert (drawn.double() / 400 - 1).abs().max() < 0.15


def test_more_than_there_is() -> None:
    feed = FeatureFeed(X, Y, batch_size=99, seed=0)
    assert feed.per_epoch == 1 and feed.batch(3)["index"].sort().values.tolist() == list(range(10))
    with pytest.raises(ValueError, match="no batch"):
        FeatureFeed(X[:0], Y[:0], 4, 0)


# Feeds built on others.


class Open:
    """A feed with workers; its batch is its step."""

    per_epoch = 9

    def __init__(self) -> None:
        self.closed = 0

    def batch(self, step: int) -> dict[str, Any]:
        return {"x": step, "y": -step}

    def close(self) -> None:
        self.closed += 1


def test_a_feed_with_more_in_its_batches() -> None:
    first, second, in_memory = Open(), Open(), Feed(SPLIT, digits_train(), 8, 0)
    feed = ExtendedFeed(
        first,
        lambda batch, step: {"y": 2 * batch["y"], "other": second.batch(step + 1)["x"]},
        *(second, in_memory),
    )
    assert feed.per_epoch == 9 and feed.batch(4) == {"x": 4, "y": -8, "other": 5}
    close(feed)  # a feed in memory has nothing to close
    assert (first.closed, second.closed) == (1, 1)


# Files read into memory.

IMAGES = 7


def write(folder: Path, number: int, height: int, width: int, kind: str = "png") -> Path:
    draw = np.random.default_rng(number)
    place = folder / f"class{number % 3}"
    place.mkdir(exist_ok=True)
    file = place / f"{number}.{kind}"
    Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)
    return file


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    for number in range(IMAGES):
        write(tmp_path, number, 12, 12)
    return tmp_path


def test_images_of_one_size_are_kept_as_they_are(
    squares: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "READ", 3)
    files = ImageFiles.from_folder(squares)
    split = read_all(files, workers=2)
    assert split.x.shape == (IMAGES, 3, 12, 12) and torch.equal(split.y, files.labels)
    for path, image in zip(files.paths, split.x, strict=True):
        pixels = np.asarray(Image.open(squares / path))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels)


def test_the_first_image_of_another_size_is_named(squares: Path) -> None:
    write(squares, 4, 12, 13)
    write(squares, 2, 14, 14)
    files = ImageFiles.from_folder(squares)
    with pytest.raises(ValueError, match=r"class1/4.png is 12 x 13, but class0/0.png is 12 x 12"):
        read_all(files, workers=0)


def test_sizes_are_those_of_upright_images(tmp_path: Path) -> None:
    file = write(tmp_path, 0, 8, 9, kind="jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(file).save(file, exif=exif)
    assert tuple(decode(file).shape) == (3, 9, 8)
    with pytest.raises(ValueError, match=r"0.jpg is 9 x 8, no square\. Leave data\.memory off"):
        common_side(ImageFiles.from_folder(tmp_path))


def test_damaged_and_absent_images(squares: Path) -> None:
    files = ImageFiles.from_folder(squares)
    (squares / "class0/3.png").write_bytes(b"no image")
    with pytest.raises(DamagedImageError, match=r"class0/3.png cannot be decoded"):
        common_side(files)
    none = ImageFiles((), torch.empty(0, dtype=torch.int64), ("a",), squares)
    with pytest.raises(ValueError, match="name a part with images"):
        common_side(none)
