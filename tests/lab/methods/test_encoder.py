"""BatchFormer as the settings describe it, with weights of its own."""

from __future__ import annotations

import torch

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.methods.classifier import make_encoder


def test_settings_reach_the_encoder() -> None:
    module = ModuleConfig(heads=2, layers=3, dropout=0.1, attend="self", trained=False)
    encoder = make_encoder(8, module, seed=0, batch_axis=1)
    assert encoder is not None
    assert (encoder.heads, len(encoder.layers), encoder.dropout) == (2, 3, 0.1)
    assert (encoder.attend, encoder.batch_axis, encoder.dim) == ("self", 1, 8)
    assert not any(p.requires_grad for p in encoder.parameters())
    assert make_encoder(8, ModuleConfig(enabled=False), seed=0) is None


def test_layers_may_start_as_copies() -> None:
    """The first layer is the same either way, so that one layer is no other encoder."""
    own, copies = (
        make_encoder(8, ModuleConfig(layers=3, copy_layers=copied), seed=0)
        for copied in (False, True)
    )
    assert own is not None and copies is not None
    weights = [[layer.linear1.weight for layer in e.layers] for e in (own, copies)]
    assert torch.equal(weights[0][0], weights[1][0])
    assert not torch.equal(*weights[0][:2]) and torch.equal(*weights[1][:2])
    assert not ModuleConfig().copy_layers


def test_weights_are_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make_encoder(8, ModuleConfig(), seed=0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    same, other = make_encoder(8, ModuleConfig(), seed=0), make_encoder(8, ModuleConfig(), seed=1)
    weights = [e.layers[0].linear1.weight for e in (one, same, other)]  # type: ignore[union-attr]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
