"""Networks by name: our own few, timm's many."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from torch import nn

from batchformer.models.digits_net import digits_net
from batchformer.models.resnet_cifar import resnet32

OWN: dict[str, Callable[..., nn.Module]] = {"resnet32": resnet32, "digits_net": digits_net}


def build_model(name: str, num_classes: int) -> nn.Module:
    """A network with random weights and timm's contract.

    Args:
        name: one of ours (``resnet32`` for CIFAR, ``digits_net``) or of timm's.
        num_classes: K.
    """
    if name in OWN:
        return OWN[name](num_classes)
    timm = _timm()
    if name not in timm.list_models():
        near = difflib.get_close_matches(name, [*OWN, *timm.list_models()], 3)
        raise ValueError(
            f"There is no model {name!r}. Near: {', '.join(near) or 'none'}; ours are "
            f"{', '.join(OWN)}, and timm.list_models() names the others."
        )
    model: nn.Module = timm.create_model(name, num_classes=num_classes)
    return model


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ImportError("Models by name need: pip install 'batchformer[lab]'") from error
    return timm
