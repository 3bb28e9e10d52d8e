"""RIDE (Wang et al., 2021): experts with margins, kept apart from their mean; distillation."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened
from batchformer.lab.losses.long_tailed import LDAM, ClassCounts, checked_counts, ldam

DistillationCount = Literal["once", "per_expert"]


def kl_from(reference: Tensor, logits: Tensor) -> Tensor:
    """``KL(softmax(reference) || softmax(logits))``, averaged over samples; a scalar.

    No gradient passes through the reference.

    Args:
        reference: (N, K).
        logits: (N, K), or (E, N, K) whose E divergences are summed.
    """
    log_q = logits.log_softmax(-1)
    p = reference.detach().softmax(-1).expand_as(log_q)
    return F.kl_div(log_q, p, reduction="sum") / len(reference)


def distillation(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Distillation (Hinton et al., 2015) from a teacher's softened probabilities; a scalar.

    ``T^2 KL(softmax(teacher / T) || softmax(student / T))``, averaged over samples. The factor T^2
    makes gradients comparable over temperatures. Computed in float32 or wider.

    Args:
        student_logits: (N, K).
        teacher_logits: (N, K), taken as constant.

    >>> logits = torch.tensor([[1.0, 2.0]])
    >>> distillation(logits, logits + 5, temperature=2.0).abs() < 1e-6
    tensor(True)
    """
    require_shapes("distillation", student=(student_logits, "N K"), teacher=(teacher_logits, "N K"))
    student = widened(student_logits)
    teacher = teacher_logits.to(student.dtype)
    return temperature**2 * kl_from(teacher / temperature, student / temperature)


def class_temperatures(class_counts: ClassCounts, factor: float) -> Tensor:
    """Temperatures (K,) of the diversity term: 1 for the largest class, lower for rarer ones.

    ``w_c / max w`` with ``w_c = K p_c factor + 1 - factor``, where ``p_c`` is the share of class c
    among the training images. A class without images has ``p_c = 0``.

    Args:
        factor: in [0, 1); 0 makes all temperatures 1.

    >>> class_temperatures([3, 1], factor=0.5)  # w = 1.25 and 0.75
    tensor([1.0000, 0.6000])
    """
    counts = checked_counts(class_counts, "class_temperatures")
    weights = counts.numel() * counts / counts.sum() * factor + 1 - factor
    return (weights / weights.max()).to(torch.get_default_dtype())


def divergence(expert_logits: Tensor, temperatures: Tensor | None = None) -> Tensor:
    """How far the experts are from their mean; a scalar, summed over experts.

    For each expert ``Tm^2 KL(softmax(mean / T) || softmax(z / T))``, averaged over samples. No
    gradient passes through the mean of the experts' logits.

    Args:
        expert_logits: (E, N, K).
        temperatures: (K,), each dividing the logit of its class, with mean Tm; None means 1.
    """
    logits = widened(expert_logits)
    mean = logits.mean(0)
    if temperatures is None:
        return kl_from(mean, logits)
    temperatures = temperatures.to(logits.dtype)
    return temperatures.mean().square() * kl_from(mean / temperatures, logits / temperatures)


def ride(
    expert_logits: Tensor,
    targets: Tensor,
    margins: Tensor,
    scale: float = 30.0,
    class_weights: Tensor | None = None,
    *,
    diversity: float = -0.2,
    temperatures: Tensor | None = None,
) -> Tensor:
    """Every expert's LDAM loss plus `diversity` times its divergence from the mean, summed.

    Args:
        expert_logits: (E, N, K), cosines already multiplied by `scale`.
        targets: (N,) class indices.
        margins: (K,), from :func:`~batchformer.lab.losses.long_tailed.ldam_margins`.
        scale: of the logits; it multiplies the margins.
        class_weights: (K,) once re-weighting has begun, else None.
        diversity: negative drives the experts apart.
        temperatures: (K,) once re-weighting has begun, else None.
    """
    require_shapes("ride", expert_logits=(expert_logits, "E N K"), targets=(targets, "N"))
    logits, experts = widened(expert_logits), len(expert_logits)
    # All experts have the same weights, so the mean over E N rows is the mean of their means.
    rows, row_targets = logits.flatten(0, 1), targets.repeat(experts)
    losses = experts * ldam(rows, row_targets, margins, scale, class_weights)
    return losses + diversity * divergence(logits, temperatures)


def ride_with_teacher(
    ride_loss: Tensor,
    expert_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.5,
    factor: float = 1.0,
    distillation_count: DistillationCount = "once",
) -> Tensor:
    """The loss of :func:`ride` plus `factor` times the distillation from a teacher; a scalar.

    Args:
        ride_loss: scalar, of the same logits.
        expert_logits: (E, N, K); their mean is the student's answer.
        teacher_logits: (N, K); for a teacher of several experts, the mean of their logits.
        distillation_count: "once" adds the two. "per_expert" adds that sum once for every expert,
            as RIDE's released code does: the whole loss times E.
    """
    student = widened(expert_logits).mean(0)
    loss = ride_loss + factor * distillation(student, teacher_logits, temperature)
    return loss if distillation_count == "once" else len(expert_logits) * loss


class RIDE(LDAM):
    """``ride`` with the margins, weights and temperatures of one training set.

    Temperatures apply with the class weights, once it is `reweighted`.

    Args:
        diversity: weight of the divergence from the mean: -0.2 for ImageNet-LT and iNaturalist,
            -0.45 for CIFAR.
        temperature_factor: of :func:`class_temperatures`: 0.02 for ImageNet-LT, 0.015 for
            iNaturalist, 0.05 for CIFAR.
        options: of :class:`~batchformer.lab.losses.long_tailed.LDAM`.
    """

    temperatures: Tensor

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        diversity: float = -0.2,
        temperature_factor: float = 0.02,
        **options: Any,
    ) -> None:
        super().__init__(class_counts, **options)
        self.diversity = diversity
        temperatures = class_temperatures(class_counts, temperature_factor)
        self.register_buffer("temperatures", temperatures, persistent=False)

    def forward(self, expert_logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of expert logits (E, N, K) against targets (N,)."""
        return ride(
            expert_logits,
            targets,
            self.margins,
            self.scale,
            self.class_weights if self.reweighted else None,
            diversity=self.diversity,
            temperatures=self.temperatures if self.reweighted else None,
        )
