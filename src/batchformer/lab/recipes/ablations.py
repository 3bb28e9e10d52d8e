"""The sweeps there are: the paper's ablations on ImageNet-LT, the same and more on CIFAR-100-LT.

ImageNet-LT's are the paper's tables. Those of CIFAR-100-LT are ours, apart from PaCo's loss, and
train in minutes. MoCo's are scored by nearest neighbours, as its own evaluations are.

Stacked layers start from weights of their own. The released code, and so presumably the paper's
table of layers, starts them as copies of one: ``--module.copy-layers``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from batchformer.lab.recipes.sweep import (
    Level,
    Sweep,
    unchanged,
    with_batch_size,
    with_hyper,
    with_module,
    with_optim,
    without_paco_loss,
)

IMAGENET_R10 = "imagenet_lt_balanced_softmax_resnet10"
IMAGENET_R50 = "imagenet_lt_balanced_softmax_resnet50"
CIFAR = "cifar100_lt_balanced_softmax"


def _of_module(setting: str, values: Sequence[Any]) -> tuple[Level, ...]:
    names = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return tuple(
        Level(name=name, change=with_module(**{setting: value}))
        for name, value in zip(names, values, strict=True)
    )


def _of_size(sizes: Sequence[int]) -> tuple[Level, ...]:
    return tuple(Level(name=str(size), change=with_batch_size(size)) for size in sizes)


def _of_paco(row: str = "") -> tuple[Level, ...]:
    """With the loss and without it, which another recipe of this name has numbers of."""
    return (
        Level(name="with", change=unchanged),
        Level(name="without", change=without_paco_loss, row=row),
    )


_ALL = (
    Sweep(
        name="imagenet_lt_batch_size",
        base=IMAGENET_R10,
        factor="batch size",
        levels=_of_size((16, 32, 64, 128, 256, 512)),
        reference="128",
        table="Batch size",
        baseline="each",
    ),
    Sweep(
        name="imagenet_lt_shared_classifier",
        base=IMAGENET_R50,
        factor="streams of the classifier",
        levels=_of_module("streams", ("shared", "mixed_only")),
        reference="shared",
        table="Shared classifier",
    ),
    Sweep(
        name="imagenet_lt_layers",
        base=IMAGENET_R10,
        factor="layers",
        levels=_of_module("layers", (1, 2, 4, 8, 16)),
        reference="1",
        table="Layers",
    ),
    Sweep(
        name="imagenet_lt_paco_loss",
        base="imagenet_lt_paco",
        factor="PaCo's loss",
        levels=_of_paco(),
        reference="with",
        baseline="each",
    ),
    Sweep(
        name="cifar100_lt_batch_size",
        base=CIFAR,
        factor="batch size",
        levels=_of_size((16, 32, 64, 128, 256, 512)),
        reference="512",
        baseline="each",
    ),
    Sweep(
        name="cifar100_lt_shared_classifier",
        base=CIFAR,
        factor="streams of the classifier",
        levels=_of_module("streams", ("shared", "mixed_only")),
        reference="shared",
    ),
    Sweep(
        name="cifar100_lt_layers",
        base=CIFAR,
        factor="layers",
        levels=_of_module("layers", (1, 2, 4, 8, 16)),
        reference="1",
    ),
    Sweep(
        name="cifar100_lt_paco_loss",
        base="cifar100_lt_paco",
        factor="PaCo's loss",
        levels=_of_paco("cifar100_lt_without_paco_loss"),
        reference="with",
        table="Without PaCo loss",
        baseline="each",
    ),
    Sweep(
        name="cifar100_lt_paco_loss_r200",
        base="cifar100_lt_paco_r200",
        factor="PaCo's loss",
        levels=_of_paco("cifar100_lt_without_paco_loss_r200"),
        reference="with",
        table="Without PaCo loss",
        baseline="each",
    ),
    Sweep(
        name="cifar100_lt_module_lr",
        base=CIFAR,
        factor="learning rate of BatchFormer, as a multiple of the network's",
        levels=_of_module("lr_factor", (0.1, 1.0)),
        reference="0.1",
    ),
    Sweep(
        name="cifar100_lt_paco_module_decay",
        base="cifar100_lt_paco",
        factor="weight decay of BatchFormer",
        levels=(
            Level(name="0", change=with_optim(module_weight_decay=0.0)),
            Level(name="5e-05", change=with_optim(module_weight_decay=5e-5)),
            Level(name="0.0005", change=unchanged),  # the network's
        ),
        reference="0.0005",
    ),
    Sweep(
        name="cifar100_lt_heads",
        base=CIFAR,
        factor="attention heads",
        levels=_of_module("heads", (1, 4)),
        reference="4",
    ),
    Sweep(
        name="cifar100_lt_dropout",
        base=CIFAR,
        factor="dropout",
        levels=_of_module("dropout", (0.0, 0.1, 0.5)),
        reference="0.5",
    ),
    Sweep(
        name="cifar100_lt_loss_scale",
        base=CIFAR,
        factor="scale of the loss",
        levels=_of_module("loss_scale", ("mean", "official")),
        reference="mean",
    ),
    Sweep(
        name="cifar100_lt_mixed_weight",
        base=CIFAR,
        factor="weight of the mixed stream",
        levels=_of_module("mixed_weight", (0.25, 1.0, 4.0)),
        reference="1",
    ),
    Sweep(
        name="cifar100_lt_moco_v2_front",
        base="cifar100_lt_moco_v2",
        factor="normalised layer in front of the projection",
        levels=(
            Level(name="without", change=unchanged),
            Level(name="with", change=with_hyper(projection_front=True)),
        ),
        reference="without",
        baseline="each",
    ),
    Sweep(
        name="cifar100_lt_moco_v3_module_lr",
        base="cifar100_lt_moco_v3",
        factor="learning rate of BatchFormer, as a multiple of the network's",
        levels=_of_module("lr_factor", (0.1, 1.0)),
        reference="1",
    ),
    Sweep(
        name="cifar100_lt_moco_v3_dropout",
        base="cifar100_lt_moco_v3",
        factor="dropout",
        levels=_of_module("dropout", (0.0, 0.5)),
        reference="0.5",
    ),
    Sweep(
        name="digits_moco_v3_module_lr",
        base="digits_moco_v3",
        factor="learning rate of BatchFormer, as a multiple of the network's",
        levels=_of_module("lr_factor", (0.1, 1.0)),
        reference="1",
    ),
    Sweep(
        name="demo_layers",
        base="demo",
        factor="layers",
        levels=_of_module("layers", (1, 2, 4)),
        reference="1",
    ),
)

SWEEPS: dict[str, Sweep] = {sweep.name: sweep for sweep in _ALL}


def find_sweep(name: str) -> Sweep:
    """The sweep of this name; an unknown one is answered with the nearest.

    >>> find_sweep("demo_layers").level_names
    ('1', '2', '4')
    """
    if name not in SWEEPS:
        near = difflib.get_close_matches(name, SWEEPS, 3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(near)}?" if near else "`batchformer sweep` shows them all."
        )
        raise ValueError(f"There is no sweep {name!r}. {hint}")
    return SWEEPS[name]
