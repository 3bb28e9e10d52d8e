"""What holds for every transform: rows are independent, inputs stay, devices agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.transforms import (
    AutoAugment,
    CentreCrop,
    ColorJitter,
    Compose,
    Cutout,
    GaussianBlur,
    Normalise,
    RandAugment,
    RandomCrop,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    Resize,
    Transform,
    cifar_train,
    digits_train,
    domain_test,
    domain_train,
    imagenet_test,
    imagenet_train,
    moco_v2,
)
from batchformer.lab.data.transforms.base import columns, require_uint8, to_device_async

HALF = ((0.5,) * 3, (0.5,) * 3)
RANDOM: dict[str, Transform] = {
    "crop": RandomCrop(),
    "flip": RandomFlip(),
    "autoaugment cifar10": AutoAugment(),
    "autoaugment imagenet": AutoAugment("imagenet"),
    "randaugment": RandAugment(3, 20),
    "cutout": Cutout(8),
    "jitter": ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    "grey": RandomGrey(0.5),
    "solarize": RandomSolarize(),
    "rotation": RandomRotation(15),
    "blur": GaussianBlur(),
    "resized crop": RandomResizedCrop(16),
    "cifar_train": cifar_train(),
    "imagenet_train": imagenet_train(16),
    "moco_v2": moco_v2(16),
    "domain_train": domain_train(16),
}
FIXED: dict[str, Transform] = {
    "normalise": Normalise(*HALF),
    "resize": Resize(15),
    "centre crop": CentreCrop(9),
    "imagenet_test": imagenet_test(16, 18),
    "domain_test": domain_test(16),
}
ALL = {**RANDOM, **FIXED}
Maker = Callable[..., Tensor]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, 15)), order=st.permutations(range(16)), seed=st.integers(0, 999))
def test_rows_may_be_grouped_in_any_way(
    name: str, cuts: set[int], order: list[int], seed: int, images: Maker, numbers: Maker
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
def test_pure(name: str, images: Maker, numbers: Maker) -> None:
    """Same inputs, same images, whatever other generators did; inputs stay as they were."""
    transform = ALL[name]
    x, u = images(32, 3, 20, 24), numbers(32, transform.draws)
    x_before, u_before = x.clone(), u.clone()
    first = transform(x, u)
    torch.manual_seed(1)
    assert torch.equal(transform(x, u), first)
    assert torch.equal(x, x_before) and torch.equal(u, u_before)


@pytest.mark.parametrize("name", RANDOM)
def test_other_numbers_give_other_images(name: str, images: Maker, numbers: Maker) -> None:
    transform = RANDOM[name]
    x = images(32, 3, 20, 24)
    a, b = (transform(x, numbers(32, transform.draws, seed)) for seed in (0, 1))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("name", ALL)
def test_an_empty_batch_stays_empty(name: str, numbers: Maker) -> None:
    transform = ALL[name]
    full = transform(torch.zeros(1, 3, 20, 24, dtype=torch.uint8), numbers(1, transform.draws))
    empty = torch.zeros(0, 3, 20, 24, dtype=torch.uint8)
    out = transform(empty, numbers(0, transform.draws))
    assert out.shape == (0, *full.shape[1:]) and out.dtype == full.dtype


@pytest.mark.parametrize("name", RANDOM)
def test_wrong_numbers_are_refused(name: str, images: Maker, numbers: Maker) -> None:
    transform = RANDOM[name]
    x = images(4, 3, 20, 24)
    for wrong in (
        numbers(4, transform.draws + 1),
        numbers(3, transform.draws),
        numbers(4, transform.draws).float(),
    ):
        with pytest.raises(ValueError, match=rf"needs u of shape \(4, {transform.draws}\)"):
            transform(x, wrong)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_read_from_the_images(name: str, images: Maker, numbers: Maker) -> None:
    """Images without values: whatever would wait for a device to know one fails here."""
    transform = ALL[name]
    x, u = images(32, 3, 20, 24), numbers(32, transform.draws)
    out = transform(x.to("meta"), u)
    expected = transform(x, u)
    assert out.device.type == "meta"
    assert out.shape == expected.shape and out.dtype == expected.dtype


def test_columns_are_those_of_the_numbers(images: Maker, numbers: Maker) -> None:
    u = numbers(4, 2)
    a, b = columns(RandomCrop(), images(4), u)
    assert torch.equal(a, u[:, 0]) and torch.equal(b, u[:, 1])


@pytest.mark.parametrize(
    "name",
    sorted(set(ALL) - {"crop", "flip", "cutout", "normalise", "centre crop"} - {"cifar_train"}),
)
def test_what_needs_grey_levels_says_so(name: str, numbers: Maker) -> None:
    transform = ALL[name]
    with pytest.raises(TypeError, match="uint8"):
        transform(torch.zeros(2, 3, 20, 24), numbers(2, transform.draws))


def test_grey_levels_pass() -> None:
    require_uint8("It", torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(TypeError, match="It acts on uint8 images"):
        require_uint8("It", torch.zeros(1))


def test_sent_to_where_it_is_stays() -> None:
    t = torch.arange(3)
    assert to_device_async(t, torch.device("cpu")) is t


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("name", [*ALL, "digits_train"])
def test_devices_agree_to_the_bit_without_waiting(
    name: str, precision: str, images: Maker, numbers: Maker
) -> None:
    """For every transform, also where matrix products use TF32; nothing synchronises."""
    transform = {**ALL, "digits_train": digits_train()}[name]
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
def test_large_images_agree_to_the_bit(images: Maker, numbers: Maker) -> None:
    """Parameters of this size leave from page-locked memory, and samples go in slices."""
    transform = Compose((RandomResizedCrop(224), GaussianBlur(p=1.0)))
    x, u = images(96, 3, 256, 256), numbers(96, transform.draws)
    assert torch.equal(transform(x.cuda(), u).cpu(), transform(x, u))
