"""What holds for every transform: rows are independent, inputs stay, devices agree."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data import transforms
from batchformer.lab.data.transforms import (
    CentreCrop,
    Compose,
    Cutout,
    GaussianBlur,
    Normalise,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    Transform,
)
from batchformer.lab.data.transforms.base import uniform_float, uniform_int
from helpers.pixels import images, numbers

NORMALISE = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
RANDOM: dict[str, Transform] = {
    "crop": RandomCrop(),
    "flip": RandomFlip(),
    "autoaugment": transforms.AutoAugment(),
    "randaugment": transforms.RandAugment(3, 20),
    "randaugment of timm": transforms.IncreasingRandAugment(p=1.0),
    "cutout": Cutout(8),
    "jitter": transforms.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    "grey": transforms.RandomGrey(0.5),
    "solarize": transforms.RandomSolarize(),
    "rotation": transforms.RandomRotation(15),
    "blur": GaussianBlur(),
    "resized crop": RandomResizedCrop(16),
    "erasing": Compose((NORMALISE, transforms.RandomErasing(0.5))),
    "cifar_train": transforms.cifar_train(),
    "moco_v2": transforms.moco_v2(),
}
FIXED: dict[str, Transform] = {
    "normalise": NORMALISE,
    "resize": Resize(15),
    "centre crop": CentreCrop(9),
    "domain_test": transforms.domain_test(16),
}
ALL = {**RANDOM, **FIXED}
ANY_TYPE = {"crop", "flip", "cutout", "normalise", "centre crop", "cifar_train", "erasing"}


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=5)
@given(cuts=st.sets(st.integers(1, 15)), order=st.permutations(range(16)), seed=st.integers(0, 999))
def test_rows_may_be_grouped_in_any_way(
    name: str, cuts: set[int], order: list[int], seed: int
) -> None:
    transform = ALL[name]
    x, u = images(16, 3, 20, 24, seed), numbers(16, transform.draws, seed)
    together = transform(x, u)
    ends = [0, *sorted(cuts), 16]
    rows = torch.tensor(order)
    parts = [rows[a:b] for a, b in pairwise(ends)]
    apart = torch.cat([transform(x[part], u[part]) for part in parts])
    assert torch.equal(apart, together[rows])


@pytest.mark.parametrize("name", ALL)
def test_pure_and_without_reading_the_images(name: str) -> None:
    """Same inputs, same images, whatever other generators did; inputs stay as they were.

    Images without values, on "meta": whatever would wait for a device to know one fails there.
    """
    transform = ALL[name]
    x, u = images(32, 3, 20, 24), numbers(32, transform.draws)
    x_before, u_before = x.clone(), u.clone()
    first = transform(x, u)
    torch.manual_seed(1)
    assert torch.equal(transform(x, u), first)
    assert torch.equal(x, x_before) and torch.equal(u, u_before)
    without_values = transform(x.to("meta"), u)
    assert without_values.device.type == "meta"
    for out, rows in ((without_values, 32), (transform(x[:0], u[:0]), 0)):
        assert out.shape == (rows, *first.shape[1:]) and out.dtype == first.dtype
    if name in RANDOM:
        assert not torch.equal(transform(x, numbers(32, transform.draws, seed=1)), first)


@pytest.mark.parametrize("name", ALL)
def test_wrong_numbers_and_images_are_refused(name: str) -> None:
    transform, x = ALL[name], images(4, 3, 20, 24)
    if name in RANDOM:
        for wrong in (
            numbers(4, transform.draws + 1),
            numbers(3, transform.draws),
            numbers(4, transform.draws).float(),
        ):
            with pytest.raises(ValueError, match=rf"needs u of shape \(4, {transform.draws}\)"):
                transform(x, wrong)
    if name not in ANY_TYPE:
        with pytest.raises(TypeError, match="uint8"):
            transform(torch.zeros(2, 3, 20, 24), numbers(2, transform.draws))


@settings(max_examples=30)
@given(st.integers(1, 10**9), st.floats(-100, 100), st.floats(0, 100))
def test_uniform_numbers_keep_their_bounds(count: int, low: float, extent: float) -> None:
    largest = 1 - 2.0**-53  # the largest number that torch.rand gives in float64
    u = torch.tensor([0.0, 0.5, largest], dtype=torch.float64)
    assert uniform_int(u, count).tolist() == [0, count // 2, count - 1]
    assert uniform_int(u, torch.tensor([1, 7, 2])).tolist() == [0, 3, 1]
    out = uniform_float(u[:2], low, low + extent)
    assert out.tolist() == pytest.approx([low, low + extent / 2])


def test_each_transform_is_given_its_own_columns() -> None:
    composed = Compose((RandomCrop(), RandomFlip(), CentreCrop(20), Cutout()))
    assert composed.draws == 5
    x, u = images(16), numbers(16, 5)
    by_hand = RandomFlip()(RandomCrop()(x, u[:, :2]), u[:, 2:3])
    by_hand = Cutout()(by_hand[..., 6:26, 6:26], u[:, 3:])
    assert torch.equal(composed(x, u), by_hand)


def test_numbers_may_be_left_out_where_nothing_is_random() -> None:
    x = images(4)
    fixed = Compose((Resize(20), CentreCrop(16), NORMALISE))
    assert fixed.draws == 0
    assert torch.equal(fixed(x), NORMALISE(CentreCrop(16)(Resize(20)(x))))
    with pytest.raises(ValueError, match=r"Compose needs u of shape \(4, 1\)"):
        Compose((RandomFlip(),))(x)


def test_normalisation_is_torchvisions_from_uint8_and_float() -> None:
    x = images(5, 3, 8, 9)
    scaled = V.to_dtype(x, torch.float32, scale=True)
    reference = V.normalize(scaled, list(NORMALISE.mean), list(NORMALISE.std))
    torch.testing.assert_close(NORMALISE(x), reference)
    torch.testing.assert_close(NORMALISE(scaled), reference)
    assert (
        NORMALISE(scaled.double()).dtype == torch.float64 and transforms.cifar_test() == NORMALISE
    )
    with pytest.raises(ValueError, match="x has 1 channels"):
        NORMALISE(torch.zeros(1, 1, 2, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("name", [*ALL, "digits_train"])
def test_devices_agree_to_the_bit_without_waiting(name: str, precision: str) -> None:
    """For every transform, also where matrix products use TF32; nothing synchronises."""
    transform = {**ALL, "digits_train": transforms.digits_train()}[name]
    x = images(512, 1 if name == "digits_train" else 3, 40, 32)
    u = numbers(512, transform.draws)
    on_cpu, on_gpu = transform(x, u), x.cuda()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = transform(on_gpu, u)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.set_float32_matmul_precision(before)
    assert torch.equal(out.cpu(), on_cpu)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_large_images_agree_to_the_bit() -> None:
    """Parameters of this size leave from page-locked memory, and samples go in slices."""
    transform = Compose((RandomResizedCrop(224), GaussianBlur(p=1.0)))
    x, u = images(96, 3, 256, 256), numbers(96, transform.draws)
    assert torch.equal(transform(x.cuda(), u).cpu(), transform(x, u))
