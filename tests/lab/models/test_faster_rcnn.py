from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import timm
import torch
from timm.models import resnet
from torch import Tensor, nn

from batchformer.lab.data.transforms import IMAGENET
from batchformer.lab.models.faster_rcnn import (
    AlignedPool,
    C4Backbone,
    Kind,
    LastStageHead,
    Normalised,
    faster_rcnn,
)
from batchformer.lab.models.networks import digits_net, resnet18_small

pytestmark = pytest.mark.usefixtures("few_regions")
KINDS = get_args(Kind)


def network_of() -> nn.Module:
    """A narrow ResNet: as good here, and much faster."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"channels": (8, 16, 32, 64), "num_classes": 5}
    return resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), zero_init_last=False, **options)


class Whole(nn.Module):
    """A network and the detector on it, as a method holds them."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.network = network_of()
        self.detector = faster_rcnn(self.network, classes=3, kind=kind)


def batch() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    draw = torch.Generator().manual_seed(1)
    images = [torch.rand(3, *size, generator=draw) for size in ((64, 50), (40, 70))]
    boxes = torch.tensor([[4.0, 4.0, 30.0, 36.0], [10.0, 2.0, 48.0, 30.0]])
    targets = [
        {"boxes": boxes, "labels": torch.tensor([1, 3])},
        {"boxes": boxes[:1], "labels": torch.tensor([2])},
    ]
    return images, targets


@pytest.mark.parametrize("kind", KINDS)
def test_losses_reach_all_of_the_network_but_its_classifier(kind: Kind) -> None:
    whole = Whole(kind).train()
    losses = whole.detector(*batch())
    parts = ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")
    assert set(losses) == set(parts)
    sum(losses.values()).backward()
    without = {name for name, p in whole.named_parameters() if p.grad is None or not p.grad.any()}
    # The pyramid's smallest levels have no regions in images as small as these.
    unused = {name for name in without if name.startswith("network.")}
    assert unused == {"network.fc.weight", "network.fc.bias"}
    if kind == "c4":
        assert len(without) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_objects_can_be_trained_on(kind: Kind) -> None:
    images, targets = batch()
    targets[0] = {"boxes": torch.empty(0, 4), "labels": torch.empty(0, dtype=torch.int64)}
    losses = Whole(kind).train().detector(images, targets)
    assert all(bool(value.isfinite()) for value in losses.values())


@pytest.mark.parametrize("kind", KINDS)
def test_detections_lie_in_their_images(kind: Kind) -> None:
    images, _ = batch()
    whole = Whole(kind).eval()
    whole.detector.roi_heads.score_thresh = 0.0
    with torch.no_grad():
        found = whole.detector(images)
    for image, each in zip(images, found, strict=True):
        assert len(each["boxes"]) and each["boxes"].min() >= 0
        assert (each["boxes"].amax(0)[2:] <= torch.tensor(image.shape[:0:-1])).all()
        assert set(each["labels"].tolist()) <= {1, 2, 3}
        assert (each["scores"].diff() <= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_borrowed(kind: Kind) -> None:
    whole = Whole(kind)
    own = {id(parameter) for parameter in whole.network.parameters()}
    assert not own & {id(parameter) for parameter in whole.detector.parameters()}
    assert not any("layer" in name and "fpn" not in name for name in whole.detector.state_dict())
    other = copy.deepcopy(whole)
    assert other.detector.backbone.network is other.network is not whole.network


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_resized(training: bool) -> None:
    images, targets = batch()
    transform = Normalised().train(training)
    made, same = transform(images, targets)
    assert made.image_sizes == [(64, 50), (40, 70)] and made.tensors.shape == (2, 3, 64, 96)
    for one, other in zip(same, targets, strict=True):
        assert torch.equal(one["boxes"], other["boxes"])
    mean, std = (torch.tensor(t).view(3, 1, 1) for t in (IMAGENET.mean, IMAGENET.std))
    torch.testing.assert_close(made.tensors[0, :, :, :50], (images[0] - mean) / std)
    assert not made.tensors[0, :, :, 50:].any() and not made.tensors[1, :, 40:].any()


def test_c4_features_are_the_networks() -> None:
    network = network_of().eval()
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        (maps,) = network.forward_intermediates(x, indices=[3], intermediates_only=True)  # type: ignore[operator]
        torch.testing.assert_close(C4Backbone(network)(x), maps)


def test_anchors_lie_16_pixels_apart() -> None:
    detector = faster_rcnn(network_of(), 3, "c4")
    images, _ = Normalised()([torch.rand(3, 70, 91)])
    (anchors,) = detector.rpn.anchor_generator(images, [torch.zeros(1, 4, 6, 6)])
    centres = ((anchors[:, :2] + anchors[:, 2:]) / 2).view(6, 6, 15, 2)
    places = 16.0 * torch.arange(6)
    torch.testing.assert_close(centres[..., 0], places[None, :, None].expand(6, 6, 15))
    torch.testing.assert_close(centres[..., 1], places[:, None, None].expand(6, 6, 15))
    sides = (anchors[:, 2:] - anchors[:, :2]).view(36, 3, 5, 2)[0]
    areas = sides.prod(-1).sqrt()
    torch.testing.assert_close(
        areas, torch.tensor([[32.0, 64, 128, 256, 512]] * 3), rtol=0.05, atol=0
    )


def test_regions_are_cut_without_an_offset() -> None:
    """Of features that are their own places, the mean over a region is the region's centre."""
    across = torch.arange(20.0).expand(1, 1, 20, 20)
    features = {"0": torch.cat((across, across.mT), 1)}
    box = torch.tensor([[37.0, 64.0, 150.0, 201.0]])
    pooled = AlignedPool()(features, [box], [(320, 320)])
    assert pooled.shape == (1, 2, 14, 14)
    centre = (box[0, :2] + box[0, 2:]) / 2 / 16 - 0.5  # the first pixel's centre is at a half
    torch.testing.assert_close(pooled.mean((2, 3))[0], centre)


def test_the_last_stage_is_normalised_once_more() -> None:
    network = network_of().train()
    head = LastStageHead(network, 64).train()
    regions = torch.randn(6, 32, 14, 14)
    maps: Tensor = copy.deepcopy(network).layer4(regions)  # type: ignore[operator]
    assert maps.shape[2:] == (7, 7)
    mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
    expected = (maps.mean((2, 3)) - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(head(regions), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_leaves_boxes_and_losses_in_float32(kind: Kind) -> None:
    def losses(half: bool) -> dict[str, Tensor]:
        whole = Whole(kind).train()
        torch.manual_seed(3)  # of the sampled anchors and regions
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            found: dict[str, Tensor] = whole.detector(*batch())
        return found

    exact, rough = losses(half=False), losses(half=True)
    assert {value.dtype for value in rough.values()} == {torch.float32}
    for name in ("loss_objectness", "loss_rpn_box_reg"):  # others are of regions, as ranked
        torch.testing.assert_close(rough[name], exact[name], rtol=0.02, atol=0.002)

    seen: list[Any] = []
    whole = Whole(kind).eval()
    pool = whole.detector.roi_heads.box_roi_pool
    pool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole.detector(batch()[0])
    features, boxes, _ = seen[0]
    assert {f.dtype for f in features.values()} == {b.dtype for b in boxes} == {torch.float32}


def test_other_networks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one of timm's ResNets, and this .* lacks"):
        faster_rcnn(digits_net(10), 3)
    dilated = timm.create_model("resnet18", output_stride=8)
    for network, strides in ((dilated, "4, 8, 8, 8"), (resnet18_small(7), "1, 2, 4, 8")):
        with pytest.raises(ValueError, match=f"4, 8, 16 and 32, and this ResNet has {strides}"):
            faster_rcnn(network, 3)


def test_the_numbers_of_detectron2s_c4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the few regions of these tests
    detector = faster_rcnn(network_of(), 20)
    assert detector.roi_heads.fg_bg_sampler.batch_size_per_image == 512
    assert detector.roi_heads.box_predictor.part.cls_score.out_features == 21
    assert detector.rpn._pre_nms_top_n == {"training": 12_000, "testing": 6_000}
    assert detector.rpn._post_nms_top_n == {"training": 2_000, "testing": 1_000}
