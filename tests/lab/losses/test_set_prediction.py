"""The loss of DETR's family against transformers', which goes layer by layer and image by image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from batchformer.lab.losses.set_prediction import Targets, matched, set_loss, total

transformers = pytest.importorskip("transformers")
LOSS_MAPPING = pytest.importorskip("transformers.loss.loss_utils").LOSS_MAPPING
LAYERS, QUERIES, CLASSES = 3, 6, 4
KINDS = {"Detr": False, "ConditionalDetr": True, "DeformableDetr": True}
COUNTS = (2, 0, 5)


def predictions(focal: bool, images: int = len(COUNTS)) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(LAYERS, images, QUERIES, CLASSES + (not focal), generator=draw)
    boxes = torch.rand(LAYERS, images, QUERIES, 4, generator=draw) * 0.4 + 0.1
    return logits.requires_grad_(), boxes.requires_grad_()


def objects(counts: tuple[int, ...] = COUNTS) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        {
            "class_labels": torch.randint(CLASSES, (n,), generator=draw),
            "boxes": torch.rand(n, 4, generator=draw) * 0.3 + 0.2,
        }
        for n in counts
    ]


def targets(counts: tuple[int, ...] = COUNTS) -> Targets:
    classes, boxes = (
        pad_sequence([each[name] for each in objects(counts)], batch_first=True)
        for name in ("class_labels", "boxes")
    )
    return Targets(classes, boxes, counts, sum(counts) / len(counts))


def of_transformers(kind: str, logits: Tensor, boxes: Tensor, wanted: list[Any]) -> Any:
    """Its loss and parts, with the authors' weight 2 of the focal loss, where it has 1."""
    config = getattr(transformers, f"{kind}Config")(
        num_labels=CLASSES, auxiliary_loss=True, decoder_layers=LAYERS
    )
    config.class_cost = 2 if KINDS[kind] else 1
    function = LOSS_MAPPING[f"{kind.removeprefix('Detr')}ForObjectDetection"]
    loss, parts, _ = function(
        logits[-1], wanted, torch.device("cpu"), boxes[-1], config, logits, boxes
    )
    if KINDS[kind]:
        loss = loss + sum(value for key, value in parts.items() if key.startswith("loss_ce"))
    return loss, parts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 9)], ids=["few", "more than queries"])
def test_losses_and_gradients_are_transformers_own(kind: str, counts: tuple[int, ...]) -> None:
    focal = KINDS[kind]
    inputs = predictions(focal)
    parts = set_loss(*inputs, targets(counts), focal)
    loss = total(parts, focal)
    expected, named = of_transformers(kind, *inputs, objects(counts))
    torch.testing.assert_close(loss, expected)
    last = [named[name] for name in ("loss_ce", "loss_bbox", "loss_giou")]
    torch.testing.assert_close(torch.stack([part[-1] for part in parts]), torch.stack(last))
    gradients = (torch.autograd.grad(value, inputs) for value in (loss, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("focal", [True, False])
def test_images_without_any_object_have_a_loss_of_classes_alone(focal: bool) -> None:
    inputs = predictions(focal, images=2)
    parts = set_loss(*inputs, targets((0, 0)), focal)
    assert (parts.classes > 0).all() and not parts.boxes.any() and not parts.overlap.any()
    total(parts, focal).backward()
    assert inputs[0].grad is not None and inputs[0].grad.isfinite().all()


def test_parts_divided_by_one_mean_add_up_to_the_whole() -> None:
    logits, boxes = predictions(True)
    whole = set_loss(logits, boxes, targets(), True)
    classes, there, counts, mean = targets()
    cuts = (slice(0, 1), slice(1, 3))
    parts = [
        set_loss(
            logits[:, cut],
            boxes[:, cut],
            Targets(classes[cut], there[cut], counts[cut], mean),
            True,
        )
        for cut in cuts
    ]
    for name in ("classes", "boxes", "overlap"):
        first, second = (getattr(part, name) for part in parts)
        torch.testing.assert_close(first / 3 + second * 2 / 3, getattr(whole, name))


def test_a_prediction_that_is_not_finite_is_matched_last() -> None:
    logits, boxes = (value.detach().clone() for value in predictions(True))
    boxes[:, 0, :3] = float("nan")
    chosen = matched(logits, boxes, targets(), True)
    assert (chosen[:, 0, :2] >= 3).all() and (chosen[:, 0, :2] < QUERIES).all()
    assert (chosen[:, 1] == QUERIES).all(), "an image without objects"
