"""Mixins that change a module's forward, and what an insertion does to the rows that pass it."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from batchformer import BatchFormer
from batchformer.plug.insertion import (
    ForwardMixin,
    PerStream,
    Place,
    SharedStream,
    add_mixin,
    insert,
    remove,
    remove_mixin,
)


class Doubling(ForwardMixin):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Negating(ForwardMixin):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize("order", [(Doubling, Negating), (Negating, Doubling)])
def test_each_mixin_is_removed_without_the_others(order: tuple[type[ForwardMixin], ...]) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    plain = layer(x)
    for mixin in order:
        add_mixin(layer, mixin)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), -2 * plain)
    remove_mixin(layer, Doubling)
    assert torch.equal(layer(x), -plain)
    for _ in range(2):  # nothing to undo is not an error
        remove_mixin(layer, Negating)
        assert type(layer) is nn.Linear and torch.equal(layer(x), plain)


@pytest.mark.parametrize("first", ["parametrization", "mixin"])
@pytest.mark.parametrize("gone", ["parametrization", "mixin"])
def test_parametrizations_and_mixins_are_removed_in_either_order(first: str, gone: str) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    plain = layer(x)
    if first == "mixin":
        add_mixin(layer, Doubling)
    weight_norm(layer)
    generated = type(layer)
    if first == "parametrization":
        add_mixin(layer, Doubling)
    torch.testing.assert_close(layer(x), 2 * plain)
    torch.testing.assert_close(copy.deepcopy(layer)(x), 2 * plain)
    if gone == "mixin":
        remove_mixin(layer, Doubling)
        torch.testing.assert_close(layer(x), plain)
        assert type(layer).__name__ == "ParametrizedLinear"
        assert first == "mixin" or type(layer) is generated
        remove_parametrizations(layer, "weight")
    else:
        remove_parametrizations(layer, "weight")
        torch.testing.assert_close(layer(x), 2 * plain)
        remove_mixin(layer, Doubling)
    assert type(layer) is nn.Linear
    torch.testing.assert_close(layer(x), plain)


def owner_of(encoder: BatchFormer) -> nn.Module:
    owner = nn.Module()
    owner.batchformer = encoder
    return owner


def test_the_roles() -> None:
    encoder = BatchFormer(8, dropout=0.0)
    owner = owner_of(encoder)
    x = torch.randn(4, 8)
    mixed = encoder(x)
    assert torch.equal(Place("double", (owner,))(x), torch.cat((x, mixed)))
    assert torch.equal(Place("mix_all", (owner,))(x), mixed)
    assert Place("pass", (owner,))(x) is x
    again = Place("mix_second_half", (owner,))(torch.cat((x, x)))
    assert torch.equal(again, torch.cat((x, mixed)))
    encoder.eval()
    for role in ("double", "mix_all", "mix_second_half", "pass"):
        assert Place(role, (owner,))(x) is x  # type: ignore[arg-type]


def test_heads_that_read_the_same_tensor_get_the_same_stream() -> None:
    encoder, stream = BatchFormer(8), SharedStream(readers=2)  # dropout on: draws would differ
    x, other = torch.randn(4, 8), torch.randn(4, 8)
    first = stream.double(x, encoder)
    assert stream.double(x, encoder) is first
    assert stream.source is None and stream.doubled is None, "nothing is kept alive"
    assert stream.double(x, encoder) is not first, "the next pass draws anew"
    assert stream.double(other, encoder) is not first, "other features are not confused"


def test_a_stream_that_one_head_alone_has_read_serves_no_later_pass() -> None:
    """Stored features are the same tensor in every pass, and a pass may be for one task only."""
    encoder, stream = BatchFormer(8), SharedStream(readers=2)
    x = torch.randn(4, 8)
    with torch.no_grad():
        unread = stream.double(x, encoder)
    first = stream.double(x, encoder)
    assert first is not unread and first.requires_grad, "with a gradient"
    first.sum().backward()
    assert stream.doubled is None, "its graph is gone"
    stream.double(x, encoder).sum().backward()
    kept = weakref.ref(stream.double(x, encoder))
    del stream
    gc.collect()
    assert kept() is None, "a hook keeps nothing alive"


def test_insert_and_remove() -> None:
    layer, encoder = nn.Linear(8, 3), BatchFormer(8, dropout=0.0)
    x = torch.randn(4, 8)
    insert(layer, Place("double", (layer,)), encoder)
    assert torch.equal(layer(x), F.linear(torch.cat((x, encoder(x))), layer.weight, layer.bias))
    added = [key for key in layer.state_dict() if key not in ("weight", "bias")]
    assert added and all(key.startswith("batchformer.") for key in added)
    remove(layer)
    assert type(layer) is nn.Linear and list(layer.state_dict()) == ["weight", "bias"]
    assert set(vars(layer)) == set(vars(nn.Linear(8, 3)))


def test_a_module_that_replaces_the_child_acts_from_then_on() -> None:
    layer, encoder = nn.Linear(8, 3), BatchFormer(8, dropout=0.0)
    insert(layer, Place("double", (layer,)), encoder)
    layer.batchformer = other = BatchFormer(8, dropout=0.0)
    x = torch.randn(4, 8)
    assert torch.equal(layer(x), F.linear(torch.cat((x, other(x))), layer.weight, layer.bias))
    del layer.batchformer
    with pytest.raises(RuntimeError, match=r"batchformer\.detach\(model\) to remove BatchFormer"):
        layer(x)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_norms_per_stream(kind: type[nn.Module]) -> None:
    shape = (5, 3) if kind is nn.BatchNorm1d else (5, 3, 2, 2)
    plain, mixed = torch.randn(shape), 4 * torch.randn(shape) + 2
    alone, norm = kind(3), kind(3)
    driver = BatchFormer(8)
    add_mixin(norm, PerStream, _doubled_by=(owner_of(driver),))
    out = norm(torch.cat((plain, mixed)))
    torch.testing.assert_close(out[:5], alone(plain))
    torch.testing.assert_close(norm.running_mean, alone.running_mean)
    torch.testing.assert_close(norm.running_var, alone.running_var)
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(out[5:], kind(3)(mixed))
    driver.eval()  # one stream only: an ordinary norm
    torch.testing.assert_close(norm(mixed), alone(mixed))
    remove(norm)
    assert type(norm) is kind and "_doubled_by" not in vars(norm)
