"""A small convolutional network for grey images of 8x8 or 16x16 pixels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class DigitsNet(nn.Module):
    """Two convolutions with pooling and one hidden layer, then the classifier `fc`.

    Args:
        num_classes: K.
        side: S, of the images in pixels; two poolings leave a quarter of it.
    """

    num_features = 64

    def __init__(self, num_classes: int, side: int = 8) -> None:
        super().__init__()
        if side < 4:
            raise ValueError(f"DigitsNet: side is {side}; two poolings need at least 4 pixels.")
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        # Empty: the place after the first stage, where parts without weights can be put.
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

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """(N, 64) to (N, K), or the features themselves with `pre_logits`."""
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, S, S) to logits (N, K)."""
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """The layer that makes logits of features."""
        return self.fc


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
