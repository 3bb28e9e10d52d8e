"""The candidates compute the same layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from batchformer.kernels.available import unsupported_reason
from batchformer.lab.bench import attention as layer
from batchformer.lab.bench.attention import WHOLE, Layer, watched
from batchformer.nn import attention, encoder

CPU = torch.device("cpu")


def test_every_path_and_torchs_layer_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "DROPOUT", 0.0)
    made = Layer(12, 16, CPU, torch.float32)
    assert made.x.std() > 0.5 and made.gradient.std() > 0.5
    expected = made.with_backward(made.forward_stock)
    assert len(expected) == 13
    assert made.chosen == "explicit" and sorted(made.others) == ["blockwise", "fused"]
    by_path = [partial(made.forward_by, path) for path in made.others]
    forwards: list[Callable[[], Tensor]] = [made.forward_ours, *by_path]
    for forward in forwards:
        found = made.with_backward(forward)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_a_path_is_taken_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made, taken = Layer(6, 8, CPU, torch.float32), list[str]()

    def blockwise(q: Tensor, *_: object, **__: object) -> Tensor:
        taken.append("blockwise")
        return q

    monkeypatch.setattr(attention, "blockwise_attention", blockwise)
    made.forward_by("blockwise")
    assert taken == ["blockwise"] and vars(encoder)["attention"] is attention.attention
    made.forward_ours()
    assert taken == ["blockwise"]
    with pytest.raises(ValueError, match="inside"), watched("fused"):
        raise ValueError("inside")
    assert vars(encoder)["attention"] is attention.attention


def test_a_layer_without_a_choice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def whole(x: Tensor, *_: object, **__: object) -> Tensor:
        seen.append(unsupported_reason(x))
        return x

    monkeypatch.setattr(layer, "batch_former", whole)
    made = Layer(6, 8, CPU, torch.float32)
    assert made.chosen == WHOLE and sorted(made.others) == ["blockwise", "explicit", "fused"]
    with pytest.raises(RuntimeError, match="does not come to choose a path, fused"):
        made.forward_by("fused")
    assert seen[-1] == "kernels are disabled" != seen[0]
