from __future__ import annotations

import pytest
import torch
from torch import Tensor

from batchformer.data.transforms import (
    AutoAugment,
    Compose,
    Cutout,
    RandomCrop,
    RandomFlip,
    Transform,
    cifar_test,
    cifar_train,
    digits_test,
    digits_train,
)


def _images(n: int, channels: int, size: int) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, channels, size, size), generator=g, dtype=torch.uint8)


def test_compose_runs_in_order_on_one_generator() -> None:
    x = _images(16, 3, 32)
    generator = torch.Generator().manual_seed(5)
    by_hand = RandomFlip()(RandomCrop()(x, generator), generator)
    composed = Compose((RandomCrop(), RandomFlip()))(x, torch.Generator().manual_seed(5))
    assert torch.equal(composed, by_hand)


def test_cifar_train_is_the_published_order() -> None:
    x = _images(16, 3, 32)
    generator = torch.Generator().manual_seed(5)
    expected: Tensor = x
    for step in (RandomCrop(4), RandomFlip(0.5), AutoAugment(128), Cutout(16)):
        expected = step(expected, generator)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    out = cifar_train()(x, torch.Generator().manual_seed(5))
    torch.testing.assert_close(out, (expected / 255 - mean) / std)


@pytest.mark.parametrize(
    ("train", "test", "channels", "size"),
    [(cifar_train(), cifar_test(), 3, 32), (digits_train(), digits_test(), 1, 8)],
)
def test_presets_give_float_images_of_the_same_shape(
    train: Transform, test: Transform, channels: int, size: int
) -> None:
    x = _images(8, channels, size)
    for transform in (train, test):
        out = transform(x, torch.Generator().manual_seed(0))
        assert out.shape == x.shape
        assert out.dtype == torch.float32
        assert out.isfinite().all()


def test_digits_statistics_are_those_of_the_set() -> None:
    from sklearn.datasets import load_digits

    x = torch.from_numpy(load_digits().images / 16)
    preset = digits_test()
    assert preset.mean == pytest.approx((x.mean().item(),), abs=1e-4)
    assert preset.std == pytest.approx((x.std().item(),), abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", range(5))
def test_devices_agree_to_the_bit(seed: int) -> None:
    x = _images(512, 3, 32)
    x[::2] = x[::2] // 4 + 90  # leaves something to stretch and equalize
    on_cpu = cifar_train()(x, torch.Generator().manual_seed(seed))
    on_gpu = cifar_train()(x.cuda(), torch.Generator().manual_seed(seed))
    assert torch.equal(on_gpu.cpu(), on_cpu)
