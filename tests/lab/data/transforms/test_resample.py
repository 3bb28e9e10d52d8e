from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.resize import (
    CentreCrop,
    Resize,
    resize,
    resized_crop,
    shorter_side,
    triangle,
)

Maker = Callable[..., Tensor]


Box = tuple[int, int, int, int]


@st.composite
def _boxes(draw: st.DrawFn, least: int) -> tuple[int, int, list[Box]]:
    """Images of up to 70 x 70, and four boxes inside them with sides of at least `least`."""
    height, width = draw(st.integers(least, 70)), draw(st.integers(least, 70))
    boxes = []
    for _ in range(4):
        h, w = draw(st.integers(least, height)), draw(st.integers(least, width))
        boxes.append((draw(st.integers(0, height - h)), draw(st.integers(0, width - w)), h, w))
    return height, width, boxes


def _by_definition(length: int, targets: int) -> Tensor:
    """(targets, length) float64: triangles about the targets' centres, each adding up to one."""
    centre = (torch.arange(targets).double()[:, None] + 0.5) * length / targets
    distance = (torch.arange(length) + 0.5 - centre).abs() / max(1, length / targets)
    weight = (1 - distance).clamp(min=0)
    return weight / weight.sum(1, keepdim=True)


@settings(max_examples=60, deadline=None)
@given(
    case=_boxes(1),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    channels=st.sampled_from([1, 3]),
)
def test_any_boxes_to_any_size(
    case: tuple[int, int, list[Box]], rows: int, columns: int, channels: int, images: Maker
) -> None:
    """Enlarged, reduced by up to 70, and single pixels: one grey level from exact resampling."""
    height, width, boxes = case
    x = images(4, channels, height, width)
    before = x.clone()
    out = resized_crop(x, torch.tensor(boxes), (rows, columns))
    assert torch.equal(x, before)
    for image, ours, (top, left, h, w) in zip(x, out, boxes, strict=True):
        crop = image[:, top : top + h, left : left + w].double()
        exact = _by_definition(h, rows) @ crop @ _by_definition(w, columns).T
        assert (ours - exact.round()).abs().max() <= 1


# torch's own resize fails, or repeats the first row, where images are one pixel wide.
@settings(max_examples=60, deadline=None)
@given(
    case=_boxes(2),
    rows=st.integers(2, 40),
    columns=st.integers(2, 40),
    channels=st.sampled_from([1, 3]),
)
def test_any_boxes_are_within_one_grey_level_of_torchvision(
    case: tuple[int, int, list[Box]], rows: int, columns: int, channels: int, images: Maker
) -> None:
    height, width, boxes = case
    x = images(4, channels, height, width)
    out = resized_crop(x, torch.tensor(boxes), (rows, columns))
    size = [rows, columns]
    reference = torch.stack(
        [V.resized_crop(i, *b, size, antialias=True) for i, b in zip(x, boxes, strict=True)]
    )
    assert (out.int() - reference.int()).abs().max() <= 1


@pytest.mark.parametrize("size", [224, 96, 40])
def test_usual_sizes_are_torchvisions(size: int, images: Maker) -> None:
    """Equal where torchvision resizes in integers; where it does so in floats, which depends on its
    version and the processor, one pixel in eight or so is one grey level off."""
    g = torch.Generator().manual_seed(0)
    x = images(12, 3, 128, 160)
    sides = torch.stack([torch.randint(30, m + 1, (12,), generator=g) for m in (128, 160)], 1)
    room = torch.tensor([128, 160]) - sides + 1
    box = torch.cat([(torch.rand(12, 2, generator=g) * room).long(), sides], 1)
    out = resized_crop(x, box, (size, size))
    reference = torch.stack(
        [
            V.resized_crop(i, *b, [size, size], antialias=True)
            for i, b in zip(x, box.tolist(), strict=True)
        ]
    )
    difference = (out.int() - reference.int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 0.15


def test_the_whole_image_at_its_own_size_is_itself(images: Maker) -> None:
    x = images(4, 3, 17, 23)
    assert torch.equal(resize(x, (17, 23)), x)
    box = torch.tensor([[3, 5, 10, 12]]).expand(4, -1)
    assert torch.equal(resized_crop(x, box, (10, 12)), x[..., 3:13, 5:17])


def test_pixels_outside_the_box_play_no_part(images: Maker) -> None:
    x = images(4, 3, 20, 20)
    box = torch.tensor([[4, 6, 9, 11]]).expand(4, -1)
    other = 255 - x
    other[..., 4:13, 6:17] = x[..., 4:13, 6:17]
    assert torch.equal(resized_crop(x, box, (7, 30)), resized_crop(other, box, (7, 30)))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 300))
def test_weights_stay_exact(length: int, targets: int) -> None:
    """Within the bits that `weighted_sums` needs, and adding up to one."""
    taps = triangle(torch.tensor([7]), torch.tensor([length]), targets)
    total = taps.weight.sum(2)
    assert taps.weight.max() <= 2**15 and taps.weight.min() >= 0
    assert int(taps.bits) in (14, 15, 16)
    assert 255 * int(total.max()) + 2 ** (int(taps.bits) - 1) < 2**24
    assert (total / 2.0**taps.bits - 1).abs().max() <= taps.weight.shape[2] / 2 / 2.0**taps.bits
    end = taps.start + (taps.weight > 0).sum(2)
    assert taps.start.min() >= 7 and end.max() <= 7 + length


@pytest.mark.parametrize("height", [30, 40, 64])
@pytest.mark.parametrize("size", [20, 40, 97, (25, 50), (8, 8)])
def test_resize_whole_batches(height: int, size: int | tuple[int, int], images: Maker) -> None:
    x = images(5, 3, height, 41)
    reference = V.resize(x, [size] if isinstance(size, int) else list(size), antialias=True)
    out = Resize(size)(x)
    assert out.shape == reference.shape
    assert (out.int() - reference.int()).abs().max() <= 1


@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 300))
def test_shorter_side_is_torchvisions(height: int, width: int, size: int) -> None:
    from torchvision.transforms.functional import _compute_resized_output_size

    assert list(shorter_side(height, width, size)) == _compute_resized_output_size(
        (height, width), [size]
    )


@pytest.mark.parametrize("size", [1, 2, 7, 16])
@pytest.mark.parametrize("shape", [(16, 16), (17, 19), (18, 31)])
def test_centre_crop(size: int, shape: tuple[int, int], images: Maker) -> None:
    x = images(3, 3, *shape)
    assert torch.equal(CentreCrop(size)(x), V.center_crop(x, [size, size]))


def test_images_without_such_a_centre_are_refused(images: Maker) -> None:
    with pytest.raises(ValueError, match="images of 12 x 40 have no central square of 13"):
        CentreCrop(13)(images(1, 3, 12, 40))


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(2, 70),
    width=st.integers(2, 70),
    rows=st.integers(2, 60),
    columns=st.integers(2, 60),
    channels=st.sampled_from([1, 3]),
    channels_last=st.booleans(),
)
def test_torchs_kernel_gives_the_same_bits_where_it_is_used(
    height: int, width: int, rows: int, columns: int, channels: int, channels_last: bool
) -> None:
    """On the CPU whole images go through torch's kernel; on other devices through ours."""
    assume(height <= 4 * rows and width <= 4 * columns)
    draw = torch.Generator().manual_seed(height * 100 + width)
    x = torch.randint(256, (2, channels, height, width), generator=draw, dtype=torch.uint8)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    whole = torch.tensor([[0, 0, height, width]]).expand(2, 4)
    assert torch.equal(resize(x, (rows, columns)), resized_crop(x, whole, (rows, columns)))
