"""Batches of images with boxes, each image of its own size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchformer.lab.data.feeds.loader import ReadAheadFeed
from batchformer.lab.data.feeds.order import Order, augmentation_numbers
from batchformer.lab.data.feeds.sharding import Share
from batchformer.lab.data.feeds.workers import Stream
from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.sets.voc import BoxedImage

#: Images that a worker reads at a time for scoring.
SCORED_AT_ONCE = 4
#: Folders already warned about for boxes outside of an image; a mistake is in many images.
_REPORTED: set[Path] = set()


class DetectionRequest(NamedTuple):
    """Images to read, and how."""

    samples: list[int]  # N positions in the data set
    paths: list[str]
    shorter: list[int]  # N lengths that the shorter side gets
    flip: list[bool]  # N times whether to mirror left to right
    total: int  # samples of the batch over all ranks
    objects: int = 0  # objects in these samples


class DetectionImages(NamedTuple):
    """Images that were read, in one tensor: processes share memory separately for each tensor."""

    request: DetectionRequest
    pixels: Tensor  # uint8 of N images (3, H, W), one after the other
    sizes: list[tuple[int, int, int, int]]  # height and width of each file, then as resized


@dataclass(frozen=True)
class DetectorInput:
    """An image as a detector gets it."""

    x: Tensor  # (3, H, W) uint8
    boxes: Tensor  # (n, 4) float32 in its pixels
    labels: Tensor  # (n,) int64
    scale: tuple[float, float]  # width and height over those of the file


def resized(height: int, width: int, shorter: int, longest: int) -> tuple[int, int]:
    """Height and width for this shorter side, or less if the longer would exceed `longest`.

    >>> resized(375, 500, 480, 1333), resized(100, 400, 480, 1333)
    ((480, 640), (333, 1333))
    """
    scale = min(shorter / min(height, width), longest / max(height, width))
    return max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)


def resize_image(x: Tensor, shorter: int, longest: int, flip: bool = False) -> Tensor:
    """Resize an image (3, H, W) uint8 to this shorter side; mirror it left to right if asked."""
    from PIL import Image

    old_height, old_width = x.shape[1:]
    height, width = resized(old_height, old_width, shorter, longest)
    pixels = np.ascontiguousarray(x.permute(1, 2, 0).numpy())
    picture = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return x.flip(2) if flip else x


def resize_boxes(
    boxes: Tensor, labels: Tensor, old: tuple[int, int], new: tuple[int, int], flip: bool = False
) -> tuple[Tensor, Tensor]:
    """Boxes (n, 4) of a resized image, cut at its border, with their labels (n,).

    Boxes are left, top, right, bottom; empty ones are left out. `old` and `new` are height and
    width.
    """
    height, width = new
    scale = (width / old[1], height / old[0])
    boxes = boxes * torch.tensor([*scale, *scale], dtype=boxes.dtype)
    boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height] * 2, dtype=boxes.dtype))
    if flip:
        boxes = torch.stack((width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]), 1)
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return boxes[has_area], labels[has_area]


@dataclass(frozen=True)
class DetectionReader:
    """Reads and resizes images."""

    longest: int  # largest length of a longer side

    def __call__(self, request: DetectionRequest) -> DetectionImages:
        images, sizes = [], []
        for path, shorter, flip in zip(request.paths, request.shorter, request.flip, strict=True):
            image = decode(path)
            made = resize_image(image, shorter, self.longest, flip)
            images.append(made.flatten())
            sizes.append((*image.shape[1:], *made.shape[1:]))
        return DetectionImages(request, torch.cat(images), sizes)


def detector_inputs(
    read: DetectionImages, images: Sequence[BoxedImage], device: torch.device
) -> list[DetectorInput]:
    """The images that were read, with their boxes, on a device."""
    shapes = [(3, height, width) for _, _, height, width in read.sizes]
    pixels = torch.split(read.pixels.to(device, non_blocking=True), list(map(prod, shapes)))
    made = []
    for x, shape, sizes, sample, flip in zip(
        pixels, shapes, read.sizes, read.request.samples, read.request.flip, strict=True
    ):
        old, new = sizes[:2], sizes[2:]
        image = images[sample]
        _warn_of_outside(image, *old)
        boxes, labels = resize_boxes(image.boxes, image.labels, old, new, flip)
        boxes, labels = (t.to(device, non_blocking=True) for t in (boxes, labels))
        made.append(DetectorInput(x.view(shape), boxes, labels, (new[1] / old[1], new[0] / old[0])))
    return made


def _warn_of_outside(image: BoxedImage, height: int, width: int) -> None:
    """Warn of boxes outside of their image, for the first such image of a folder."""
    left, top, right, bottom = image.boxes.unbind(1)
    outside = (left >= width) | (top >= height) | (right <= 0) | (bottom <= 0)
    if outside.any() and image.path.parent not in _REPORTED:
        _REPORTED.add(image.path.parent)
        warnings.warn(
            f"{int(outside.sum())} of {len(outside)} boxes of {image.path} lie outside of the "
            f"image, which is {width} x {height} pixels. Such objects are not trained on, and "
            "count as missed in a test. Was the image resized or turned after it was annotated? "
            "Other images of its folder are not named",
            RuntimeWarning,
            stacklevel=2,
        )


class DetectionFeed(ReadAheadFeed[DetectionRequest, DetectionImages]):
    """Images with boxes, each mirrored or not and with its own shorter side.

    A batch is a function of (seed, step), and sharded over ranks, as in
    :class:`~batchformer.lab.data.feeds.loader.FileFeed`.

    Args:
        shorter: lengths of the shorter side, one drawn for each image.
        longest: largest length of the longer side.
    """

    def __init__(
        self,
        images: Sequence[BoxedImage],
        shorter: Sequence[int],
        longest: int,
        order: Order,
        seed: int,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        accumulate: int = 1,
    ) -> None:
        share = Share(order, accumulate)

        def request(step: int) -> DetectionRequest:
            index = order.index(step)
            samples = share.own(index).tolist()
            flips, lengths = share.own(augmentation_numbers(seed, step, len(index), 2)).T.tolist()
            return DetectionRequest(
                samples,
                [str(images[sample].path) for sample in samples],
                [shorter[int(length * len(shorter))] for length in lengths],
                [flip < 0.5 for flip in flips],
                len(index),
                sum(len(images[sample].labels) for sample in index.tolist()),
            )

        super().__init__(order, share, request, DetectionReader(longest), device, workers)
        self.images = images

    def _assemble(self, step: int, result: DetectionImages) -> dict[str, Any]:
        """The batch of one step, with lists for what differs in size between its N images.

        ``x`` N tensors (3, H, W) uint8, ``boxes`` N tensors (n, 4), ``labels`` N tensors (n,);
        ``y`` (N,) the number n of objects of each image, ``index`` (N,) which images these are,
        ``row`` (N,) their positions in the lists, so that a part of the batch finds its images;
        ``objects_per_image``, the mean over the images of all ranks.
        """
        inputs = detector_inputs(result, self.images, self.device)
        request = result.request
        return {
            "x": [image.x for image in inputs],
            "boxes": [image.boxes for image in inputs],
            "labels": [image.labels for image in inputs],
            "y": torch.tensor([len(image.labels) for image in inputs]),
            "index": torch.tensor(request.samples),
            "row": torch.arange(len(inputs)),
            "objects_per_image": request.objects / request.total,
            **self.share.parts(request.total),
        }


def scored_images(
    images: Sequence[BoxedImage], shorter: int, longest: int, workers: int | None = None
) -> Iterator[DetectorInput]:
    """Every image once and in order, on the CPU and not mirrored."""

    def request(start: int) -> DetectionRequest:
        samples = list(range(len(images))[start : start + SCORED_AT_ONCE])
        paths, count = [str(images[sample].path) for sample in samples], len(samples)
        return DetectionRequest(samples, paths, [shorter] * count, [False] * count, count)

    stream = Stream(DetectionReader(longest), workers)
    try:
        stream.begin(map(request, range(0, len(images), SCORED_AT_ONCE)))
        for read in stream:
            yield from detector_inputs(read, images, torch.device("cpu"))
    finally:
        stream.close()
