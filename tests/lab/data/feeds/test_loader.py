"""Batches of files are a function of the seed and the step, whoever reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.data.feeds import loader
from batchformer.lab.data.feeds.framing import Geometry, RandomResizedCrop, ResizeCentreCrop
from batchformer.lab.data.feeds.loader import FileFeed
from batchformer.lab.data.feeds.order import DomainSteps, Sampler
from batchformer.lab.data.files.decode import DamagedImageError, decode
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.transforms import IMAGENET, ColorJitter, Compose, RandomFlip
from batchformer.nn.randomness import generator

if TYPE_CHECKING:
    from batchformer.lab.engine.method import Batches

IMAGES = 11
SEED = 3


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        place = tmp_path / f"class {number % 3}"
        place.mkdir(exist_ok=True)
        knots = Image.fromarray(draw.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        knots.resize((50 + number, 40)).save(place / f"{number:02d}.jpg")
    return ImageFiles.from_folder(tmp_path)


@dataclass(frozen=True)
class Shift:
    """A batched transform that adds its random numbers."""

    draws: ClassVar[int] = 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return x.double() + u[:, 0].view(-1, 1, 1, 1) + 1000 * u[:, 1].view(-1, 1, 1, 1)


@dataclass(frozen=True)
class Scale:
    draws: ClassVar[int] = 0

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        assert u.shape == (len(x), 0) and u.dtype == torch.float64
        return x.double() / 255


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def feed(files: ImageFiles, opened: ExitStack, workers: int = 0, **options: Any) -> FileFeed:
    size = options.pop("batch_size", 4)
    made = FileFeed(files, RandomResizedCrop(16), Shift(), size, SEED, workers=workers, **options)
    return opened.enter_context(made)


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_batch_is_what_its_parts_make(files: ImageFiles, opened: ExitStack) -> None:
    batches: Batches = feed(files, opened)
    assert batches.per_epoch == 3
    for step in (0, 1, 2, 3):
        epoch, position = divmod(step, 3)
        order = torch.randperm(IMAGES, generator=generator(SEED, "order", epoch))
        index = order[4 * position : 4 * position + 4]
        draw = generator(SEED, "augmentation", step)
        u = torch.rand(len(index), 22 + 2, generator=draw, dtype=torch.float64)
        crop = RandomResizedCrop(16)
        rows = zip(index.tolist(), u, strict=True)
        framed = [crop(decode(files.root / files.paths[i]), row[:22]) for i, row in rows]
        batch = batches.batch(step)
        assert torch.equal(batch["index"], index) and len(index) == (3 if position == 2 else 4)
        assert torch.equal(batch["y"], files.labels[index])
        assert torch.equal(batch["x"], Shift()(torch.stack(framed), u[:, 22:]))


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_at_any_step(files: ImageFiles, opened: ExitStack, workers: int) -> None:
    source = feed(files, opened)
    expected = [source.batch(step) for step in range(9)]
    resumed = feed(files, opened, workers=workers)
    for step in (4, 5, 6, 1, 2, 8, 8, 0):
        torch.manual_seed(step)  # the global generator plays no part
        assert same(resumed.batch(step), expected[step])
    resumed.close()
    assert same(resumed.batch(3), expected[3]), "closed, it opens again"
    full = feed(files, opened, drop_last=True)
    assert full.per_epoch == 2 and len(full.batch(1)["y"]) == len(full.batch(3)["y"]) == 4


@dataclass(frozen=True)
class OneClass:
    """Six samples an epoch, all of one place in the data set."""

    length: int = 6
    far: int = 0

    def order(self, epoch: int) -> Tensor:
        return torch.full((6,), epoch + self.far)


def test_a_sampler(files: ImageFiles, opened: ExitStack) -> None:
    sampler: Sampler = OneClass()
    source = feed(files, opened, sampler=sampler, workers=1)
    assert source.per_epoch == 2
    indices = [source.batch(step)["index"].tolist() for step in range(4)]
    assert indices == [[0] * 4, [0] * 2, [1] * 4, [1] * 2]
    views = source.batch(0)["x"]
    assert not torch.equal(views[0], views[1]), "a sample that comes twice is augmented twice"
    with pytest.raises(IndexError, match=f"step 0: the sampler asks for images 99 .* {IMAGES}"):
        feed(files, opened, sampler=OneClass(far=99)).batch(0)


def test_steps_of_another_kind(files: ImageFiles, opened: ExitStack) -> None:
    """Which samples come is theirs to say, also where workers read ahead."""
    steps = DomainSteps(files.labels, groups=2, each=3, seed=1, per_epoch=5)
    source = feed(files, opened, workers=2, steps=steps)
    assert source.per_epoch == 5
    for step in (0, 1, 2, 7, 4):
        batch = source.batch(step)
        assert torch.equal(batch["index"], steps.index(step))
        assert batch["y"].tolist() == [y for y in batch["y"][::3].tolist() for _ in range(3)]
    with pytest.raises(ValueError, match="not both"):
        feed(files, opened, sampler=OneClass(), steps=steps)


@pytest.mark.parametrize("workers", [0, 1])
def test_damage_stops_the_run_with_the_files_name(
    files: ImageFiles, opened: ExitStack, workers: int
) -> None:
    path = files.root / files.paths[5]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    source = feed(files, opened, workers=workers)
    with pytest.raises(DamagedImageError, match=path.name):
        for step in range(3):
            source.batch(step)
    path.write_bytes(whole)
    assert same(source.batch(step), feed(files, opened).batch(step)), "repaired, it goes on"


def test_damage_passed_over_is_told_and_counted(files: ImageFiles, opened: ExitStack) -> None:
    (files.root / files.paths[5]).write_text("no image")
    source = feed(files, opened, workers=2, on_damaged="skip")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [source.batch(step) for step in range(6)]
    told = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    assert len(told) == 1 and files.paths[5] in told[0] and "takes its place" in told[0]
    assert source.damaged == {files.paths[5]: 2}, "once in each of two epochs"
    for step, batch in enumerate(batches):
        wanted = source.steps.index(step).tolist()
        place = wanted.index(5) if 5 in wanted else None
        if place is not None:
            wanted[place] = wanted[(place + 1) % len(wanted)]
        assert batch["index"].tolist() == wanted
        assert torch.equal(batch["y"], files.labels[batch["index"]])


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_tested_once_and_in_order(files: ImageFiles, workers: int) -> None:
    geometry = ResizeCentreCrop(16, shorter=20)
    batches = list(loader.evaluation_batches(files, geometry, Scale(), 4, workers=workers))
    assert [len(batch["y"]) for batch in batches] == [4, 4, 3]
    together = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    assert torch.equal(together["index"], torch.arange(IMAGES))
    assert torch.equal(together["y"], files.labels)
    nothing = torch.empty(0, dtype=torch.float64)
    images = [geometry(decode(files.root / path), nothing) for path in files.paths]
    assert torch.equal(together["x"], torch.stack(images).double() / 255)


def test_a_test_may_be_left_early(files: ImageFiles) -> None:
    batches = loader.evaluation_batches(files, ResizeCentreCrop(16, 20), Scale(), 2, workers=1)
    assert next(batches)["index"].tolist() == [0, 1]
    del batches


def test_a_test_is_complete_and_not_random(files: ImageFiles) -> None:
    centre: Geometry = ResizeCentreCrop(16, shorter=20)
    with pytest.raises(ValueError, match="the geometry draws: RandomResizedCrop"):
        loader.evaluation_batches(files, RandomResizedCrop(16), Scale(), 4)
    with pytest.raises(ValueError, match="the transform draws: Shift"):
        loader.evaluation_batches(files, centre, Shift(), 4)
    (files.root / files.paths[5]).write_text("no image")
    with pytest.raises(DamagedImageError, match=Path(files.paths[5]).name):
        list(loader.evaluation_batches(files, centre, Scale(), 4, workers=1))


def test_a_second_view_has_a_window_and_numbers_of_its_own(
    files: ImageFiles, opened: ExitStack
) -> None:
    second = (RandomResizedCrop(8), Shift())
    two = feed(files, opened, second=second)
    for step in (0, 4, 1):
        batch = two.batch(step)
        draw = generator(SEED, "augmentation", step)
        count, first = len(batch["y"]), RandomResizedCrop.draws
        u = torch.rand(count, 2 * first + 4, generator=draw, dtype=torch.float64)
        for name, geometry, of_window, of_batch in (
            ("x", RandomResizedCrop(16), u[:, :first], u[:, 2 * first : 2 * first + 2]),
            ("view2", RandomResizedCrop(8), u[:, first : 2 * first], u[:, 2 * first + 2 :]),
        ):
            images = [decode(files.root / files.paths[i]) for i in batch["index"].tolist()]
            framed = torch.stack([geometry(i, r) for i, r in zip(images, of_window, strict=True)])
            assert torch.equal(batch[name], Shift()(framed, of_batch)), (step, name)


def test_runs_side_by_side_read_a_batch_once(
    files: ImageFiles, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, begun = feed(files, opened), []
    begin = shared._stream.begin

    def counted(jobs: Any) -> None:
        begun.append(jobs)
        begin(jobs)

    monkeypatch.setattr(shared._stream, "begin", counted)
    alone = feed(files, opened)
    for step in range(5):
        first, second = shared.batch(step), shared.batch(step)
        assert first is not second and first["x"] is second["x"]
        assert same(first, alone.batch(step))
    assert len(begun) == 1, "the reading goes on where it was"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_the_gpu_are_those_of_the_cpu(
    files: ImageFiles, opened: ExitStack, workers: int
) -> None:
    """Through page-locked memory, on whichever stream asks; workers never see the device."""
    grey = Compose((RandomFlip(), ColorJitter(0.4, 0.4, 0.4), IMAGENET))
    crop = RandomResizedCrop(16)
    made = [
        opened.enter_context(
            FileFeed(
                files, crop, grey, 4, SEED, workers=workers, device=device, second=(crop, grey)
            )
        )
        for device in ("cpu", "cuda")
    ]
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    for step in range(7):
        expected = made[0].batch(step)
        for stream in streams:
            with torch.cuda.stream(stream):
                got = made[1].batch(step)
            stream.synchronize()
            assert got["x"].device.type == "cuda"
            assert same({name: value.cpu() for name, value in got.items()}, expected)
