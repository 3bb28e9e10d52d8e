"""Networks by name, ours or timm's, and how to train only the last block of one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.optional import extra
from batchformer.lab.models.networks import (
    deit_cifar,
    digits16_net,
    digits_net,
    resnet10,
    resnet18_small,
    resnet32,
)
from batchformer.lab.models.ride import ride_resnet10, ride_resnet32, ride_resnet50, ride_resnext50


def train_last_block(network: nn.Module) -> None:
    """Freeze every convolution of a ResNet outside its last block.

    Normalisation and the classifier are still trained, as in PaCo's code for Places-LT.

    >>> from batchformer.lab.models.networks import resnet10
    >>> network = resnet10(10)
    >>> train_last_block(network)
    >>> network.conv1.weight.requires_grad, network.layer4[-1].conv1.weight.requires_grad
    (False, True)
    """
    stage = getattr(network, "layer4", None)
    if not isinstance(stage, nn.Sequential) or len(stage) == 0:
        raise ValueError(
            f"Only a ResNet of four stages has a last block to train; {type(network).__name__} has "
            "none: train all its convolutions."
        )
    kept = set(stage[-1].modules())
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module not in kept:
            module.requires_grad_(False)


#: Networks with timm's contract.
OWN: dict[str, Callable[..., nn.Module]] = {
    "resnet32": resnet32,
    "resnet10": resnet10,
    "resnet18_small": resnet18_small,
    "deit_cifar": deit_cifar,
    "digits_net": digits_net,
    "digits16_net": digits16_net,
}
#: Words for sizes in names of networks; other names have numbers.
SIZES = "nano|tiny|small|base|large|huge"
#: Networks of several experts, with the contract of ``RideNetwork``.
EXPERTS: dict[str, Callable[..., nn.Module]] = {
    "ride_resnet32": ride_resnet32,
    "ride_resnet10": ride_resnet10,
    "ride_resnet50": ride_resnet50,
    "ride_resnext50": ride_resnext50,
}


def build_model(name: str, num_classes: int, **options: Any) -> nn.Module:
    """A network with random weights and timm's contract, or that of ``RideNetwork``.

    It is one of ours (``resnet32`` for CIFAR, ``ride_resnet32``, ...) or of timm's, if needed with
    the tag of its weights (``resnet152.tv_in1k``). Options are its further arguments.
    """
    ours = {**OWN, **EXPERTS}
    if name in ours:
        return ours[name](num_classes, **options)
    timm = _timm()
    if name.partition(".")[0] not in timm.list_models():
        near = difflib.get_close_matches(name, [*ours, *timm.list_models()], 3)
        raise ValueError(
            f"There is no model {name!r}. Similar names: {', '.join(near) or 'none'}. Ours are "
            f"{', '.join(ours)}; timm.list_models() lists the others."
        )
    model: nn.Module = timm.create_model(name, num_classes=num_classes, **options)
    head = model.get_classifier()  # type: ignore[operator]
    several = not isinstance(head, nn.Module) or isinstance(head, nn.ModuleList)
    if several or getattr(model, "aux_head", None) is not None:
        raise ValueError(
            f"{name} has several classifiers, as distilled networks have, and methods here train "
            "one. Set --model to another network, such as deit_small_patch16_224."
        )
    return model


def models_with_weights(weights: Mapping[str, Tensor], like: str) -> list[str]:
    """Names of networks whose tensors, except the classifier, have these names and shapes.

    Other sizes of `like`, one of timm's networks, and our own networks are tried.
    """
    shapes = {name: value.shape for name, value in weights.items() if not _counts(name)}
    fitting = []
    for name in [*OWN, *_other_sizes(like)]:
        with torch.device("meta"):
            network: Any = build_model(name, 1)
        head = {id(value) for value in network.get_classifier().parameters()}
        own = {
            key: value.shape
            for key, value in network.state_dict(keep_vars=True).items()
            if id(value) not in head and not _counts(key)
        }
        # Other tensors of the file can only be its classifier.
        if own.items() <= shapes.items() and len(shapes) - len(own) <= len(head):
            fitting.append(name)
    return fitting


def _other_sizes(model: str) -> list[str]:
    """timm's networks whose names differ from this one only in the word or number for the size."""
    name = model.partition(".")[0]
    pattern, words = re.subn(SIZES, f"(?:{SIZES})", name)
    if not words:
        pattern = re.sub(r"\d+", r"\\d+", name)
    return [other for other in _timm().list_models() if re.fullmatch(pattern, other)]


def _counts(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _timm() -> Any:
    with extra("lab"):
        import timm
    return timm
