"""Checkpoints of contrastive learning, and others that hold more than one network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.methods.moco import MocoV3
from batchformer.lab.models.build import build_model
from batchformer.lab.models.weights import fit_weights, one_network, read_weights

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return build_model("digits_net", 5)


def under(prefix: str, state: State) -> State:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def body(network: nn.Module) -> State:
    return {k: v for k, v in network.state_dict().items() if not k.startswith("fc.")}


def moco_v2(network: nn.Module) -> State:
    """As the authors' code saves it: projections in the place of classifiers."""
    head = {"fc.0.weight": torch.ones(64, 64), "fc.2.weight": torch.ones(8, 64)}
    queries = {**body(network), **head}
    keys = {name: torch.zeros_like(value) for name, value in queries.items()}
    state = {**under("encoder_q", queries), **under("encoder_k", keys)}
    return under("module", {**state, "queue": torch.ones(8, 4), "queue_ptr": torch.zeros(1)})


def moco_v3(network: nn.Module) -> State:
    base = {**body(network), "fc.0.weight": torch.ones(64, 64), "fc.1.bias": torch.ones(64)}
    momentum = {name: torch.zeros_like(value) for name, value in base.items()}
    state = {**under("base_encoder", base), **under("momentum_encoder", momentum)}
    return under("module", {**state, "predictor.0.weight": torch.ones(8, 8)})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (moco_v2, "of encoder_q alone, without encoder_k, encoder_q.fc, queue, queue_ptr"),
        (moco_v3, "of base_encoder alone, without base_encoder.fc, momentum_encoder, predictor"),
    ],
)
@pytest.mark.parametrize("suffix", [".pth.tar", ".safetensors"])
def test_checkpoints_of_moco(
    tmp_path: Path, network: nn.Module, made: Any, words: str, suffix: str
) -> None:
    file = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in made(network).items()}, file)
    else:
        torch.save({"epoch": 200, "arch": "resnet50", "state_dict": made(network)}, file)
    stored = read_weights(file)
    assert stored.words == words
    wanted = body(network)
    assert stored.tensors.keys() == wanted.keys()
    assert all(torch.equal(stored.tensors[key], wanted[key]) for key in wanted)
    other = build_model("digits_net", 3)
    fitted = fit_weights(other, stored.tensors, "file")
    assert not fitted.classifier and "without its classifier" in fitted.words
    assert all(torch.equal(other.state_dict()[key], wanted[key]) for key in wanted)


def test_a_projection_with_as_many_outputs_as_classes_is_no_classifier(network: nn.Module) -> None:
    """MoCo-v1 has one layer, of 128 channels; a data set may have 128 classes."""
    state = under("encoder_q", network.state_dict())
    found, words = one_network(state)
    assert found.keys() == body(network).keys() and "without encoder_q.fc" in words


@pytest.mark.parametrize("prefix", ["backbone", "network"])
def test_networks_beside_heads_keep_their_classifier(network: nn.Module, prefix: str) -> None:
    state = {**under(prefix, network.state_dict()), "decoder.weight": torch.ones(2)}
    found, words = one_network(state)
    assert found.keys() == network.state_dict().keys()
    assert words == f"of {prefix} alone, without decoder"


def test_our_own_checkpoints(tmp_path: Path, network: nn.Module) -> None:
    method = MocoV3(
        network, ModuleConfig(), 0, MethodConfig(dim=4, projection_hidden=8, projection_layers=2)
    )
    state = {"method": method.state_dict(), "optimizers": {}, "counters": {"update": 3}}
    torch.save(state, tmp_path / "w.pt")
    stored = read_weights(tmp_path / "w.pt")
    assert stored.tensors.keys() == network.state_dict().keys()
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in stored.tensors.items())
    for part in ("key_network", "predictor", "encoder"):
        assert part in stored.words


def test_a_plain_network_is_left_alone(network: nn.Module) -> None:
    found, words = one_network(network.state_dict())
    assert found.keys() == network.state_dict().keys() and words == ""
