"""LFME (Xiang et al., 2020): distillation from experts that fades, and a curriculum of samples.

It follows the authors' code, in which samples are weighted by multiplying their logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from batchformer.lab.losses import widened
from batchformer.lab.losses.ride import kl_from


def expert_weights(student: Tensor, experts: Tensor, threshold: float = 0.3) -> Tensor:
    """How much each of G experts teaches, from 1 to 0 as the student nears its accuracy; (G,).

    It is 1 while the student's accuracy A is below ``threshold`` times the expert's accuracy E,
    and then ``(1 - A / E) / (1 - threshold)``, 0 at least. An expert that knows nothing teaches
    nothing.

    Args:
        student: (G,) accuracy on the classes of each expert, among all classes.
        experts: (G,) accuracy of each expert on its classes.

    >>> expert_weights(torch.tensor([0.1, 0.15, 0.25, 0.6]), torch.full((4,), 0.5))
    tensor([1.0000, 1.0000, 0.7143, 0.0000])
    """
    ratio = torch.where(experts > 0, student / experts.clamp(min=1e-12), 1.0)
    return ((1 - ratio) / (1 - threshold)).clamp(0, 1)


def class_floors(class_counts: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """(K,) the least initial weight of the samples of each class.

    It is the mean class size of the group of smallest classes over that of the class's own group: 1
    for few, about 12/53 for medium and 12/230 for many on ImageNet-LT, the authors' numbers.

    Args:
        class_counts: (K,) training images.
        groups: the classes of each expert.

    >>> class_floors(torch.tensor([230, 53, 12]), [torch.tensor([c]) for c in range(3)])
    tensor([0.0522, 0.2264, 1.0000])
    """
    means = torch.stack([class_counts[group].double().mean() for group in groups])
    floors = torch.ones(len(class_counts))
    for group, mean in zip(groups, means, strict=True):
        floors[group] = (means.min() / mean).float()
    return floors


def first_weights(confidence: Tensor, labels: Tensor, floors: Tensor) -> Tensor:
    """(M,) weights of samples at the beginning: from the floor of their class up to 1.

    In each class the least confident sample has the floor, the most confident one 1, and others
    in proportion. Samples of a class in which all are equally confident have 1.

    Args:
        confidence: (M,) probability of the true class, by the expert that has this class.
        labels: (M,) classes.
        floors: (K,) of :func:`class_floors`.

    >>> first_weights(torch.tensor([0.5, 0.9, 0.7, 0.3]), torch.tensor([0, 0, 0, 1]), floors=
    ...               torch.tensor([0.2, 0.2]))
    tensor([0.2000, 1.0000, 0.6000, 1.0000])
    """
    classes = confidence.new_zeros(len(floors))
    options = {"include_self": False}
    least = classes.scatter_reduce(0, labels, confidence, "amin", **options)[labels]
    most = classes.scatter_reduce(0, labels, confidence, "amax", **options)[labels]
    spread = most - least
    place = torch.where(spread > 0, (confidence - least) / spread.clamp(min=1e-12), 1.0)
    floor = floors[labels]
    return floor + (1 - floor) * place


def weights_now(first: Tensor, progress: Tensor | float) -> Tensor:
    """Weights (N,) of samples that began with `first`: 1 at progress 1, and then above 1.

    Args:
        progress: the epoch, counted from 1, divided by the epoch at which all weigh the same.

    >>> [round(float(weights_now(torch.tensor(0.2), e / 45)), 4) for e in (1, 45, 90)]
    [0.2178, 1.0, 1.8]
    """
    return first + (1 - first) * progress


def experts_loss(
    logits: Tensor,
    taught: Sequence[Tensor],
    groups: Sequence[Tensor],
    weights: Tensor,
    temperature: float = 2.0,
) -> Tensor:
    """Distillation from all experts, each by its weight; a scalar, in float32 or wider.

    Expert g adds ``w_g KL(softmax(t_g / T) || softmax(z_g / T))``, averaged over all samples, also
    those of classes that are not its own. z_g are the student's logits of its classes.

    Args:
        logits: z, (N, K).
        taught: t_g, (N, K_g) of each expert.
        groups: (K_g,) its classes.
        weights: (G,).
    """
    z = widened(logits) / temperature
    parts = [
        kl_from(t.to(z.dtype) / temperature, z.index_select(1, group))
        for t, group in zip(taught, groups, strict=True)
    ]
    return (weights * torch.stack(parts)).sum()


def group_accuracy(correct: Tensor, labels: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """(G,) accuracy on the classes of each group, each class counting the same.

    Args:
        correct: (M,) bool or numbers.
        labels: (M,).
        groups: classes of each group; those without samples do not count.

    >>> right, y = torch.tensor([1, 1, 0, 1]), torch.tensor([0, 0, 0, 1])
    >>> group_accuracy(right, y, [torch.tensor([0, 1]), torch.tensor([0])])
    tensor([0.8333, 0.6667])
    """
    classes = 1 + max(int(group.max()) for group in groups)
    counts = labels.bincount(minlength=classes)
    rates = labels.bincount(correct.double(), classes) / counts.clamp(min=1)
    means = [rates[g][counts[g] > 0].mean() for g in groups]
    return torch.stack(means).nan_to_num().float()
