"""From a recipe and a seed to a network, its weights, a method, a task and a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import DomainConfig
from batchformer.lab.models.build import OWN, build_model
from batchformer.lab.models.ride import RideNetwork
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import (
    RecordedSizes,
    build,
    build_network,
    given_stride,
    given_weights,
    load_task,
    pick_device,
    recordable,
    settle_stride,
    take_given_weights,
    take_weights,
)
from helpers.networks import bottlenecks, only_built


def test_experts_and_scale() -> None:
    recipe = find_recipe("cifar100_lt_ride")
    recipe = recipe.changed(hyper={"scale": 7.0})
    with only_built():
        network, larger = build_network(recipe, 4), build_network(recipe, 4, experts=5)
    assert isinstance(network, RideNetwork) and isinstance(larger, RideNetwork)
    assert (network.experts, larger.experts, network.classifiers[0].scale) == (3, 5, 7.0)


@pytest.mark.parametrize("zero", [False, True])
def test_the_last_normalisation_of_timms_resnets(zero: bool) -> None:
    recipe = find_recipe("demo").changed(model="resnet18", hyper={"zero_init_last": zero})
    with only_built():
        network = build_network(recipe, 3)
    weight = network.layer1[0].bn2.weight  # type: ignore[union-attr,index]
    assert torch.equal(weight, torch.zeros(64) if zero else torch.ones(64))  # type: ignore[arg-type]


def test_weights_of_another_network_are_told_in_short() -> None:
    with only_built():
        network, other = build_model("resnet18", 3), build_model("resnet50", 3)
    counted = r"222 of 320 tensors .*\(64, 64, 1, 1\), here \(64, 64, 3, 3\).* and 212 more\)"
    with pytest.raises(ValueError, match=counted + r".*--model") as refused:
        take_weights(network, other.state_dict(), "my_folder")
    assert len(str(refused.value)) < 1000


def test_another_number_of_experts_is_told() -> None:
    recipe = find_recipe("cifar100_lt_ride")
    with only_built():
        network, larger = build_network(recipe, 4), build_network(recipe, 4, experts=6)
        other = build_network(recipe, 5)
    words = r"6 experts where this run has 3: set --hyper\.experts 6, or --hyper\.teacher-experts 6"
    with pytest.raises(ValueError, match=words):
        take_weights(network, larger.state_dict(), "cifar100_lt_ride_6experts")
    with pytest.raises(ValueError, match="same network") as refused:
        take_weights(network, other.state_dict(), "cifar100_lt_ride")
    assert "experts" not in str(refused.value), "only the classes differ"


def test_convolutions_that_are_left_as_they_are() -> None:
    recipe = find_recipe("demo").changed(model="resnet18", convolutions="last_block")
    with only_built():
        network = build_network(recipe, 3)
    assert not network.conv1.weight.requires_grad and network.fc.weight.requires_grad  # type: ignore[union-attr]


def test_weights_that_a_recipe_names(tmp_path: Path) -> None:
    recipe = find_recipe("demo")
    said: list[str] = []
    network = build_model("digits_net", 3)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    take_given_weights(network, recipe, said.append)
    assert given_weights(recipe) is None and not said
    file = tmp_path / "w.pth"
    torch.save(build_model("digits_net", 5).state_dict(), file)
    named = recipe.changed(weights=str(file))
    assert given_weights(named) == file
    take_given_weights(network, named, said.append)
    assert len(said) == 1 and "without its classifier" in said[0]
    key = next(iter(before))
    assert not torch.equal(before[key], network.state_dict()[key])
    needy = named.changed(method="tau_norm")
    with pytest.raises(ValueError, match="tau_norm works on a trained classifier"):
        take_given_weights(network, needy, said.append)
    assert given_weights(recipe.changed(weights="timm")) is None


def test_weights_below_and_with_a_feature_layer(tmp_path: Path) -> None:
    """Weights of the network as it is elsewhere go below the layer; its own go everywhere."""
    recipe, said = find_recipe("demo"), []
    plain, layered = tmp_path / "plain.pth", tmp_path / "layered.pth"
    torch.save(build_model("digits_net", 5).state_dict(), plain)
    named = recipe.changed(hyper={"feature_layer": 7}, weights=str(plain))
    network = build_network(named, 3)
    take_given_weights(network, named, said.append)
    stored = torch.load(plain)
    assert torch.equal(network.state_dict()["body.conv1.weight"], stored["conv1.weight"])
    assert said == [f"begins with the weights of {plain}."]
    with pytest.raises(ValueError, match="tau_norm works on a trained classifier"):
        take_given_weights(network, named.changed(method="tau_norm"), said.append)
    torch.save(network.state_dict(), layered)
    again, whole = build_network(named, 3), named.changed(weights=str(layered))
    take_given_weights(again, whole, said.append)
    assert all(torch.equal(again.state_dict()[k], v) for k, v in network.state_dict().items())


def test_the_network_that_a_file_is_of_is_named(tmp_path: Path) -> None:
    recipe = find_recipe("my_folder")
    recipe = recipe.changed(model="resnet18", weights=str(tmp_path / "w.pth"))
    with only_built():
        torch.save(build_model("resnet34", 7).state_dict(), tmp_path / "w.pth")
        network = build_network(recipe, 3)
        with pytest.raises(ValueError, match=r"larger network.* It fits --model resnet34\."):
            take_given_weights(network, recipe, print)


@pytest.fixture
def of_the_first_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of a small network, ``bottlenecks``, that strides in the 1x1."""
    from safetensors.torch import save_file

    monkeypatch.setitem(OWN, "bottlenecks", bottlenecks)
    file = tmp_path / "w.safetensors"
    save_file(bottlenecks(10).state_dict(), file, metadata={"layout": "stride_in_1x1"})
    return file


def first_strides(network: Any) -> set[tuple[int, int]]:
    """Strides of the convolutions that later stages begin with."""
    return {stage[0].conv1.stride for stage in (network.layer2, network.layer3, network.layer4)}


def test_a_network_without_bottlenecks_strides_as_it_does() -> None:
    plain = find_recipe("demo").changed(stride="3x3")
    assert isinstance(build_network(plain, 10), nn.Module), "it has no bottlenecks, none are moved"
    with pytest.raises(ValueError, match="DigitsNet has no bottlenecks"):
        build_network(plain.changed(stride="1x1"), 10)


def test_weights_bring_their_stride_along(of_the_first_layout: Path) -> None:
    file = of_the_first_layout
    recipe = find_recipe("demo").changed(model="bottlenecks", weights=str(file))
    assert given_stride(recipe) == {str(file): "1x1"}
    for stride in ("auto", "1x1"):
        said: list[str] = []
        asked = recipe.changed(stride=stride)
        network = build_network(asked, 10)
        take_given_weights(network, asked, said.append)
        assert first_strides(network) == {(2, 2)}
        (line,) = said
        assert line.endswith("stride in their first 1x1 convolution, as its metadata says.")
    refused = recipe.changed(stride="3x3")
    network = build_network(refused, 10)
    with pytest.raises(
        ValueError, match=r"w\.safetensors says 1x1, the recipe says 3x3.*stride auto"
    ):
        take_given_weights(network, refused, said.append)
    assert first_strides(network) == {(1, 1)}


def test_weights_that_do_not_say_stride_as_the_recipe_does(
    of_the_first_layout: Path, tmp_path: Path
) -> None:
    torch.save(bottlenecks(10).state_dict(), tmp_path / "w.pth")
    recipe = find_recipe("demo").changed(model="bottlenecks", weights=str(tmp_path / "w.pth"))
    assert given_stride(recipe) == {}
    for stride, first in (("auto", (1, 1)), ("3x3", (1, 1)), ("1x1", (2, 2))):
        said: list[str] = []
        asked = recipe.changed(stride=stride)
        network = build_network(asked, 10)
        take_given_weights(network, asked, said.append)
        assert first_strides(network) == {first}
        assert ("as the recipe says" in said[0]) == (stride == "1x1")


def test_a_layout_that_is_not_known_is_left_to_the_recipe(
    of_the_first_layout: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "other.safetensors"
    save_file(bottlenecks(10).state_dict(), file, metadata={"layout": "1x1"})
    recipe = find_recipe("demo").changed(model="bottlenecks", weights=str(file))
    with pytest.raises(ValueError, match="layout '1x1'"):
        given_stride(recipe)
    asked = recipe.changed(stride="1x1")
    assert given_stride(asked) == {}
    network = build_network(asked, 10)
    take_given_weights(network, asked, lambda _: None)
    assert first_strides(network) == {(2, 2)}


def test_a_stride_is_settled_by_all_that_know() -> None:
    recipe = find_recipe("demo")
    assert settle_stride(recipe, {}) is recipe
    assert settle_stride(recipe, {"a": "3x3", "b": "3x3"}) is recipe
    assert settle_stride(recipe, {"a": "1x1"}).stride == "1x1"
    first = recipe.changed(stride="1x1")
    assert settle_stride(first, {"a": "1x1"}) == settle_stride(first, {}) == first
    for asked, said in ((recipe, {"a": "1x1", "b": "3x3"}), (first, {"a": "3x3"})):
        with pytest.raises(ValueError, match="stride in the same convolution"):
            settle_stride(asked, said)  # type: ignore[arg-type]
    timms = recipe.changed(model="resnet50", weights="timm")
    assert given_stride(recipe) == {} and given_stride(timms) == {"timm's resnet50": "3x3"}


def test_blocks_are_left_out_at_random_where_timm_has_them() -> None:
    recipe = find_recipe("imagenet_deit_tiny")
    with only_built():
        some: Any = build_network(recipe, 3)
        none: Any = build_network(recipe.changed(hyper={"drop_path": 0.0}), 3)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in some.blocks]
    assert rates == pytest.approx([0.1 * k / 11 for k in range(12)])
    assert not any(hasattr(block.drop_path1, "drop_prob") for block in none.blocks)
    with pytest.raises(ValueError, match="resnet32 has no blocks to leave out"):
        build_network(recipe.changed(model="resnet32"), 3)


def test_transformers_are_made_for_the_size_of_the_images() -> None:
    recipe = find_recipe("imagenet_deit_tiny")
    for size, places in ((224, 1 + 14 * 14), (32, 1 + 2 * 2)):
        with only_built():
            network = build_network(recipe.changed(data={"size": size}), 3)
        assert network.pos_embed.shape == (1, places, 192)


CPU = torch.device("cpu")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == CPU and pick_device().type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="no device 'quantum'; there are auto, cpu"):
        pick_device("quantum")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"cuda:2: torch finds 2 of this kind here, counted from"):
        pick_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name, kind in (("cuda:1", "CUDA"), ("mps", "MPS")):
        with pytest.raises(ValueError, match=f"no {kind} device here; set --device cpu"):
            pick_device(name)


def test_data_is_read_once() -> None:
    data = find_recipe("demo").data
    assert load_task(data, CPU) is load_task(data, CPU)


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "rotated_digits_mixstyle",
        "rotated_digits_mdd",
        "digits_moco_v3",
        "digits_moco_v3_probe",
    ],
)
def test_what_a_run_records_of_its_data_builds_the_same_network_without_it(name: str) -> None:
    recipe = with_arm(find_recipe(name), "baseline")
    if isinstance(recipe.data, DomainConfig):
        recipe = recipe.changed(data={"target": "r0"})
    task = load_task(recipe.data, CPU)
    record = json.loads(json.dumps(recordable(task)))
    with_data = build(recipe, 3, task)
    without = build(recipe, 3, RecordedSizes.from_record(record))
    assert with_data.state_dict().keys() == without.state_dict().keys()
    expected = with_data.deployed().state_dict()
    found = without.deployed().state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
