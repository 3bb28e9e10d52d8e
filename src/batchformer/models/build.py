"""Networks by name: our own few, timm's many."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from torch import nn

from batchformer.models.digits_net import digits16_net, digits_net
from batchformer.models.resnet10 import resnet10
from batchformer.models.resnet18_small import resnet18_small
from batchformer.models.resnet_cifar import resnet32
from batchformer.models.ride import ride_resnet10, ride_resnet32, ride_resnet50, ride_resnext50

#: Networks with timm's contract.
OWN: dict[str, Callable[..., nn.Module]] = {
    "resnet32": resnet32,
    "resnet10": resnet10,
    "resnet18_small": resnet18_small,
    "digits_net": digits_net,
    "digits16_net": digits16_net,
}
#: Networks of several experts, with the contract of ``RideNetwork``.
EXPERTS: dict[str, Callable[..., nn.Module]] = {
    "ride_resnet32": ride_resnet32,
    "ride_resnet10": ride_resnet10,
    "ride_resnet50": ride_resnet50,
    "ride_resnext50": ride_resnext50,
}


def build_model(name: str, num_classes: int, **options: Any) -> nn.Module:
    """A network with random weights and timm's contract, or that of ``RideNetwork``.

    Args:
        name: one of ours (``resnet32`` for CIFAR, ``ride_resnet32``, ...) or of timm's, with the
            tag of its weights if need be (``resnet152.tv_in1k``).
        num_classes: K.
        options: what else that network takes, such as ``experts``.
    """
    ours = {**OWN, **EXPERTS}
    if name in ours:
        return ours[name](num_classes, **options)
    timm = _timm()
    if name.partition(".")[0] not in timm.list_models():
        near = difflib.get_close_matches(name, [*ours, *timm.list_models()], 3)
        raise ValueError(
            f"There is no model {name!r}. Near: {', '.join(near) or 'none'}; ours are "
            f"{', '.join(ours)}, and timm.list_models() names the others."
        )
    model: nn.Module = timm.create_model(name, num_classes=num_classes, **options)
    return model


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ImportError("Models by name need: pip install 'batchformer[lab]'") from error
    return timm
