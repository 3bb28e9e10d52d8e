"""Faster R-CNN, C4 or FPN, on timm's ResNets, built from torchvision's parts.

C4 follows detectron2: features of stride 16 propose regions, and the network's last stage processes
each region. All batch normalisation is trained. torchvision's parts differ from detectron2 in two
points: box losses are smooth below 1/9 instead of absolute; and the proposals' box loss is divided
by the number of sampled anchors instead of the wanted number, which differs only on tiny images.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

from torch import Tensor, nn

from batchformer.lab.data.transforms import IMAGENET

try:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
    from torchvision.models.detection.roi_heads import RoIHeads
    from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
    from torchvision.models.detection.transform import GeneralizedRCNNTransform
    from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign, roi_align
    from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
except ImportError as error:
    raise ImportError("Detectors need: pip install 'batchformer[lab,detection]'") from error

Kind = Literal["c4", "fpn"]

ANCHOR_SIZES = (32, 64, 128, 256, 512)
ASPECT_RATIOS = (0.5, 1.0, 2.0)
STAGES = ("layer1", "layer2", "layer3", "layer4")
#: Proposals that are kept before and after non-maximum suppression, by mode.
PROPOSALS: dict[Kind, dict[str, tuple[int, int]]] = {
    "c4": {"training": (12_000, 2_000), "testing": (6_000, 1_000)},
    "fpn": {"training": (2_000, 1_000), "testing": (1_000, 1_000)},
}
#: Proposals per image that are trained on, at most a quarter of them objects.
REGIONS = 512
#: Channels of every level of the pyramid, and of the two layers on its regions.
PYRAMID, HIDDEN = 256, 1024


def faster_rcnn(network: nn.Module, classes: int, kind: Kind = "c4") -> GeneralizedRCNN:
    """A detector of K classes on the layers of a ResNet of timm's, which it does not own.

    The network's parameters are not among the detector's: the caller registers the network, moves
    it and sets its mode. Its weights are not changed here, and its classifier is not used. Networks
    that lack the layers of a ResNet, or have other strides, are refused.

    In training the detector takes images (3, H, W) in [0, 1] and targets with ``boxes`` and
    ``labels`` from 1 to K, and returns four losses; in eval it returns ``boxes``, ``labels`` and
    ``scores`` of each image. It does not resize. C4 applies the network's last stage to every
    region; FPN uses a pyramid of features.
    """
    channels = stage_channels(network)
    if kind == "c4":
        backbone: nn.Module = C4Backbone(network)
        anchors = AnchorGenerator((ANCHOR_SIZES,), (ASPECT_RATIOS,))
        rpn_channels = channels[2]
        pool: nn.Module = AlignedPool()
        head: nn.Module = LastStageHead(network, channels[3])
        features = channels[3]
    else:
        backbone = PyramidBackbone(network, channels)
        each = len(ANCHOR_SIZES)
        anchors = AnchorGenerator(tuple((s,) for s in ANCHOR_SIZES), (ASPECT_RATIOS,) * each)
        rpn_channels = PYRAMID
        levels = [str(number) for number in range(len(STAGES))]
        pool = MultiScaleRoIAlign(levels, output_size=7, sampling_ratio=2)
        head, features = TwoMLPHead(PYRAMID * 7**2, HIDDEN), HIDDEN
    rpn = RegionProposalNetwork(
        anchors,
        InFloat32(RPNHead(rpn_channels, anchors.num_anchors_per_location()[0])),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={mode: before for mode, (before, _) in PROPOSALS[kind].items()},
        post_nms_top_n={mode: after for mode, (_, after) in PROPOSALS[kind].items()},
        nms_thresh=0.7,
    )
    heads = RoIHeads(
        pool,
        head,
        InFloat32(_predictor(features, classes)),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=REGIONS,
        positive_fraction=0.25,
        bbox_reg_weights=None,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=100,
    )
    return GeneralizedRCNN(backbone, rpn, heads, Normalised())


class Normalised(GeneralizedRCNNTransform):  # type: ignore[misc]
    """Normalises images and pads them into one tensor, without resizing.

    Sides of that tensor are multiples of 32, because torchvision divides them by the sides of the
    features, rounding, to place anchors.
    """

    def __init__(self) -> None:
        super().__init__(
            min_size=0, max_size=0, image_mean=[*IMAGENET.mean], image_std=[*IMAGENET.std]
        )

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Does nothing: the data pipeline resizes, in training and at test."""
        return image, target


class Borrower(nn.Module):
    """Uses a network that is registered elsewhere."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is not registered as a submodule; deepcopy still copies it.
        self._borrowed = (network,)

    @property
    def network(self) -> Any:
        return self._borrowed[0]

    def stem(self, x: Tensor) -> Tensor:
        """(N, C, H/4, W/4) of images (N, 3, H, W)."""
        network = self.network
        stemmed: Tensor = network.maxpool(network.act1(network.bn1(network.conv1(x))))
        return stemmed


class C4Backbone(Borrower):
    """Features of stride 16, in float32: anchors take this type, and half would misplace them."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H/16, W/16) of images (N, 3, H, W)."""
        x = self.stem(x)
        for stage in STAGES[:3]:
            x = getattr(self.network, stage)(x)
        return x.float()


class PyramidBackbone(Borrower):
    """Features of strides 4, 8, 16, 32 and 64, in float32."""

    def __init__(self, network: nn.Module, channels: list[int]) -> None:
        super().__init__(network)
        self.fpn = FeaturePyramidNetwork(channels, PYRAMID, LastLevelMaxPool())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Five levels (N, 256, ., .) of images (N, 3, H, W)."""
        x, stages = self.stem(x), OrderedDict()
        for number, stage in enumerate(STAGES):
            x = stages[str(number)] = getattr(self.network, stage)(x)
        return OrderedDict((name, level.float()) for name, level in self.fpn(stages).items())


class AlignedPool(nn.Module):
    """RoIAlign of features of stride 16 to 14 x 14, aligned (no offset of half a pixel)."""

    def forward(
        self, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[Any]
    ) -> Tensor:
        """(R, C, 14, 14) of features (N, C, ., .) and R boxes of the N images."""
        (level,) = features.values()
        regions: Tensor = roi_align(level, boxes, 14, 1 / 16, sampling_ratio=-1, aligned=True)
        return regions


class LastStageHead(Borrower):
    """The network's last stage on every region, a further normalisation, then the mean."""

    def __init__(self, network: nn.Module, channels: int) -> None:
        super().__init__(network)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, regions: Tensor) -> Tensor:
        """(R, C) of maps (R, C/2, 14, 14)."""
        maps: Tensor = self.norm(self.network.layer4(regions))
        return maps.mean((2, 3))


class InFloat32(nn.Module):
    """Casts the outputs of a module to float32, for losses and boxes under autocast."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Any) -> Any:
        outputs = self.part(x)
        return tuple(
            [each.float() for each in out] if isinstance(out, list) else out.float()
            for out in outputs
        )


def _predictor(features: int, classes: int) -> nn.Module:
    """Scores of the background and K classes, and a box for each; initialised near 0."""
    predictor: nn.Module = FastRCNNPredictor(features, classes + 1)
    layers: Any = predictor
    for layer, spread in ((layers.cls_score, 0.01), (layers.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=spread)
        nn.init.zeros_(layer.bias)
    return predictor


def stage_channels(network: nn.Module) -> list[int]:
    """Channels of the four stages of a ResNet."""
    layers = ("conv1", "bn1", "act1", "maxpool", *STAGES)
    missing = [name for name in layers if not hasattr(network, name)]
    listed: Any = getattr(network, "feature_info", [])
    stages = {stage["module"]: stage for stage in listed if stage["module"] in STAGES}
    if missing or list(stages) != list(STAGES):
        raise ValueError(
            f"A detector needs one of timm's ResNets, and this {type(network).__name__} lacks "
            f"{', '.join(missing) or 'its stages'}: set --model to one such as resnet50."
        )
    strides = [stages[name]["reduction"] for name in STAGES]
    if strides != [4, 8, 16, 32]:
        raise ValueError(
            f"A detector needs stages of stride 4, 8, 16 and 32, and this {type(network).__name__} "
            f"has {', '.join(map(str, strides))}: set --model to one such as resnet50."
        )
    return [int(stages[name]["num_chs"]) for name in STAGES]
