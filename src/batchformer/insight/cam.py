"""Grad-CAM (Selvaraju et al., 2017): which parts of an image speak for a class.

The network is read without BatchFormer. The package `grad-cam` would bring OpenCV, scikit-learn and
matplotlib for one weighted sum; it also needs a module with one output, where we have a function of
images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.plug.preserve import temporary_hooks

Classify = Callable[[Tensor], Tensor]
#: ``released`` names the layer that the paper's code uses: the last stage of ResNet-32, but the
#: third of four stages in the networks for ImageNet.
RELEASED, RELEASED_LAYER = "released", "layer3"
#: Names of the norm before attention in timm, torchvision and Hugging Face. After the last block
#: only the class token is read, so other tokens have no gradient there.
TOKEN_NORMS = ("norm1", "ln_1", "layernorm_before")
MOST_PREFIX = 8  # class, distillation and register tokens that may stand before the patches


class NoMaps(ValueError):
    """The network has no layer with maps; for example, it begins by flattening its images."""


@dataclass(frozen=True, eq=False)
class Cam:
    """Heat maps of M images."""

    heat: Tensor  # (M, a, b) from 0 to 1; all 0 where there is no evidence for the class
    layer: str  # the layer, or layers, whose maps were weighted
    logits: Tensor  # (M, K)


def grad_cam(
    classify: Classify, network: nn.Module, x: Tensor, labels: Tensor, layer: str | None = None
) -> Cam:
    """Heat maps for the given classes: ``relu(sum_k mean(dz / dA_k) A_k)`` over the channels k.

    The network is in eval, so images do not change each other's logits. If several layers are read
    (the branches of experts), their maps count as channels of one layer.

    Args:
        classify: images (M, ...) to logits (M, K), through the network.
        network: holds the layer.
        x: (M, channels, H, W) images.
        labels: (M,) the classes to explain.
        layer: its name in the network, or ``released`` for :data:`RELEASED_LAYER`; by default what
            :func:`last_maps` finds.
    """
    layer = RELEASED_LAYER if layer == RELEASED else layer
    size = x.shape[-2:]
    names = [layer] if layer else last_maps(network, lambda: classify(x[:2]), size)
    modules = dict(network.named_modules())
    if unknown := [name for name in names if name not in modules]:
        known = ", ".join(name for name, _ in network.named_children())
        raise ValueError(
            f"{type(network).__name__} has no layer {', '.join(unknown)}; its parts are {known}"
        )
    with torch.enable_grad(), _recorded_calls({name: modules[name] for name in names}) as calls:
        # Frozen networks have a graph through their input alone. Integers have no gradient.
        logits = classify(x.detach().requires_grad_(x.is_floating_point()))
        outputs = {name: out for name, _, out in calls}
        if not outputs:
            raise ValueError(f"the layer {', '.join(names)} is not called, so it has no maps")
        score = logits.gather(1, labels[:, None]).sum()
        gradients = torch.autograd.grad(score, list(outputs.values()))
    weighed = [
        (as_maps(slope, size).mean((2, 3), keepdim=True) * as_maps(out.detach(), size)).sum(1)
        for slope, out in zip(gradients, outputs.values(), strict=True)
    ]
    return Cam(normalised(torch.stack(weighed).sum(0)), ", ".join(outputs), logits.detach())


def normalised(weighed: Tensor) -> Tensor:
    """Set negative values of (M, a, b) to 0, and divide by the largest value of each image.

    >>> normalised(torch.tensor([[[-1.0, 2.0], [4.0, 0.0]]]))
    tensor([[[0.0000, 0.5000],
             [1.0000, 0.0000]]])
    """
    heat = weighed.clamp_min(0)
    highest = heat.amax((1, 2), keepdim=True)
    return torch.where(highest > 0, heat / highest, heat)


def as_maps(output: Tensor, size: Sequence[int]) -> Tensor:
    """Convert maps, channels first or last, or tokens (N, T, C) to maps (N, C, a, b).

    Tokens before the patches of an image of this size, such as a class token, are left out.

    >>> tokens, maps = torch.zeros(2, 9, 8), torch.zeros(2, 7, 7, 96)
    >>> as_maps(tokens, (32, 64)).shape, as_maps(maps, (224, 224)).shape
    (torch.Size([2, 8, 2, 4]), torch.Size([2, 96, 7, 7]))
    """
    if output.ndim == 3:
        prefix, grid = token_grid(output.shape[1], size)
        if grid is not None:
            return output[:, prefix:].transpose(1, 2).reshape(len(output), -1, *grid)
    if output.ndim != 4:
        raise ValueError(
            f"Grad-CAM needs maps (N, C, a, b) or tokens (N, T, C) of all patches, got "
            f"{tuple(output.shape)}: name another layer"
        )
    second, third, last = output.shape[1:]
    return output.movedim(3, 1) if second == third != last else output


def token_grid(length: int, size: Sequence[int]) -> tuple[int, tuple[int, int] | None]:
    """How many tokens stand before the patches of an image, and the patches' rows and columns.

    >>> token_grid(197, (224, 224)), token_grid(98, (64, 128))
    ((1, (14, 14)), (0, (7, 14)))
    >>> token_grid(64 + 16 + 4 + 1, (64, 64))  # four levels
    (0, None)
    """
    height, width = size
    for prefix in range(min(MOST_PREFIX, length - 1) + 1):
        patches = length - prefix
        rows = round((patches * height / width) ** 0.5)
        if not rows or patches % rows:
            continue
        columns = patches // rows
        # Convolutions round sizes up, so their maps fit an image only roughly. Patches fit exactly.
        about = prefix == 0 and 0.8 < rows * width / (columns * height) < 1.25
        if about or (height % rows == 0 and height * columns == width * rows):
            return prefix, (rows, columns)
    return 0, None


def last_maps(network: nn.Module, run: Callable[[], Tensor], size: Sequence[int]) -> list[str]:
    """Names of the last layer with maps of more than one pixel, found in one plain pass.

    In a transformer on tokens it is the norm before the last attention. Several layers are named
    only if they are entries of one list and read the same input: the branches of experts. ``run``
    computes the logits of some images, whose height and width are ``size``.
    """
    named = {name: module for name, module in network.named_modules() if name}
    with torch.no_grad(), _recorded_calls(named) as calls:
        rows = len(run())
    # Leave out layers that have parts of images, not images, on their first axis.
    calls = [call for call in calls if call[-1].ndim > 2 and len(call[-1]) == rows]
    tokens: tuple[int, str] | None = None
    for place, (name, _, output) in enumerate(calls):
        is_norm = name.rpartition(".")[2] in TOKEN_NORMS and output.ndim == 3
        if is_norm and output.shape[1] > 3 and token_grid(output.shape[1], size)[1]:
            tokens = place, name
    block = _parent(tokens[1]) + "." if tokens else None
    for place, (name, source, output) in reversed(list(enumerate(calls))):
        if tokens and place <= tokens[0]:
            break
        # Queries, keys and values of several heads have four axes too, but are no maps.
        inside = (block is not None and name.startswith(block)) or "attn" in name
        if not inside and output.ndim == 4 and math.prod(as_maps(output, size).shape[2:]) > 1:
            parent = _parent(name)
            if not isinstance(network.get_submodule(parent), nn.ModuleList):
                return [name]
            return [other for other, x, _ in calls if x is source and _parent(other) == parent]
    if tokens:
        return [tokens[1]]
    raise NoMaps(f"{type(network).__name__} has no layer with maps for Grad-CAM")


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


@contextmanager
def _recorded_calls(modules: dict[str, nn.Module]) -> Iterator[list[tuple[str, Any, Tensor]]]:
    """Record name, first argument and output of each call that returns one tensor."""
    calls: list[tuple[str, Any, Tensor]] = []

    def recorder(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                calls.append((name, args[0] if args else None, output))

        return hook

    hooks = (module.register_forward_hook(recorder(name)) for name, module in modules.items())
    with temporary_hooks(hooks):
        yield calls
