"""Weighted sums against whole numbers of Python's own kind, and their independence of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.transforms import resize as separable
from batchformer.lab.data.transforms.resize import Taps, weighted_sums

Maker = Callable[..., Tensor]


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


@settings(max_examples=30, deadline=None)
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
    images: Maker,
) -> None:
    x = images(5, channels, height, width, seed)
    across, down = _taps(5, columns, width, count, seed), _taps(5, rows, height, count, seed + 1)
    reference = _by_hand(_by_hand(x, across).transpose(2, 3), down).transpose(2, 3)
    out = weighted_sums(x, across, down)
    assert out.is_contiguous() and torch.equal(out, reference)


def test_white_stays_white_with_the_largest_sums() -> None:
    """Sums of 255 * 2**16 are the largest that there are."""
    x = torch.full((1, 1, 64, 64), 255, dtype=torch.uint8)
    weight = torch.full((1, 3, 64), 2**16 // 64, dtype=torch.int32)
    taps = Taps(torch.zeros(1, 3, dtype=torch.long), weight, torch.tensor([16]))
    assert (weighted_sums(x, taps, taps) == 255).all()
    one_less = taps._replace(weight=weight.index_add(2, torch.tensor([5]), -weight[..., :1] // 2))
    expected = (255 * (2**16 - 2**9) + 2**15) >> 16
    assert (weighted_sums(x, one_less, taps) == expected).all()


@pytest.fixture
def reduced_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("reduced_precision")
def test_settings_of_matrix_products_do_not_matter(images: Maker) -> None:
    x = images(6)
    across, down = _taps(6, 20, 32, 5, 0), _taps(6, 18, 32, 5, 1)
    reference = _by_hand(_by_hand(x, across).transpose(2, 3), down).transpose(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(weighted_sums(x, across, down), reference)


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
    separable._along_last(x, taps)
    assert len(seen) == 4
    for factor in seen:
        assert torch.equal(factor.bfloat16().float(), factor)
    assert torch.equal(seen[1] + seen[3], weight.view(1, 1, -1).float())


def test_slices_do_not_matter(images: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(7)
    across, down = _taps(7, 20, 32, 5, 0), _taps(7, 18, 32, 5, 1)
    whole = weighted_sums(x, across, down)
    sizes = []
    along = separable._along_last

    def note(part: Tensor, taps: Taps) -> Tensor:
        sizes.append(len(part))
        return along(part, taps)

    monkeypatch.setattr(separable, "_PIXELS_AT_ONCE", 3 * 3 * 32 * 32)
    monkeypatch.setattr(separable, "_along_last", note)
    assert torch.equal(weighted_sums(x, across, down), whole)
    assert sizes == [3, 3, 3, 3, 1, 1]
