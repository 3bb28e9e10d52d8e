"""From a recipe and a seed to a device, a task and a method."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import DomainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import (
    RecordedSizes,
    build,
    load_task,
    pick_device,
    recordable,
)

CPU = torch.device("cpu")


def made(arm: str, seed: int) -> Method:
    recipe = with_arm(find_recipe("demo"), arm)
    return build(recipe, seed, load_task(recipe.data, CPU))


def test_devices() -> None:
    assert pick_device("cpu") == CPU and pick_device().type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="no device 'quantum'; there are auto, cpu"):
        pick_device("quantum")


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device here; set --device cpu"):
        pick_device("cuda:1")


def test_data_is_read_once() -> None:
    data = find_recipe("demo").data
    assert load_task(data, CPU) is load_task(data, CPU)


def test_arms_of_a_seed_begin_with_the_same_network() -> None:
    torch.manual_seed(5)  # what is drawn elsewhere changes nothing
    plain = dict(made("baseline", 0).named_parameters())
    torch.manual_seed(6)
    both = dict(made("batchformer", 0).named_parameters())
    assert set(plain) < set(both) and all(torch.equal(both[k], v) for k, v in plain.items())
    other = dict(made("baseline", 1).named_parameters())
    assert any(not torch.equal(other[k], v) for k, v in plain.items())


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "rotated_digits_mixstyle",
        "rotated_digits_mdd",
        "digits_moco_v3",
        "digits_moco_v3_probe",
        "digits_moco_v3_knn",
    ],
)
def test_what_a_run_records_of_its_data_builds_the_same_network_without_it(name: str) -> None:
    recipe = with_arm(find_recipe(name), "baseline")
    if isinstance(recipe.data, DomainConfig):
        recipe = dataclasses.replace(recipe, data=recipe.data_with(target="r0"))
    task = load_task(recipe.data, CPU)
    record = json.loads(json.dumps(recordable(task)))
    with_data = build(recipe, 3, task)
    without = build(recipe, 3, RecordedSizes.from_record(record))
    assert with_data.state_dict().keys() == without.state_dict().keys()
    expected = with_data.deployed().state_dict()
    found = without.deployed().state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
