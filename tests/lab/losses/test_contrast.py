"""Contrastive losses: extremes and refusals; their values are in test_moco_reference.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.contrast import (
    batch_contrast,
    queue_contrast,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_empty_queue_asks_for_nothing() -> None:
    q = F.normalize(drawn(4, 3), dim=1).requires_grad_()
    loss = queue_contrast(q, q.detach().flip(0), drawn(6, 3), 0.2, torch.zeros(6) > 0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0 and q.grad is not None and not q.grad.any()


FULL = torch.ones(8, dtype=torch.bool)


def test_half_precision_is_widened() -> None:
    q, k, queue = (F.normalize(drawn(8, 16, seed=s), dim=1).bfloat16() for s in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        got = queue_contrast(q, k, queue, 0.2, FULL), batch_contrast(q, k, 0.2)
    wide = q.float(), k.float(), queue.float()
    torch.testing.assert_close(got[0], queue_contrast(*wide, 0.2, FULL))
    torch.testing.assert_close(got[1], batch_contrast(*wide[:2], 0.2))
    assert got[0].dtype == got[1].dtype == torch.float32


ROW = torch.zeros(3, 2)
QUEUE = r"queries \(N, D\), keys \(N, D\), queue \(Q, D\) and valid \(Q,\), got"
REFUSED: list[tuple[Any, tuple[Any, ...], str]] = [
    (queue_contrast, (ROW, ROW[:2], ROW, 0.2, FULL[:3]), QUEUE),
    (queue_contrast, (ROW, ROW, torch.zeros(3, 4), 0.2, FULL[:3]), QUEUE),
    (queue_contrast, (ROW, ROW, ROW, 0.2, FULL), QUEUE),
    (batch_contrast, (ROW, ROW, 1.0, 1), "3 keys are too few for 3 queries whose keys begin at 1"),
    (batch_contrast, (ROW, torch.zeros(3, 4), 1.0), r"queries \(N, D\) and keys \(M, D\)"),
]


@pytest.mark.parametrize(("function", "arguments", "words"), REFUSED)
def test_what_does_not_fit_is_said(function: Any, arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        function(*arguments)
