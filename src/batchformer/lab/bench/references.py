"""Each transform and preset of ours beside the torchvision transforms that do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from batchformer.lab.data import transforms as ours
from batchformer.lab.data.transforms import Transform

CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIGITS = ((0.3053,), (0.3761,))
#: Gaussian blur of at most two pixels, as ours reaches three deviations to each side.
BLUR, KERNEL = (0.1, 2.0), 13


@dataclass(frozen=True)
class Pair:
    """Two ways to the same images.

    Args:
        name: as ours is called.
        ours: for a whole batch.
        theirs: of torchvision, for one image.
        shape: (C, H, W) of the images.
    """

    name: str
    ours: Transform
    theirs: Callable[[Tensor], Tensor]
    shape: tuple[int, int, int]


def pairs(side: int = 32) -> list[Pair]:
    """All of them, on square images of this side; digits are 8x8 with one channel."""
    made = {**_transforms(side), **_presets(side)}
    large = (3, side, side)
    found = [Pair(name, own, theirs, large) for name, (own, theirs) in made.items()]
    v2 = _v2()
    normal = _normalise(*DIGITS)
    shifted = v2.Compose([v2.RandomCrop(8, padding=1), normal])
    return [
        *found,
        Pair("digits_train", ours.digits_train(), shifted, (1, 8, 8)),
        Pair("digits_test", ours.digits_test(), normal, (1, 8, 8)),
    ]


def _v2() -> Any:
    from torchvision.transforms import v2

    return v2


def _transforms(side: int) -> dict[str, tuple[Transform, Any]]:
    v2 = _v2()
    # One erased square of a quarter of the image is the nearest that torchvision has to Cutout.
    erased = v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    blurred = v2.RandomApply([v2.GaussianBlur(KERNEL, BLUR)], 0.5)
    return {
        "RandomCrop": (ours.RandomCrop(4), v2.RandomCrop(side, padding=4)),
        "RandomFlip": (ours.RandomFlip(), v2.RandomHorizontalFlip()),
        "RandomRotation": (ours.RandomRotation(15), v2.RandomRotation(15)),
        "RandomResizedCrop": (ours.RandomResizedCrop(side), v2.RandomResizedCrop(side)),
        "Resize": (ours.Resize(side * 7 // 8), v2.Resize(side * 7 // 8)),
        "AutoAugment": (
            ours.AutoAugment("cifar10", 128),
            v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=128),
        ),
        "RandAugment": (ours.RandAugment(), v2.RandAugment()),
        "IncreasingRandAugment": (ours.IncreasingRandAugment(), v2.RandAugment(2, 9)),
        "ColorJitter": (ours.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)),
        "RandomGrey": (ours.RandomGrey(0.2), v2.RandomGrayscale(0.2)),
        "RandomSolarize": (ours.RandomSolarize(), v2.RandomSolarize(128, 0.5)),
        "GaussianBlur": (ours.GaussianBlur(BLUR, 0.5), blurred),
        "Cutout": (ours.Cutout(side // 2), erased),
        "Normalise": (ours.Normalise(*IMAGENET), _normalise(*IMAGENET)),
        # It acts on normalised images, so that the normalisation is timed with it.
        "RandomErasing": (
            ours.Compose((ours.Normalise(*IMAGENET), ours.RandomErasing())),
            v2.Compose([_normalise(*IMAGENET), v2.RandomErasing(0.25, value="random")]),
        ),
    }


def _presets(side: int) -> dict[str, tuple[Transform, Any]]:
    v2 = _v2()
    flip, normal = v2.RandomHorizontalFlip(), _normalise(*IMAGENET)
    policy = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=128)
    erased = v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    cifar = [v2.RandomCrop(side, padding=4), flip, policy, erased, _normalise(*CIFAR)]
    imagenet = [v2.RandomResizedCrop(side), flip, v2.ColorJitter(0.4, 0.4, 0.4), normal]
    moco = [
        v2.RandomResizedCrop(side, scale=(0.2, 1.0)),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(KERNEL, BLUR)], 0.5),
        flip,
        normal,
    ]
    byol = [
        v2.RandomResizedCrop(side, scale=(0.2, 1.0)),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.GaussianBlur(KERNEL, BLUR),
        flip,
        normal,
    ]
    domain = [
        v2.RandomResizedCrop(side, scale=(0.7, 1.0)),
        flip,
        v2.ColorJitter(0.3, 0.3, 0.3, 0.3),
        v2.RandomGrayscale(0.1),
        normal,
    ]
    # Another size than that of the images: torchvision returns those as they are.
    smaller, smallest = side * 7 // 8, side * 3 // 4
    tested = [v2.Resize(smaller), v2.CenterCrop(smallest), normal]
    return {
        "cifar_train": (ours.cifar_train(cutout=side // 2), v2.Compose(cifar)),
        "cifar_test": (ours.cifar_test(), _normalise(*CIFAR)),
        "imagenet_train": (ours.imagenet_train(side), v2.Compose(imagenet)),
        "imagenet_test": (ours.imagenet_test(smallest, smaller), v2.Compose(tested)),
        "moco_v2": (ours.moco_v2(side), v2.Compose(moco)),
        "byol": (ours.byol(side), v2.Compose(byol)),
        "domain_train": (ours.domain_train(side), v2.Compose(domain)),
        "domain_test": (
            ours.domain_test(smaller),
            v2.Compose([v2.Resize((smaller, smaller)), normal]),
        ),
    }


def _normalise(mean: tuple[float, ...], std: tuple[float, ...]) -> Any:
    import torch

    v2 = _v2()
    return v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])
