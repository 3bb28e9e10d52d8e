"""Weighted sums, resampling, crops and blur: exact, and torchvision's to one grey level."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import RandomResizedCrop as Reference
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.feeds.framing import random_window
from batchformer.lab.data.transforms import resize as module
from batchformer.lab.data.transforms.resize import (
    CentreCrop,
    GaussianBlur,
    RandomResizedCrop,
    Resize,
    Taps,
    central_box,
    gaussian_blur,
    random_boxes,
    resize,
    resized_crop,
    shorter_side,
    triangle,
    weighted_sums,
)
from helpers.pixels import images, numbers

Box = tuple[int, int, int, int]
RATIO = (3 / 4, 4 / 3)


def off_by(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours.int() - theirs.int()).abs()


# Weighted sums, against whole numbers of Python.


def _taps(n: int, targets: int, length: int, count: int, seed: int) -> Taps:
    """Weights at random that add up to no more than 2**16, also one of 2**15, inside the axis."""
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(14, 17, (n,), generator=g)
    start = torch.randint(length - count + 1, (n, targets), generator=g)
    share = torch.rand(n, targets, count, dtype=torch.float64, generator=g)
    share = share / share.sum(2, keepdim=True)
    weight = (share * 2.0 ** bits.view(-1, 1, 1)).floor().clamp(max=2**15).int()
    weight[:, 0] = 0
    weight[:, 0, 0] = 2**14
    return Taps(start, weight, bits)


def _by_hand(x: Tensor, taps: Taps) -> Tensor:
    """Along the last axis, one target at a time, in int64."""
    rows = []
    for image, start, weight, bits in zip(x.long(), *taps, strict=True):
        targets = [
            (image[..., s : s + len(w)] * w).sum(-1) for s, w in zip(start, weight, strict=True)
        ]
        rows.append((torch.stack(targets, -1) + (1 << (int(bits) - 1))) >> int(bits))
    return torch.stack(rows).clamp(max=255).to(torch.uint8)


@settings(max_examples=15)
@given(
    channels=st.integers(1, 4),
    height=st.integers(5, 20),
    width=st.integers(5, 20),
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    count=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_sums_are_exact(
    channels: int,
    height: int,
    width: int,
    rows: int,
    columns: int,
    count: int,
    seed: int,
) -> None:
    x = images(5, channels, height, width, seed)
    across, down = _taps(5, columns, width, count, seed), _taps(5, rows, height, count, seed + 1)
    reference = _by_hand(_by_hand(x, across).transpose(2, 3), down).transpose(2, 3)
    out = weighted_sums(x, across, down)
    assert out.is_contiguous() and torch.equal(out, reference)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # settings of matrix products do not matter
    with torch.autocast("cpu", torch.bfloat16):
        again = weighted_sums(x, across, down)
    torch.set_float32_matmul_precision(before)
    assert torch.equal(again, reference)


def test_white_stays_white_with_the_largest_sums() -> None:
    """Sums of 255 * 2**16 are the largest that there are."""
    x = torch.full((1, 1, 64, 64), 255, dtype=torch.uint8)
    weight = torch.full((1, 3, 64), 2**16 // 64, dtype=torch.int32)
    taps = Taps(torch.zeros(1, 3, dtype=torch.long), weight, torch.tensor([16]))
    assert (weighted_sums(x, taps, taps) == 255).all()
    # Weights of a large reduction are rounded up, and add up to a little more than one.
    assert (resize(torch.full((1, 1, 768, 4), 255, dtype=torch.uint8), (3, 4)) == 255).all()


def test_parts_of_weights_have_at_most_eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that TF32 and bfloat16 hold them: rounding both factors changes nothing."""
    seen: list[Tensor] = []
    product, added = torch.bmm, torch.baddbmm

    def note(a: Tensor, b: Tensor) -> Tensor:
        seen.extend((a, b))
        return product(a, b)

    def note_added(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        seen.extend((a, b))
        return added(c, a, b)

    monkeypatch.setattr(torch, "bmm", note)
    monkeypatch.setattr(torch, "baddbmm", note_added)
    weight = torch.arange(2**15 + 1, dtype=torch.int32).view(1, -1, 1)
    taps = Taps(torch.zeros(1, 2**15 + 1, dtype=torch.long), weight, torch.tensor([15]))
    x = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    module._along_last(x, taps)
    assert len(seen) == 4
    for factor in seen:
        assert torch.equal(factor.bfloat16().float(), factor)
    assert torch.equal(seen[1] + seen[3], weight.view(1, 1, -1).float())


def test_slices_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(7)
    across, down = _taps(7, 20, 32, 5, 0), _taps(7, 18, 32, 5, 1)
    whole = weighted_sums(x, across, down)
    sizes = []
    along = module._along_last

    def note(part: Tensor, taps: Taps) -> Tensor:
        sizes.append(len(part))
        return along(part, taps)

    monkeypatch.setattr(module, "_PIXELS_AT_ONCE", 3 * 3 * 32 * 32)
    monkeypatch.setattr(module, "_along_last", note)
    assert torch.equal(weighted_sums(x, across, down), whole)
    assert sizes == [3, 3, 3, 3, 1, 1]


# Resampling.


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


@settings(max_examples=25)
@given(
    case=_boxes(1),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    channels=st.sampled_from([1, 3]),
)
def test_any_boxes_to_any_size(
    case: tuple[int, int, list[Box]], rows: int, columns: int, channels: int
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


def test_the_whole_image_at_its_own_size_is_itself() -> None:
    x = images(4, 3, 17, 23)
    assert torch.equal(resize(x, (17, 23)), x)
    box = torch.tensor([[3, 5, 10, 12]]).expand(4, -1)
    assert torch.equal(resized_crop(x, box, (10, 12)), x[..., 3:13, 5:17])


@settings(max_examples=50)
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


@pytest.mark.parametrize(
    ("height", "size"), [(30, 40), (40, 20), (40, 97), (64, 40), (64, (8, 8)), (30, (25, 50))]
)
def test_resize_whole_batches(height: int, size: int | tuple[int, int]) -> None:
    x = images(5, 3, height, 41)
    reference = V.resize(x, [size] if isinstance(size, int) else list(size), antialias=True)
    out = Resize(size)(x)
    assert out.shape == reference.shape and off_by(out, reference).max() <= 1


@settings(max_examples=50)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 300))
def test_shorter_side_is_torchvisions(height: int, width: int, size: int) -> None:
    from torchvision.transforms.functional import _compute_resized_output_size

    assert list(shorter_side(height, width, size)) == _compute_resized_output_size(
        (height, width), [size]
    )


def test_centre_crop() -> None:
    for shape in ((16, 16), (17, 19), (18, 31)):
        x = images(3, 3, *shape)
        for size in (1, 2, 7, 16):
            assert torch.equal(CentreCrop(size)(x), V.center_crop(x, [size, size]))
    with pytest.raises(ValueError, match="images of 12 x 40 have no central square of 13"):
        CentreCrop(13)(images(1, 3, 12, 40))


@settings(max_examples=25)
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


# Random resized crop.


@settings(max_examples=50)
@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    low=st.floats(0.01, 1.0),
    seed=st.integers(0, 10**6),
)
def test_boxes_are_the_windows_of_single_images(
    height: int, width: int, low: float, seed: int
) -> None:
    """`random_window` is the published loop, with plain numbers and one image at a time."""
    u = numbers(20, 22, seed)
    boxes = random_boxes(u, height, width, (low, 1.0), RATIO)
    assert boxes.tolist() == [
        list(random_window(height, width, row, (low, 1.0), RATIO)) for row in u
    ]
    top, left, h, w = boxes.unbind(1)
    assert (top >= 0).all() and (top + h <= height).all() and (h > 0).all()
    assert (left >= 0).all() and (left + w <= width).all() and (w > 0).all()


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(100, 300, (0, 83, 100, 133)), (300, 100, (83, 0, 133, 100)), (80, 90, (0, 0, 80, 90))],
)
def test_central_box(height: int, width: int, expected: tuple[int, int, int, int]) -> None:
    assert central_box(height, width, RATIO) == expected
    # torchvision draws the central one when no area fits.
    image = torch.zeros(3, height, width)
    assert Reference.get_params(image, [4.0, 5.0], list(RATIO)) == expected


def test_a_random_resized_crop_is_its_boxes_resampled() -> None:
    x, u = images(24, 3, 40, 52), numbers(24, 22)
    boxes = random_boxes(u, 40, 52, (0.2, 1.0), RATIO)
    expected = resized_crop(x, boxes, (32, 32))
    assert torch.equal(RandomResizedCrop(32, scale=(0.2, 1.0))(x, u), expected)


# Gaussian blur.


@settings(max_examples=20)
@given(
    sigma=st.lists(st.floats(0.1, 4.0), min_size=4, max_size=4),
    kernel=st.sampled_from([1, 3, 5, 13, 23]),
    height=st.integers(12, 30),
    width=st.integers(12, 30),
    channels=st.sampled_from([1, 3]),
)
def test_within_one_grey_level_of_torchvision(
    sigma: list[float], kernel: int, height: int, width: int, channels: int
) -> None:
    x = images(4, channels, height, width)
    before = x.clone()
    out = gaussian_blur(x, torch.tensor(sigma, dtype=torch.float64), kernel)
    assert torch.equal(x, before)
    reference = torch.stack(
        [V.gaussian_blur(i, [kernel, kernel], [s, s]) for i, s in zip(x, sigma, strict=True)]
    )
    assert out.shape == x.shape and off_by(out, reference).max() <= 1


def test_the_narrowest_is_the_identity_and_constants_stay() -> None:
    x = images(4)
    assert torch.equal(gaussian_blur(x, torch.full((4,), 0.1), 13), x)
    flat = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(-1, 1, 13, 13)
    assert torch.equal(gaussian_blur(flat, torch.full((256,), 2.0), 23), flat)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_the_chosen_are_blurred_by_their_own_sigma(p: float) -> None:
    x, u = images(60, 1, 14, 14), numbers(60, 2)
    out = GaussianBlur((0.5, 2.0), p)(x, u)
    chosen = u[:, 0] < p
    assert torch.equal(out[~chosen], x[~chosen])
    assert torch.equal(out[chosen], gaussian_blur(x[chosen], 0.5 + 1.5 * u[chosen, 1], 13))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="smallest first"):
        GaussianBlur(sigma=(2.0, 0.1))
    with pytest.raises(ValueError, match=r"images of 6 x 40 are too small .* 6 pixels"):
        gaussian_blur(images(1, 3, 6, 40), torch.ones(1), 13)
