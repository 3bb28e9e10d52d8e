"""Mixup and CutMix: for given draws as timm's, and drawn as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from timm.data import mixup as reference

from batchformer.lab.data.transforms.mixup import blend, cut_box, draw_mix, mix_batch, paste

CPU = torch.device("cpu")


def _batch(n: int = 6, height: int = 9, width: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, height, width, generator=draw)
    return x, torch.randint(5, (n,), generator=draw)


class Told(reference.Mixup):  # type: ignore[misc]
    """timm's with a given share, and CutMix or not."""

    def __init__(self, share: float, cut: bool, smoothing: float) -> None:
        super().__init__(1.0, 1.0, label_smoothing=smoothing, num_classes=5)
        self.told = share, cut

    def _params_per_batch(self) -> tuple[float, bool]:
        return self.told


@pytest.mark.parametrize("share", [0.0, 0.3, 0.72])
def test_mixup_as_timm(share: float) -> None:
    x, y = _batch()
    theirs, soft = Told(share, False, 0.0)(x.clone(), y)
    ours, targets = mix_batch(x, y, blend(torch.tensor(share), 9, 7), 5)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(targets, soft)


def _odd_sides_are_whole() -> bool:
    """Older versions of timm cut a box of odd sides one pixel short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *_, **__: 1)
        top, bottom, _, _ = reference.rand_bbox((1, 1, 3, 3), 0.0)
    return bool(bottom - top == 3)


@settings(max_examples=60, deadline=None)
@given(part=st.integers(0, 63), row=st.integers(0, 8), column=st.integers(0, 6))
def test_cutmix_as_timm(part: int, row: int, column: int) -> None:
    x, y = _batch()
    share = part / 64  # in float32 as in float64, so that sides are rounded down alike
    odd = any(int(side * np.sqrt(1 - share)) % 2 for side in (9, 7))
    assume(not odd or _odd_sides_are_whole())
    centres = iter((row, column))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *_, **__: next(centres))
        theirs, soft = Told(share, True, 0.0)(x.clone(), y)
    box = cut_box(torch.tensor(share), torch.tensor(row), torch.tensor(column), 9, 7)
    ours, targets = mix_batch(x, y, paste(box), 5)
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(targets, soft)


def test_smoothing_afterwards_equals_smoothing_before() -> None:
    y = torch.tensor([0, 3, 3, 1])
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    smooth = reference.mixup_target(y, 5, 0.7, smoothing=0.1)
    expected = -(smooth * logits.log_softmax(1)).sum(1).mean()
    _, soft = mix_batch(torch.zeros(4, 1, 2, 2), y, blend(torch.tensor(0.7), 2, 2), 5)
    loss = torch.nn.functional.cross_entropy(logits, soft, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_a_middle_one_is_its_own_partner_and_soft_targets_stay() -> None:
    x, y = _batch(3)
    ours, targets = mix_batch(x, y, blend(torch.tensor(0.25), 9, 7), 5)
    torch.testing.assert_close(ours[1], x[1])
    assert targets[1].tolist() == torch.eye(5)[y[1]].tolist()
    again = mix_batch(x, torch.eye(5)[y], blend(torch.tensor(0.25), 9, 7), 5)[1]
    assert torch.equal(again, targets)
    torch.testing.assert_close(targets.sum(1), torch.ones(3))


def test_shares_are_drawn_from_beta_and_the_two_kinds_switch() -> None:
    torch.manual_seed(0)
    mixes = [draw_mix(16, 16, 0.8, 1.0, 0.25, CPU) for _ in range(1000)]
    pasted = [mix for mix in mixes if mix.own.unique().tolist() in ([0.0], [1.0], [0.0, 1.0])]
    blended = [float(mix.share) for mix in mixes if len(mix.own.unique()) == 1]
    blended = [share for share in blended if 0 < share < 1]
    assert len(pasted) + len(blended) == 1000
    assert len(pasted) == pytest.approx(250, abs=57)  # a standard deviation of 14
    assert stats.kstest(blended, stats.beta(0.8, 0.8).cdf).pvalue > 1e-3
    for mix in pasted[:50]:
        assert float(mix.share) == pytest.approx(float(mix.own.mean()))
    # A box has its centre anywhere, so that every pixel is in it about as often as its mirror.
    total = torch.stack([1 - mix.own for mix in pasted]).mean(0)
    assert (total - total.flip(0)).abs().max() < 0.2 and total[8, 8] > total[0, 0]


def test_one_kind_alone() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        assert len(draw_mix(5, 4, 0.8, 0.0, 1.0, CPU).own.unique()) == 1
        assert set(draw_mix(5, 4, 0.0, 1.0, 0.0, CPU).own.unique().tolist()) <= {0.0, 1.0}
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_mix(5, 4, 0.0, 0.0, 0.5, CPU)
