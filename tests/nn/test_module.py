"""The encoder against the stock layer, and the ways it may be called."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributed as dist

import batchformer.nn.module as module_under_test
from batchformer import BatchFormer, two_streams
from batchformer.nn.encoder import bypassed
from batchformer.nn.module import mix_second_half, parameter_count, without_exchange


def stock_layer(dim: int, heads: int = 4, dropout: float = 0.0) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(dim, heads, dim_feedforward=dim, dropout=dropout)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 40), heads=st.sampled_from([1, 2, 4]), width=st.integers(1, 8))
def test_equals_the_stock_layer_in_outputs_and_gradients(n: int, heads: int, width: int) -> None:
    dim = heads * width
    # In double precision: the norm of two channels that are nearly equal magnifies any rounding.
    stock = stock_layer(dim, heads).double()
    ours = BatchFormer(dim, heads, dropout=0.0, dtype=torch.float64)
    ours.load_state_dict(stock.state_dict())
    x = torch.randn(n, dim, dtype=torch.float64)
    expected, got = stock(x.unsqueeze(1)).squeeze(1), ours(x)
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)
    weight = torch.randn_like(x)
    (expected * weight).sum().backward()
    (got * weight).sum().backward()
    for (name, p), q in zip(stock.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-8, rtol=1e-8, msg=name)


def test_dropout_acts_where_the_stock_layer_has_it() -> None:
    """With one seed the masks agree, so all four places agree."""
    torch.manual_seed(0)
    stock = stock_layer(16, dropout=0.5)
    torch.manual_seed(0)
    ours = BatchFormer(16)
    x = torch.randn(9, 16)
    torch.manual_seed(1)
    expected = stock(x.unsqueeze(1)).squeeze(1)
    torch.manual_seed(1)
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 6, 8), (0, -1)), ((6, 5, 8), (1, -1)), ((5, 8, 2, 3), (0, 1))]
)
def test_padding_is_hidden_as_by_the_stock_layers_mask(
    shape: tuple[int, ...], axes: tuple[int, int]
) -> None:
    """The stock layer's sequence is the batch, and its padding mask (L, N) differs by position."""
    stock = stock_layer(8).double()
    ours = BatchFormer(8, dropout=0.0, batch_axis=axes[0], channel_axis=axes[1]).double()
    ours.load_state_dict(stock.state_dict())
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    visible = torch.rand(shape).narrow(axes[1], 0, 1).squeeze(axes[1]) > 0.4
    visible.select(axes[0], 0).fill_(True)
    rows = x.movedim(axes, (0, -1)).flatten(1, -2)
    padding = ~visible.movedim(axes[0], 0).flatten(1).T
    expected = stock(rows, src_key_padding_mask=padding)
    got = ours(x, visible=visible)
    torch.testing.assert_close(got.movedim(axes, (0, -1)).flatten(1, -2), expected)
    assert padding.any() and not torch.allclose(got, ours(x))
    both = (
        torch.autograd.grad(got.square().sum(), x),
        torch.autograd.grad(expected.square().sum(), x),
    )
    torch.testing.assert_close(*both)


def test_positions_with_padding_alone_and_masks_of_a_wrong_shape() -> None:
    module, x = BatchFormer(8, dropout=0.0), torch.randn(4, 3, 8)
    visible = torch.ones(4, 3, dtype=torch.bool)
    visible[:, 1] = False
    torch.testing.assert_close(module(x, visible=visible), module(x))
    assert torch.equal(module.eval()(x, visible=visible), x)
    module.train()
    for wrong in (visible.T, visible.float()):
        with pytest.raises(ValueError, match=r"visible= is a bool tensor of shape \(4, 3\)"):
            module(x, visible=wrong)
    with pytest.raises(ValueError, match="with exchange=True"):
        BatchFormer(8, exchange=True)(x, visible=visible)


def test_a_stack_equals_the_stock_encoder_and_its_layers_differ() -> None:
    ours = BatchFormer(8, layers=3, dropout=0.0)
    weights = [layer.linear1.weight for layer in ours.layers]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    stock = nn.TransformerEncoder(stock_layer(8), 3, enable_nested_tensor=False)
    stock.load_state_dict(ours.state_dict())
    x = torch.randn(6, 8)
    torch.testing.assert_close(ours(x), stock(x.unsqueeze(1)).squeeze(1), atol=1e-5, rtol=1e-5)


def test_copied_layers_start_as_those_of_the_stock_encoder() -> None:
    torch.manual_seed(3)
    ours = BatchFormer(8, layers=3, copy_layers=True)
    torch.manual_seed(3)
    stock = nn.TransformerEncoder(stock_layer(8), 3, enable_nested_tensor=False)
    expected, got = stock.state_dict(), ours.state_dict()
    assert list(got) == list(expected)
    assert all(torch.equal(got[key], value) for key, value in expected.items())
    places = [parameter.data_ptr() for parameter in ours.parameters()]
    assert len(set(places)) == len(places), "each layer has its own"


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_mixed_rows_start_with_the_scale(scale: float) -> None:
    torch.manual_seed(3)
    ours = BatchFormer(64, layers=2, scale=scale)
    torch.manual_seed(3)
    usual = BatchFormer(64, layers=2)
    x = torch.randn(6, 64)
    torch.testing.assert_close(ours.mix(x), scale * usual.mix(x))
    assert float(ours.mix(x).detach().square().mean().sqrt()) == pytest.approx(scale, rel=1e-3)


def test_gradients_by_finite_differences() -> None:
    layer = BatchFormer(4, 2, dropout=0.0).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 6), length=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_layout_carries_the_same_numbers(n: int, length: int, seed: int) -> None:
    torch.manual_seed(seed)
    reference = BatchFormer(8, dropout=0.0)
    tokens = torch.randn(n, 2 * length, 8)  # (N, L, C)
    expected = torch.stack([reference(tokens[:, i]) for i in range(2 * length)], dim=1)

    def run(x: torch.Tensor, **axes: int) -> torch.Tensor:
        same = BatchFormer(8, dropout=0.0, **axes)  # type: ignore[arg-type]
        same.load_state_dict(reference.state_dict())
        out: torch.Tensor = same(x)
        assert out.shape == x.shape
        return out

    images = tokens.transpose(1, 2).reshape(n, 8, 2, length)  # (N, C, H, W)
    back = {
        "(N, L, C)": run(tokens),
        "(L, N, C)": run(tokens.transpose(0, 1), batch_axis=1).transpose(0, 1),
        "(N, C, H, W)": run(images).flatten(2).transpose(1, 2),
        "(N, H, W, C)": run(images.permute(0, 2, 3, 1), channel_axis=-1).flatten(1, 2),
        "(N, C, L)": run(tokens.transpose(1, 2), channel_axis=1).transpose(1, 2),
    }
    for layout, got in back.items():
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5, msg=layout)


@given(seed=st.integers(0, 999))
@settings(max_examples=20, deadline=None)
def test_permuting_the_batch_permutes_the_output(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(7, generator=generator)
    x = torch.randn(7, 8, generator=generator)
    encoder = BatchFormer(8, dropout=0.0)
    torch.testing.assert_close(encoder(x[order]), encoder(x)[order], atol=1e-5, rtol=1e-5)


def test_eval_is_the_identity_and_mix_runs_anyway() -> None:
    encoder = BatchFormer(8).eval()
    x = torch.randn(5, 8)
    assert encoder(x) is x and two_streams(x, encoder) is x and mix_second_half(x, encoder) is x
    mixed, weights = encoder.mix(x, return_weights=True)
    assert torch.equal(mixed, encoder.mix(x)), "mix is deterministic"
    assert weights.shape == (1, 1, 4, 5, 5)
    torch.testing.assert_close(encoder.train().mix(x), mixed)
    assert not torch.equal(encoder.mix(x, dropout=0.5), mixed)


def test_two_streams_are_plain_then_mixed() -> None:
    encoder = BatchFormer(8, dropout=0.0)
    x = torch.randn(5, 8)
    plain, mixed = two_streams(x, encoder).chunk(2)
    assert torch.equal(plain, x) and torch.equal(mixed, encoder(x))
    again = mix_second_half(torch.cat((plain, mixed)), encoder)
    assert torch.equal(again[:5], x) and torch.equal(again[5:], encoder(mixed))


def test_each_sample_sees_the_others_and_in_the_control_only_itself() -> None:
    x = torch.randn(6, 8)
    changed = x.clone()
    changed[2] += 1
    for attend, others_move in (("batch", True), ("self", False)):
        encoder = BatchFormer(8, dropout=0.0, attend=attend)  # type: ignore[arg-type]
        moved = (encoder(x) != encoder(changed)).any(dim=1)
        assert moved[2]
        assert moved[torch.arange(6) != 2].all().item() is others_move
    both = BatchFormer(8), BatchFormer(8, attend="self")
    shapes = [[tuple(p.shape) for p in encoder.parameters()] for encoder in both]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(("rows", "exchange"), [(0, False), (1, False), (1, True)])
def test_a_lonely_sample_passes_and_leaves_zero_gradients(
    rows: int, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_under_test, "_warned_of_single_sample", False)
    encoder = BatchFormer(8, exchange=exchange)
    with torch.no_grad():
        encoder.layers[0].linear1.weight.fill_(torch.inf)  # even broken weights do not matter
    x = torch.randn(rows, 8)
    with pytest.warns(UserWarning, match="one sample"):
        out = two_streams(x, encoder)
    assert torch.equal(out, torch.cat((x, x)))
    out.sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder(x)  # said once in all


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_output_has_the_type_of_the_input_under_autocast(device: str) -> None:
    encoder = BatchFormer(8, dropout=0.0).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        for dtype in (torch.bfloat16, torch.float32):
            x = torch.randn(4, 8, device=device, dtype=dtype)
            assert encoder(x).dtype == dtype
            out = two_streams(x, encoder)
            assert out.dtype == dtype and out.shape == (8, 8)


def test_copies_and_counts() -> None:
    encoder = BatchFormer(8, dropout=0.0)
    twin = copy.deepcopy(encoder)
    x = torch.randn(3, 8)
    assert torch.equal(twin(x), encoder(x))
    assert parameter_count(encoder) == parameter_count(stock_layer(8)) == 6 * 64 + 10 * 8
    assert "8, heads=4" in repr(encoder)
    assert not encoder.exchange and "exchange" not in repr(encoder)
    assert "exchange=True" in repr(BatchFormer(8, exchange=True))


def test_exchange_draws_one_seed_for_all_masks_of_a_call() -> None:
    torch.manual_seed(0)
    encoder, x = BatchFormer(8, layers=2, exchange=True), torch.randn(6, 8)
    torch.manual_seed(5)
    first, second = encoder(x), encoder(x)
    after = torch.get_rng_state()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(encoder(x), first)
    torch.manual_seed(5)
    for _ in range(2):
        torch.randint(2**62, (1,))
    assert torch.equal(torch.get_rng_state(), after)


def test_exchange_can_be_suspended_and_comes_back() -> None:
    model = nn.Sequential(BatchFormer(8, exchange=True), BatchFormer(8))
    with pytest.raises(KeyError), without_exchange(model):
        assert not any(module.exchange for module in model)
        raise KeyError
    assert [module.exchange for module in model] == [True, False]


class Lora(nn.Module):
    """A wrapper as libraries write it: the layer frozen, a product of two small matrices added."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, layer.in_features))
        self.up = nn.Parameter(torch.randn(layer.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return out


def set_part(layer: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(layer.get_submodule(parent), child, part)


@pytest.mark.parametrize("name", ["linear1", "linear2", "self_attn.out_proj"])
def test_a_wrapped_linear_is_called_and_trained(name: str) -> None:
    module, x = BatchFormer(8, dropout=0.0), torch.randn(5, 8)
    merged = copy.deepcopy(module)
    wrapper = Lora(module.layers[0].get_submodule(name))
    set_part(module.layers[0], name, wrapper)
    with torch.no_grad():
        merged.layers[0].get_submodule(name).weight += wrapper.up @ wrapper.down
    out = module(x)
    torch.testing.assert_close(out, merged(x))
    (out**2).sum().backward()
    assert wrapper.down.grad.any() and wrapper.up.grad.any()
    assert bypassed(module) == []


def test_hooks_of_the_layer_and_of_its_parts_fire() -> None:
    module, x = BatchFormer(8, dropout=0.0), torch.randn(5, 8)
    expected, fired = module(x), []
    (layer,) = module.layers
    parts = {"": layer, "linear1": layer.linear1, "norm2": layer.norm2}
    for name, part in parts.items():
        part.register_forward_hook(lambda *_, name=name: fired.append(name))
    assert torch.equal(module(x), expected) and fired == ["linear1", "norm2", ""]


def test_parts_that_are_never_called_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), BatchFormer(8, layers=2))
    assert bypassed(model) == []
    first, second = model[1].layers
    first.self_attn.register_forward_hook(lambda *_: None)
    second.dropout1 = nn.AlphaDropout()
    assert bypassed(model) == ["1.layers.0.self_attn", "1.layers.1.dropout1"]


def test_a_stock_layer_may_take_the_place_of_ours() -> None:
    module, x = BatchFormer(8, dropout=0.0), torch.randn(5, 8)
    stock = nn.TransformerEncoderLayer(8, 4, 8, dropout=0.0)
    module.layers[0] = stock
    torch.testing.assert_close(module(x), stock(x[:, None])[:, 0])


def test_a_sharded_layer_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch", "2.7", reason="before 2.7 nothing can be sharded on a CPU")
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    module, x = BatchFormer(8, dropout=0.0), torch.randn(5, 8)
    expected = module(x)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        fully_shard(module.layers[0], mesh=mesh)
        out = module(x)
        torch.testing.assert_close(out, expected)
        (out**2).sum().backward()
        assert all(p.grad is not None for p in module.parameters())
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("shape", [(5, 8), (5, 3, 8), (5, 8, 2, 3)])
def test_a_bottleneck_is_two_linear_layers_around_a_smaller_encoder(shape: tuple[int, ...]) -> None:
    module, x = BatchFormer(8, heads=2, dropout=0.0, bottleneck=4), torch.randn(shape)
    small = BatchFormer(4, heads=2, dropout=0.0)
    small.layers.load_state_dict(module.layers.state_dict())
    channels_last = x.movedim(1, -1) if len(shape) > 3 else x
    inner = (
        small(module.down(channels_last).flatten(1, -2)) if x.ndim > 2 else small(module.down(x))
    )
    expected = channels_last + module.up(inner).view(channels_last.shape)
    expected = expected.movedim(-1, 1) if len(shape) > 3 else expected
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module.mix(x), expected)
    assert module.eval()(x) is x
    assert "bottleneck=4" in repr(module) and parameter_count(module) < parameter_count(
        BatchFormer(8)
    )


def test_heads_divide_the_channels_of_the_encoder() -> None:
    with pytest.raises(ValueError, match="4 heads do not divide dim=10; use heads= one of 1, 2, 5"):
        BatchFormer(10)
    with pytest.raises(ValueError, match="4 heads do not divide dim=6"):
        BatchFormer(8, bottleneck=6)
