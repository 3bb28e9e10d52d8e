"""Batches of files are a function of the seed and the step, whoever reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.data.feeds import loader
from batchformer.lab.data.feeds.framing import RandomResizedCrop, ResizeCentreCrop
from batchformer.lab.data.feeds.loader import FileFeed, common_side, evaluation_batches, read_all
from batchformer.lab.data.feeds.order import Order, Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.files.decode import DamagedImageError, decode
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.transforms import IMAGENET, ColorJitter, Compose, RandomFlip
from batchformer.nn.randomness import generator
from helpers.data_files import noise_files
from helpers.lab_runs import same

if TYPE_CHECKING:
    from batchformer.lab.engine.method import Batches

IMAGES = 11
SEED = 3
SHUFFLED = Steps(Shuffle(IMAGES, SEED), 4)
CENTRE = ResizeCentreCrop(16, shorter=20)


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    return noise_files(tmp_path, [(40, 50 + number) for number in range(IMAGES)], classes=3)


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


def feed(
    files: ImageFiles,
    opened: ExitStack,
    workers: int = 0,
    order: Order = SHUFFLED,
    **options: Any,
) -> FileFeed:
    made = FileFeed(files, RandomResizedCrop(16), Shift(), order, SEED, workers=workers, **options)
    return opened.enter_context(closing(made))


@pytest.mark.parametrize("sides", [(16,), (16, 8)])
def test_a_batch_is_what_its_parts_make(
    sides: tuple[int, ...], files: ImageFiles, opened: ExitStack
) -> None:
    """Every view has a window and random numbers of its own."""
    geometries = [RandomResizedCrop(side) for side in sides]
    second = (geometries[1], Shift()) if len(sides) == 2 else None
    batches: Batches = feed(files, opened, second=second)
    assert batches.per_epoch == 3
    for step in (0, 4, 2, 1):
        epoch, position = divmod(step, 3)
        order = torch.randperm(IMAGES, generator=generator(SEED, "order", epoch))
        index, batch = order[4 * position : 4 * position + 4], batches.batch(step)
        assert torch.equal(batch["index"], index) and len(index) == (3 if position == 2 else 4)
        assert torch.equal(batch["y"], files.labels[index])
        draw = generator(SEED, "augmentation", step)
        u = torch.rand(len(index), 24 * len(sides), generator=draw, dtype=torch.float64)
        columns = u.split([22] * len(sides) + [2] * len(sides), dim=1)
        images = [decode(files.root / files.paths[i]) for i in index.tolist()]
        for view, (name, geometry) in enumerate(zip(("x", "view2"), geometries, strict=False)):
            rows = zip(images, columns[view], strict=True)
            framed = torch.stack([geometry(image, row) for image, row in rows])
            assert torch.equal(batch[name], Shift()(framed, columns[len(sides) + view])), step


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
        wanted = source.order.index(step).tolist()
        place = wanted.index(5) if 5 in wanted else None
        if place is not None:
            wanted[place] = wanted[(place + 1) % len(wanted)]
        assert batch["index"].tolist() == wanted
        assert torch.equal(batch["y"], files.labels[batch["index"]])


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_tested_once_and_in_order(files: ImageFiles, workers: int) -> None:
    batches = list(evaluation_batches(files, CENTRE, Scale(), 4, workers=workers))
    assert [len(batch["y"]) for batch in batches] == [4, 4, 3]
    together = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    assert torch.equal(together["index"], torch.arange(IMAGES))
    assert torch.equal(together["y"], files.labels)
    nothing = torch.empty(0, dtype=torch.float64)
    images = [CENTRE(decode(files.root / path), nothing) for path in files.paths]
    assert torch.equal(together["x"], torch.stack(images).double() / 255)
    first = next(evaluation_batches(files, CENTRE, Scale(), 2, workers=workers))  # left early
    assert first["index"].tolist() == [0, 1]


def test_a_test_is_complete_and_not_random(files: ImageFiles) -> None:
    with pytest.raises(ValueError, match="the geometry draws: RandomResizedCrop"):
        next(evaluation_batches(files, RandomResizedCrop(16), Scale(), 4))
    with pytest.raises(ValueError, match="the transform draws: Shift"):
        next(evaluation_batches(files, CENTRE, Shift(), 4))
    (files.root / files.paths[5]).write_text("no image")
    with pytest.raises(DamagedImageError, match=Path(files.paths[5]).name):
        list(evaluation_batches(files, CENTRE, Scale(), 4, workers=1))


def test_runs_side_by_side_read_a_batch_once(
    files: ImageFiles, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, begun = feed(files, opened), []
    begin = shared._stream.begin
    monkeypatch.setattr(shared._stream, "begin", lambda jobs: begun.append(begin(jobs)))
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
    options: dict[str, Any] = {"workers": workers, "second": (crop, grey)}
    made = [
        FileFeed(files, crop, grey, SHUFFLED, SEED, device=device, **options)
        for device in ("cpu", "cuda")
    ]
    for source in made:
        opened.callback(source.close)
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    for step in range(7):
        expected = made[0].batch(step)
        for stream in streams:
            with torch.cuda.stream(stream):
                got = made[1].batch(step)
            stream.synchronize()
            assert got["x"].device.type == "cuda"
            assert same({name: value.cpu() for name, value in got.items()}, expected)


# Files read into memory.


def test_images_of_one_size_are_kept_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "READ", 3)
    files = noise_files(tmp_path, [(12, 12)] * 7, classes=3)
    split = read_all(files, workers=2)
    assert split.x.shape == (7, 3, 12, 12) and torch.equal(split.labels, files.labels)
    for path, image in zip(files.paths, split.x, strict=True):
        pixels = np.asarray(Image.open(tmp_path / path))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels)


def test_images_that_cannot_be_kept_are_named(tmp_path: Path) -> None:
    files = noise_files(tmp_path, [(12, 12), (12, 12), (12, 13), (14, 14)])
    with pytest.raises(ValueError, match=r"class0/02.png is 12 x 13, but class0/00.png is 12 x 12"):
        read_all(files, workers=0)
    (tmp_path / "class0/01.png").write_bytes(b"no image")
    with pytest.raises(DamagedImageError, match=r"class0/01.png cannot be decoded"):
        common_side(files)
    none = ImageFiles((), torch.empty(0, dtype=torch.int64), ("a",), tmp_path)
    with pytest.raises(ValueError, match="name a part with images"):
        common_side(none)


def test_sizes_are_those_of_upright_images(tmp_path: Path) -> None:
    (tmp_path / "class0").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (9, 8)).save(tmp_path / "class0/0.jpg", exif=exif)
    with pytest.raises(ValueError, match=r"0.jpg is 9 x 8, no square\. Leave data\.memory off"):
        common_side(ImageFiles.from_folder(tmp_path))
