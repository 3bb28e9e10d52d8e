"""Augmentation and scores of domains, as the protocols list them."""

from __future__ import annotations

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
    ColorJitter,
    Compose,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Transform,
    digits_test,
    digits_train,
)
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.domains import (
    score,
    scored_file_view,
    scored_view,
    training_file_view,
    training_view,
)


def steps(transform: Transform) -> tuple[Transform, ...]:
    assert isinstance(transform, Compose)
    return transform.transforms


def test_the_protocol_of_generalization() -> None:
    config = DomainConfig(size=160)
    geometry, transform = training_file_view(config)
    assert geometry == framing.RandomResizedCrop(160, scale=(0.7, 1.0))
    colours = (RandomFlip(), ColorJitter(0.3, 0.3, 0.3, 0.3), RandomGrey(0.1), IMAGENET)
    assert steps(transform) == colours
    crop = RandomResizedCrop(160, scale=(0.7, 1.0))
    assert steps(training_view(config)) == (crop, *colours)


def test_without_grey() -> None:
    for view in (training_view, lambda c: training_file_view(c)[1]):
        parts = steps(view(DomainConfig(augment="scale")))
        assert not any(isinstance(part, RandomGrey) for part in parts)
        assert any(isinstance(part, ColorJitter) for part in parts)


def test_the_middle_of_the_image() -> None:
    config = DomainConfig(augment="centre")
    geometry, transform = training_file_view(config)
    assert geometry == framing.ResizeCentreCrop(224, 256)
    assert steps(transform) == (RandomFlip(), IMAGENET)
    assert scored_file_view(config) == (geometry, IMAGENET)
    assert not any(isinstance(p, RandomResizedCrop) for p in steps(training_view(config)))


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
    assert (scored_view(config)(x, nothing) - expected).abs().max() < level
    geometry, transform = scored_file_view(config)
    framed = torch.stack([geometry(image, row) for image, row in zip(x, nothing, strict=True)])
    assert (transform(framed, nothing) - expected).abs().max() < level


def test_the_digits_have_their_own() -> None:
    config = DomainConfig(name="rotated_digits", augment="shift", size=16)
    assert training_view(config) == digits_train() and scored_view(config) == digits_test()


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
