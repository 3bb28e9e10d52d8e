"""Augmentation and normalisation of whole batches, on any device.

A transform is a pure function `transform(x, u)` of images (N, C, H, W) and of uniform numbers
(N, transform.draws), drawn in float64 on the CPU. One row of numbers belongs to one sample, so that
images are the same to the bit on every device and in every batch.

>>> import torch
>>> transform = Compose((RandomCrop(padding=1), RandomFlip()))
>>> x = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
>>> u = torch.rand(len(x), transform.draws, dtype=torch.float64)
>>> transform(x, u).shape
torch.Size([1, 1, 3, 3])
"""

from __future__ import annotations

from batchformer.lab.data.transforms.autoaugment import (
    AutoAugment,
    IncreasingRandAugment,
    RandAugment,
)
from batchformer.lab.data.transforms.base import Compose, Normalise, Transform
from batchformer.lab.data.transforms.color import ColorJitter, RandomGrey, RandomSolarize
from batchformer.lab.data.transforms.erase import Cutout, RandomErasing
from batchformer.lab.data.transforms.geometry import RandomCrop, RandomFlip, RandomRotation
from batchformer.lab.data.transforms.presets import (
    CONTRAST_SCALE,
    IMAGENET,
    byol,
    cifar_test,
    cifar_train,
    digits_test,
    digits_train,
    domain_test,
    moco_v2,
)
from batchformer.lab.data.transforms.resize import (
    CentreCrop,
    GaussianBlur,
    RandomResizedCrop,
    Resize,
)

__all__ = [
    "CONTRAST_SCALE",
    "IMAGENET",
    "AutoAugment",
    "CentreCrop",
    "ColorJitter",
    "Compose",
    "Cutout",
    "GaussianBlur",
    "IncreasingRandAugment",
    "Normalise",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomGrey",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "Resize",
    "Transform",
    "byol",
    "cifar_test",
    "cifar_train",
    "digits_test",
    "digits_train",
    "domain_test",
    "moco_v2",
]
