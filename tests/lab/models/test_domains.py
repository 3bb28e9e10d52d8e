"""Gradient reversal, and mixed styles against a loop over samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from batchformer.lab.models.build import build_model
from batchformer.lab.models.domains import (
    MixStyle,
    draw_partners,
    insert_mixstyle,
    mix_styles,
    reverse_gradient,
)

# Gradient reversal.


def test_values_pass_bit_for_bit_and_layers_behind_learn_as_ever() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    out = reverse_gradient(x, torch.tensor(0.5))
    assert torch.equal(out, x)
    (out @ weight).square().sum().backward()
    reversed_x, behind = x.grad, weight.grad
    x.grad = weight.grad = None
    (x @ weight).square().sum().backward()
    assert behind is not None and torch.equal(behind, weight.grad)
    torch.testing.assert_close(reversed_x, -0.5 * x.grad)


def test_the_coefficient_keeps_the_type_of_half_precision() -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    reverse_gradient(x, torch.tensor(0.25)).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert torch.equal(x.grad, torch.full((3, 4), -0.25, dtype=torch.bfloat16))


# MixStyle.


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1 + 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def loop(x: Tensor, share: list[float], partner: list[int]) -> Tensor:
    """One sample and one channel at a time."""
    out = torch.empty_like(x)
    for i, (own, other) in enumerate(zip(share, partner, strict=True)):
        for c in range(x.shape[1]):
            mean, deviation = [], []
            for row in (i, other):
                pixels = x[row, c].flatten().tolist()
                middle = sum(pixels) / len(pixels)
                variance = sum((v - middle) ** 2 for v in pixels) / len(pixels)
                mean.append(middle)
                deviation.append((variance + 1e-6) ** 0.5)
            normal = (x[i, c] - mean[0]) / deviation[0]
            new_deviation = own * deviation[0] + (1 - own) * deviation[1]
            out[i, c] = normal * new_deviation + own * mean[0] + (1 - own) * mean[1]
    return out


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    channels=st.integers(1, 3),
    side=st.integers(1, 3),
    share=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    partner=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_equals_a_loop(
    seed: int, channels: int, side: int, share: list[float], partner: list[int]
) -> None:
    x = draw(seed, 4, channels, side, side)
    mixed = mix_styles(x, torch.tensor(share, dtype=torch.float64), torch.tensor(partner))
    torch.testing.assert_close(mixed, loop(x, share, partner), rtol=1e-9, atol=1e-9)


def test_a_share_of_one_changes_no_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = draw(0, 4, 3, 5, 5).to(dtype)
        mixed = mix_styles(x, torch.ones(4), torch.tensor([2, 3, 0, 1]))
        assert torch.equal(mixed, x) and mixed.dtype == dtype


def test_statistics_pass_no_gradient() -> None:
    x = draw(1, 2, 1, 2, 2).requires_grad_()
    share = torch.tensor([0.3, 1.0], dtype=torch.float64)
    mix_styles(x, share, torch.tensor([1, 0])).sum().backward()
    deviation = (x.detach().var((2, 3), correction=0) + 1e-6).sqrt()
    scale = 0.3 + 0.7 * deviation[1] / deviation[0]
    # With gradients through the statistics the pixels of a sample would not be alike.
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0], scale.expand(1, 2, 2))
    torch.testing.assert_close(x.grad[1], torch.ones(1, 2, 2, dtype=torch.float64))


@pytest.mark.parametrize(("groups", "rows"), [(2, 8), (2, 2), (3, 12), (4, 4)])
def test_partners_are_of_another_block_each_once(groups: int, rows: int) -> None:
    torch.manual_seed(0)
    size, moves = rows // groups, set()
    for _ in range(30):
        partner = draw_partners(groups, rows, torch.device("cpu"))
        assert sorted(partner.tolist()) == list(range(rows))
        blocks = (partner.view(groups, size) // size).tolist()
        assert all(len(set(row)) == 1 for row in blocks)
        moves.add(tuple((row[0] - g) % groups for g, row in enumerate(blocks)))
    assert moves == {(move,) * groups for move in range(1, groups)}


def test_a_batch_is_mixed_with_its_probability_by_shares_of_the_distribution() -> None:
    torch.manual_seed(0)
    # Deviations are alike and means are 0 and 1, so the mean tells the share.
    noise = torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(1, 1, 2, 2)
    x = torch.cat((noise.expand(8, 1, 2, 2), 1 + noise.expand(8, 1, 2, 2)))
    module = MixStyle(p=0.3, alpha=0.4).train()
    mixed, shares = 0, []
    for _ in range(500):
        out = module(x)
        if not torch.equal(out, x):
            mixed += 1
            shares += (1 - out[:8].mean((1, 2, 3))).tolist()
    assert stats.binomtest(mixed, 500, 0.3).pvalue > 1e-3
    assert stats.kstest(shares, stats.beta(0.4, 0.4).cdf).pvalue > 1e-3
    assert len(set(shares[:8])) == 8  # one for each sample


def test_eval_gives_back_what_came_and_takes_any_number() -> None:
    x = draw(3, 5, 2, 3, 3)
    assert MixStyle(p=1.0).eval()(x) is x


def test_alpha_of_the_paper_gives_no_nan() -> None:
    torch.manual_seed(0)
    module = MixStyle(p=1.0, alpha=0.1).train()
    for _ in range(50):
        assert module(torch.randn(64, 1, 2, 2)).isfinite().all()


@pytest.mark.parametrize("name", ["resnet18", "resnet32"])
def test_stages_get_it_and_no_name_changes(name: str) -> None:
    torch.manual_seed(0)
    network: Any = build_model(name, 5)
    x = torch.randn(4, 3, 32, 32)
    keys, before = list(network.state_dict()), network.eval()(x)
    insert_mixstyle(network, ("layer1", "layer2"), p=1.0, alpha=1.0, groups=2)
    assert list(network.state_dict()) == keys
    mixed = [type(network.get_submodule(f"layer{i}")[-1]) is MixStyle for i in (1, 2, 3)]
    assert mixed == [True, True, False]
    assert torch.equal(network.eval()(x), before)
    for module in network.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    assert not torch.allclose(network(x), before)
    assert repr(network.layer1[-1]) == "MixStyle(p=1, alpha=1, groups=2)"


def test_wrong_places_are_answered_with_the_right_ones() -> None:
    network: Any = build_model("resnet18", 5)
    for name in ("stage1", "conv1"):
        with pytest.raises(ValueError, match=f"named {name}.*after layer1, layer2, layer3, layer4"):
            insert_mixstyle(network, ["layer1", name])
    assert not any(isinstance(m, MixStyle) for m in network.modules())
    with pytest.raises(ValueError, match="after none of its parts"):
        insert_mixstyle(nn.Linear(2, 2), ["layer1"])


def test_wrong_settings_and_batches_are_refused() -> None:
    for bad in ({"alpha": 0.0}, {"groups": 1}, {"p": 1.5}):
        with pytest.raises(ValueError, match=r"MixStyle needs|probability"):
            MixStyle(**bad)
    for shape in ((5, 2, 3, 3), (4, 2)):
        with pytest.raises(ValueError, match=r"data\.sampler domains"):
            MixStyle().train()(torch.zeros(shape))
