"""Small networks that timm lacks: ResNet-10, ResNets and a DeiT for CIFAR, one for digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.optional import extra
from batchformer.lab.models.kernels import available

if TYPE_CHECKING:
    from batchformer.lab.models.kernels.batch_norm import Moments

# ResNets on timm's class. Convolutions are initialised from N(0, 2 / (k^2 out_channels)), and every
# normalisation with scale 1, also the last one of a block, which timm's own networks set to 0.


def resnet10(num_classes: int) -> nn.Module:
    """The ImageNet ResNet with one basic block per stage, used on ImageNet-LT; timm's contract.

    >>> sum(p.numel() for p in resnet10(1000).parameters())
    5418792
    """
    return _timm_resnet(1, num_classes)


def resnet18_small(num_classes: int) -> nn.Module:
    """timm's ResNet-18 with a 3x3 stem of stride 1 and without max-pooling.

    It is the usual network of contrastive learning on CIFAR: the ImageNet stem would reduce a
    32x32 image to 8x8 pixels before the first block.

    >>> sum(p.numel() for p in resnet18_small(10).parameters())
    11173962
    """
    network = _timm_resnet(2, num_classes)
    stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    network.conv1, network.maxpool = stem, nn.Identity()
    listed: Any = network.feature_info
    for stage in listed:
        # Undo the strides of the ImageNet stem and its pooling.
        stage["reduction"] //= 2 if stage["module"] == "act1" else 4
    return network


def _timm_resnet(blocks: int, num_classes: int) -> nn.Module:
    with extra("lab"):
        from timm.models.resnet import BasicBlock, ResNet
    network: nn.Module = ResNet(
        BasicBlock, (blocks,) * 4, num_classes=num_classes, zero_init_last=False
    )
    return network


def deit_cifar(num_classes: int, drop_path_rate: float = 0.0) -> nn.Module:
    """A small DeiT for 32x32 images: DeiT-Tiny with patches of 4x4 pixels and half its depth.

    6 blocks of 192 channels and 3 heads over 64 patches and a class token; timm's contract.
    `drop_path_rate` is that of the last block; earlier ones have less.

    >>> sum(p.numel() for p in deit_cifar(100).parameters())
    2710948
    """
    with extra("lab"):
        from timm.models.vision_transformer import VisionTransformer
    network: nn.Module = VisionTransformer(
        img_size=32,
        patch_size=4,
        embed_dim=192,
        depth=6,
        num_heads=3,
        num_classes=num_classes,
        drop_path_rate=drop_path_rate,
    )
    return network


class WithClassifier(nn.Module):
    """timm's contract for a network whose last layer is the classifier `fc`.

    A subclass has `num_features`, C, and :meth:`forward_features`. `fc` is not declared here,
    because torch.jit.script refuses attributes that are annotated as modules.
    """

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to features that :meth:`forward_head` takes."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """(N, C) to logits (N, K), or the features themselves with `pre_logits`."""
        return x if pre_logits else self.fc(x)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to logits (N, K)."""
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """The layer from features to logits."""
        return self.fc  # type: ignore[return-value]


# ResNet for 32x32 images (He et al., 2016): three stages, parameter-free shortcuts.


def convolve(x: Tensor, conv: nn.Conv2d) -> tuple[Tensor, Moments | None]:
    """``conv(x)``, and the moments of the result if our kernel supports this convolution."""
    if available.conv_unsupported_reason(x, conv) is not None:
        return conv(x), None
    from batchformer.lab.models.kernels.conv3x3 import conv3x3

    return conv3x3(x, conv.weight)


def conv_norm_relu(
    x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, residual: Tensor | None = None
) -> Tensor:
    """``relu(norm(conv(x)) + residual)``, by our kernels if they support it. x is (N, C, H, W)."""
    y, moments = convolve(x, conv)
    if available.norm_unsupported_reason(y, norm, residual) is not None:
        y = norm(y)
        return F.relu(y if residual is None else y + residual)
    from batchformer.lab.models.kernels.batch_norm import batch_norm_relu

    return batch_norm_relu(y, norm, residual, moments)


def pad_shortcut(x: Tensor, out_channels: int, stride: int) -> Tensor:
    """The parameter-free shortcut "option A": every `stride`-th pixel, new channels zero.

    Half of the new channels come before the old ones and half after: from 16 to 32 channels, 8 on
    each side. x is (N, C, H, W).
    """
    extra = out_channels - x.shape[1]
    before = extra // 2
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, before, extra - before))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to the shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels, self.stride = out_channels, stride
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, out_channels, H / stride, W / stride)."""
        shortcut = x
        if self.stride != 1 or self.out_channels != x.shape[1]:
            shortcut = pad_shortcut(x, self.out_channels, self.stride)
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)
        x = conv_norm_relu(x, self.conv1, self.bn1)
        return conv_norm_relu(x, self.conv2, self.bn2, shortcut)


class ResNetCifar(WithClassifier):
    """Stem, three stages, global average pooling and the classifier `fc`."""

    def __init__(
        self,
        num_classes: int,
        blocks: int,
        in_channels: int = 3,
        widths: tuple[int, int, int] = (16, 32, 64),
    ) -> None:
        super().__init__()
        self.num_features = widths[-1]
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.layer1 = _stage(widths[0], widths[0], blocks, stride=1)
        self.layer2 = _stage(widths[0], widths[1], blocks, stride=2)
        self.layer3 = _stage(widths[1], widths[2], blocks, stride=2)
        self.fc = nn.Linear(self.num_features, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward_features(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to pooled features (N, num_features)."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            x = F.relu(self.bn1(self.conv1(x)))
        else:
            x = conv_norm_relu(x, self.conv1, self.bn1)
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean((2, 3))


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, out_channels, stride)
    return nn.Sequential(
        first, *(BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1))
    )


def resnet32(
    num_classes: int,
    in_channels: int = 3,
    widths: tuple[int, int, int] = (16, 32, 64),
    depth: int = 32,
) -> ResNetCifar:
    """CIFAR ResNet-32: five basic blocks in each of three stages.

    `depth` counts layers with weights, 6 n + 2 for n blocks in each stage: 20, 32, 44, ...

    >>> sum(p.numel() for p in resnet32(10).parameters())
    464154
    """
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth must be 6 n + 2 (8, 14, 20, 26, 32, ...), got {depth}")
    return ResNetCifar(num_classes, blocks, in_channels, widths)


class DigitsNet(WithClassifier):
    """For grey images: two convolutions with pooling, a hidden layer, the classifier `fc`.

    Two poolings divide `side`, the pixels of a side, by four.
    """

    num_features = 64

    def __init__(self, num_classes: int, side: int = 8) -> None:
        super().__init__()
        if side < 4:
            raise ValueError(f"DigitsNet: side is {side}; two poolings need at least 4 pixels.")
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        # Empty: a place after the first stage for layers without weights, such as MixStyle.
        self.layer1 = nn.Sequential()
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.hidden = nn.Linear(32 * (side // 4) ** 2, self.num_features)
        self.fc = nn.Linear(self.num_features, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """(N, 1, S, S) to (N, 64)."""
        x = self.layer1(F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return F.relu(self.hidden(x.flatten(1)))


def digits_net(num_classes: int) -> DigitsNet:
    """The network of the digits demonstration, about 14,000 parameters.

    >>> sum(p.numel() for p in digits_net(10).parameters())
    13754
    """
    return DigitsNet(num_classes)


def digits16_net(num_classes: int) -> DigitsNet:
    """The same for images of 16x16 pixels, about 38,000 parameters.

    >>> sum(p.numel() for p in digits16_net(10).parameters())
    38330
    """
    return DigitsNet(num_classes, 16)
