"""Augmentation and scores of domains, as the protocols list them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix
from torchvision.transforms import v2

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.transforms import (
    IMAGENET,
    CentreCrop,
    ColorJitter,
    Compose,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Resize,
)
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.domains import score, scored_view, training_view
from batchformer.lab.tasks.image_files import in_memory

GREY, JITTER = RandomGrey(0.1), ColorJitter(0.3, 0.3, 0.3, 0.3)
CROP = framing.RandomResizedCrop(224, scale=(0.7, 1.0))
MIDDLE = framing.ResizeCentreCrop(224, 256)


@pytest.mark.parametrize(
    ("augment", "geometry", "colours"),
    [("domain", CROP, (JITTER, GREY)), ("scale", CROP, (JITTER,)), ("centre", MIDDLE, ())],
)
def test_training_images(augment: Any, geometry: Any, colours: Any) -> None:
    wanted = (geometry, Compose((RandomFlip(), *colours, IMAGENET)))
    assert training_view(DomainConfig(augment=augment)) == wanted


def test_a_view_in_memory_has_the_crop_of_the_files() -> None:
    view = (framing.RandomResizedCrop(16, (0.7, 1.0), (0.5, 2.0)), Compose((RandomFlip(), JITTER)))
    crop = RandomResizedCrop(16, (0.7, 1.0), (0.5, 2.0))
    assert in_memory(view) == Compose((crop, RandomFlip(), JITTER))
    middle = Compose((Resize(256), CentreCrop(224), IMAGENET))
    assert in_memory((MIDDLE, IMAGENET)) == middle


@pytest.mark.parametrize("augment", ["domain", "centre"])
def test_scored_images_are_those_of_torchvision(augment: str) -> None:
    """In memory and from files, within a grey level."""
    config = DomainConfig(augment=augment, size=28)  # type: ignore[arg-type]
    x = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8)
    sizes = {"domain": [v2.Resize((28, 28))], "centre": [v2.Resize(32), v2.CenterCrop(28)]}
    wanted = v2.Compose(sizes[augment])(x)
    expected = IMAGENET(wanted)
    nothing = torch.empty(3, 0, dtype=torch.float64)
    level = 1 / 255 / 0.224 + 1e-4
    assert (in_memory(scored_view(config))(x, nothing) - expected).abs().max() < level
    geometry, transform = scored_view(config)
    framed = torch.stack([geometry(image, row) for image, row in zip(x, nothing, strict=True)])
    assert (transform(framed, nothing) - expected).abs().max() < level


class Given(Method):
    """Logits are the images themselves."""

    def predict(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def test_against_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(57, 5, generator=draw)
    labels = torch.randint(4, (57,), generator=draw)  # class 4 has no image
    batches = zip(logits.view(57, 5, 1, 1).split(10), labels.split(10), strict=True)
    got = score(Given(), OptimizerStep(TrainConfig(), torch.device("cpu")), batches, 5)
    micro = multiclass_accuracy(logits, labels, 5, average="micro")
    assert got.accuracy == pytest.approx(100 * float(micro), rel=1e-6)
    assert torch.equal(got.confusion, multiclass_confusion_matrix(logits, labels, 5))
    assert got.loss == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)
    each = multiclass_accuracy(logits, labels, 5, average=None)
    assert got.per_class[:4].tolist() == pytest.approx((100 * each[:4]).tolist())
    assert got.per_class[4].isnan()
    assert got.mean_class == pytest.approx(100 * float(each[:4].mean()))
    assert torch.equal(got.correct, logits.argmax(1) == labels)


def test_nothing_to_score() -> None:
    with pytest.raises(ValueError, match="no image"):
        score(Given(), OptimizerStep(TrainConfig(), torch.device("cpu")), [], 5)
