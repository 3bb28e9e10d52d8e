"""A batch is read as requested; workers read ahead in order, outlive signals, end when told."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.data.feeds.framing import RandomResizedCrop, ResizeCentreCrop
from batchformer.lab.data.feeds.workers import (
    ImageBatch,
    ImageReader,
    ImageRequest,
    Stream,
    usable_workers,
)
from batchformer.lab.data.files.decode import DamagedImageError, decode
from helpers.data_files import noise_files, save_plain

IMAGES = 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(IMAGES):
        save_plain(tmp_path / f"{number}.png", number, 8, 9)
    return tmp_path


def requests(*numbers: int) -> Iterator[ImageRequest]:
    for number in numbers:
        yield ImageRequest([number], [f"{number % IMAGES}.png"], np.empty((1, 0)), 1)


def stream(root: Path, workers: int) -> Stream[ImageRequest, ImageBatch]:
    reader = ImageReader(root, (ResizeCentreCrop(8, shorter=8),))
    return Stream(reader, workers)


def children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def begun(source: Stream[ImageRequest, ImageBatch]) -> set[int]:
    """The processes that a stream starts for sixty requests."""
    before = children()
    source.begin(requests(*range(60)))
    return children() - before


def gone(pids: set[int]) -> bool:
    for _ in range(100):
        if not pids & children():
            return True
        time.sleep(0.05)
    return False


def test_how_many_workers() -> None:
    assert usable_workers(0) == 0 and usable_workers(40) == 40
    assert 1 <= usable_workers(None) <= min(16, os.cpu_count() or 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_the_order_of_the_requests(root: Path, workers: int) -> None:
    source = stream(root, workers)
    before = children()
    source.begin(requests(5, 3, 4, 1, 0, 2, 5, 1))
    first = [int(next(source).samples) for _ in range(3)]
    mine = children() - before
    source.begin(requests(2, 0, 1))
    assert children() - before == mine and len(mine) == workers, "the processes stay"
    reads = list(source)
    assert first == [5, 3, 4] and [int(read.samples) for read in reads] == [2, 0, 1]
    assert [int(read.views[0][0, 0, 0, 0]) for read in reads] == [2, 0, 1]
    assert gone(mine), "the end of the requests is the end of the workers"


def test_without_torchvision_the_extra_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(ImportError, match=r"pip install 'batchformer\[lab\]'"):
        stream(root, 0).begin(requests(0))


def test_begin_comes_first_and_torchs_own_generator_is_left_alone(root: Path) -> None:
    before = torch.get_rng_state()
    source = stream(root, 1)
    with pytest.raises(RuntimeError, match="begin"):
        next(source)
    source.begin(requests(0, 1))
    next(source)
    source.close()
    assert torch.equal(torch.get_rng_state(), before)


def test_signals_to_the_whole_group_are_left_to_the_main_process(root: Path) -> None:
    source = stream(root, 2)
    mine = begun(source)
    got = [int(next(source).samples) for _ in range(2)]  # one of each: both have begun
    for number in (signal.SIGINT, signal.SIGTERM):
        for pid in mine:
            os.kill(pid, number)
    got += [int(read.samples) for read in source]
    assert got == list(range(60))


def test_a_worker_that_dies_is_an_error_and_can_be_replaced(root: Path) -> None:
    source = stream(root, 1)
    (pid,) = begun(source)
    next(source)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="worker"):
        list(source)
    source.begin(requests(4))
    assert [int(read.samples) for read in source] == [4]


@pytest.mark.parametrize("how", ["close", "forget"])
def test_workers_end_with_the_stream(root: Path, how: str) -> None:
    source = stream(root, 2)
    mine = begun(source)
    next(source)
    assert len(mine) == 2
    if how == "close":
        source.close()
        source.close()
    else:
        gc.disable()  # what is asked is whether references alone suffice
        del source
        gc.enable()
    assert gone(mine)


def test_workers_end_with_an_error_even_while_it_is_looked_at(root: Path) -> None:
    (root / "2.png").write_text("no image")
    source = stream(root, 2)
    mine = begun(source)
    with pytest.raises(DamagedImageError) as caught:
        list(source)
    assert "2.png" in str(caught.value) and len(mine) == 2 and gone(mine)


def test_requests_that_fail_fail_here(root: Path) -> None:
    def failing() -> Iterator[ImageRequest]:
        yield from requests(0)
        raise IndexError("no such sample")

    source = stream(root, 1)
    with pytest.raises(IndexError, match="no such sample"):
        source.begin(failing())
    source.begin(requests(1))
    assert [int(read.samples) for read in source] == [1]


def test_a_program_that_forgets_them_still_ends() -> None:
    """Its reader and torchvision are stand-ins: loading the latter would take most of the time."""
    program = """
import operator, sys, types
sys.modules.update({
    name: types.ModuleType(name)
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
})
from batchformer.lab.data.feeds.workers import Stream
if __name__ == "__main__":
    stream = Stream(operator.neg, 1)
    stream.begin(range(100))
    print(next(stream))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stdout == "0\n", done.stderr


# Reading one batch.

GEOMETRY = RandomResizedCrop(16)
PATHS = [f"class0/{number:02d}.png" for number in range(5)]
SAMPLES = [40, 10, 30, 20, 0]


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    noise_files(tmp_path, [(20 + number, 31 - number) for number in range(5)])
    return tmp_path


def request() -> ImageRequest:
    u = np.random.default_rng(1).random((5, GEOMETRY.draws))
    return ImageRequest(SAMPLES, PATHS, u, 5)


def expected(noise: Path, taken: list[int]) -> Tensor:
    rows = zip(taken, torch.from_numpy(request().u), strict=True)
    return torch.stack([GEOMETRY(decode(noise / PATHS[row]), u) for row, u in rows])


@pytest.mark.parametrize(
    ("damaged", "taken"),
    [
        ([], [0, 1, 2, 3, 4]),
        ([1], [0, 2, 2, 3, 4]),
        ([1, 2], [0, 3, 3, 3, 4]),
        ([4], [0, 1, 2, 3, 0]),
        ([0, 3, 4], [1, 1, 2, 1, 1]),
    ],
)
def test_the_next_readable_one_takes_the_place(
    noise: Path, damaged: list[int], taken: list[int]
) -> None:
    for row in damaged:
        (noise / PATHS[row]).write_text("no image")
    if damaged == [4]:  # a missing file is replaced too
        (noise / PATHS[4]).unlink()
    read = ImageReader(noise, (GEOMETRY,), "skip")(request())
    assert read.samples.tolist() == [SAMPLES[row] for row in taken]
    assert torch.equal(read.views[0], expected(noise, taken)), (
        "each place keeps its own random numbers"
    )
    assert [path for path, _ in read.replaced] == [PATHS[row] for row in damaged]
    assert all(PATHS[row] in words for row, (_, words) in zip(damaged, read.replaced, strict=True))
    assert read.samples.dtype == torch.int64 and read.total == 5


def test_images_that_cannot_be_read(noise: Path) -> None:
    (noise / PATHS[2]).write_text("no image")
    with pytest.raises(DamagedImageError, match=r"2\.png"):  # by default
        ImageReader(noise, (GEOMETRY,))(request())
    (noise / PATHS[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.png"):
        ImageReader(noise, (GEOMETRY,))(request())
    for path in PATHS:
        (noise / path).write_text("no image")
    with pytest.raises(DamagedImageError, match=r"none of the 5 images .* first: .*0\.png"):
        ImageReader(noise, (GEOMETRY,), "skip")(request())


@dataclass(frozen=True)
class Wrong:
    """A geometry that fails, or gives something else than it says."""

    fails: bool
    size: int = 16
    draws: ClassVar[int] = 22

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        if self.fails:
            raise ArithmeticError("no such window")
        return image[:, :2, :2]


@pytest.mark.parametrize(
    ("fails", "reason"), [(True, "no such window"), (False, r"uint8 of shape \(3, 2, 2\)")]
)
def test_a_geometry_that_fails_is_told_with_the_file(noise: Path, fails: bool, reason: str) -> None:
    with pytest.raises(RuntimeError, match=rf"0\.png: Wrong.* image \(3, 20, 31\) .*{reason}"):
        ImageReader(noise, (Wrong(fails),), "skip")(request())


def test_reader_and_request_reach_a_process_of_any_kind(noise: Path) -> None:
    reader, work = pickle.loads(pickle.dumps((ImageReader(noise, (GEOMETRY,)), request())))
    assert torch.equal(reader(work).views[0], expected(noise, [0, 1, 2, 3, 4]))
