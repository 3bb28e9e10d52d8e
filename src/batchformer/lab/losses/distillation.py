"""Distillation (Hinton et al., 2015): a student's softened probabilities follow a teacher's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
    """``T^2 KL(softmax(teacher / T) || softmax(student / T))``, averaged over samples; a scalar.

    The factor T^2 keeps the size of gradients comparable over temperatures. Taken in float32 or
    wider.

    Args:
        student_logits: (N, K).
        teacher_logits: (N, K), taken as constant.
        temperature: T.

    >>> logits = torch.tensor([[1.0, 2.0]])
    >>> distillation(logits, logits + 5, temperature=2.0).abs() < 1e-6
    tensor(True)
    """
    if student_logits.ndim != 2 or teacher_logits.shape != student_logits.shape:
        raise ValueError(
            f"distillation needs logits (N, K) of student and teacher, got "
            f"{tuple(student_logits.shape)} and {tuple(teacher_logits.shape)}; with two streams, "
            f"repeat the teacher's rows for both"
        )
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    teacher, student = teacher_logits.to(dtype), student_logits.to(dtype)
    return temperature**2 * kl_from(teacher / temperature, student / temperature)
