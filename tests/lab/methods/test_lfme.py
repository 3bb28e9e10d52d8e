"""LFME: its weights of experts and samples, its loss, and a student of trained experts."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.losses.lfme import (
    class_floors,
    expert_weights,
    experts_loss,
    first_weights,
    group_accuracy,
    weights_now,
)
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs.compare import run
from batchformer.lab.runs.load_run import restore
from batchformer.lab.runs.source_runs import trained_network

CPU = torch.device("cpu")
#: The classes of each expert of the small method.
GROUPS = [torch.tensor(group) for group in ([0, 1], [2, 3], [4])]


def test_an_expert_fades_as_the_student_catches_up() -> None:
    for known, taught, threshold in ((0.02, 0.9, 0.1), (0.5, 0.55, 0.1), (0.3, 0.31, 0.0)):
        below = known < threshold * taught
        wanted = 1.0 if below else max(0.0, (1 - known / taught) / (1 - threshold))
        got = expert_weights(torch.tensor([known]), torch.tensor([taught]), threshold)
        assert float(got) == pytest.approx(wanted, abs=1e-6)
    assert expert_weights(torch.zeros(2), torch.tensor([0.0, 0.4])).tolist() == [0, 1]


def test_first_weights_class_by_class() -> None:
    torch.manual_seed(0)
    p, y = torch.rand(20), torch.arange(20) % 3
    floors = torch.tensor([0.1, 0.5, 1.0])
    found = first_weights(p, y, floors)
    for c in range(3):
        own = p[y == c].tolist()
        low, high, floor = min(own), max(own), float(floors[c])
        wanted = [floor + (1 - floor) * (one - low) / (high - low) for one in own]
        assert found[y == c].tolist() == pytest.approx(wanted, abs=1e-6)
    alike = first_weights(torch.full((4,), 0.3), torch.tensor([0, 0, 1, 2]), floors)
    assert alike.tolist() == [1] * 4, "no spread is no reason to wait"


def test_distillation_sample_by_sample() -> None:
    torch.manual_seed(0)
    z = torch.randn(6, 5, dtype=torch.float64)
    taught = [torch.randn(6, len(group), dtype=torch.float64) for group in GROUPS]
    weights, total = [1.0, 0.4, 0.7], 0.0
    for weight, t, group in zip(weights, taught, GROUPS, strict=True):
        for row in range(6):
            p = [math.exp(v / 2) for v in t[row].tolist()]
            q = [math.exp(v / 2) for v in z[row, group].tolist()]
            pairs = [(a / sum(p), b / sum(q)) for a, b in zip(p, q, strict=True)]
            total += weight * sum(a * math.log(a / b) for a, b in pairs) / 6
    found = experts_loss(z, taught, GROUPS, torch.tensor(weights))
    assert float(found) == pytest.approx(total)
    same = [z[:, group] + 3 for group in GROUPS]
    assert float(experts_loss(z, same, GROUPS, torch.tensor(weights))) == pytest.approx(0, abs=1e-9)


def test_each_class_of_a_group_counts_the_same() -> None:
    right, y = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0, 0, 1, 3, 0])
    found = group_accuracy(
        right, y, [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([4])]
    )
    assert found.tolist() == pytest.approx([(1 / 3 + 1) / 2, 1, 0])


# The method


@pytest.fixture
def student(make: Any) -> Any:
    def made(hyper: dict[str, Any] | None = None, bank: Any = None, **module: Any) -> Any:
        method = make("lfme", hyper, bank and {"bank": bank}, **module)
        method.begin_training(8)
        method.begin_epoch(0)
        return method

    return made


def test_what_is_measured_before_the_training(student: Any, images: Any) -> None:
    method = student()
    x, y = (torch.cat(part) for part in zip(*images.batches(), strict=True))
    p, right = torch.zeros(86), torch.zeros(86)
    for expert, group in zip(method.experts, GROUPS, strict=True):
        rows = torch.isin(y, group)
        with torch.no_grad():
            shares = expert(x[rows]).softmax(1)
        place = y[rows] - int(group[0])
        p[rows] = shares.gather(1, place[:, None])[:, 0]
        right[rows] = (shares.argmax(1) == place).float()
    wanted = first_weights(p, y, class_floors(torch.tensor([50, 20, 10, 5, 1]), GROUPS))
    torch.testing.assert_close(method.first, wanted)
    assert method.first.min() < 0.2 and float(method.first[85]) == 1
    held = [right[row] for row in (3, 52, 71, 82, 85)]
    known = [(held[0] + held[1]) / 2, (held[2] + held[3]) / 2, held[4]]
    assert method.known.tolist() == pytest.approx([float(one) for one in known])
    alone = student(bank=dataclasses.replace(images, validation=None))
    own = [torch.stack([right[y == c].mean() for c in group.tolist()]).mean() for group in GROUPS]
    assert alone.known.tolist() == pytest.approx([float(one) for one in own])


def test_weights_of_an_epoch(student: Any) -> None:
    method = student({"curriculum_epochs": 4})
    assert float(method.progress) == 0.25
    assert method.weights.tolist() == [float(one > 0) for one in method.known]
    with torch.no_grad():
        method.known.copy_(torch.tensor([0.9, 0.8, 0.7]))
        method.network.fc.bias[1] = 1e6  # the student answers one class, one of two with many
    method.train().begin_epoch(5)
    assert method.weights.tolist() == pytest.approx([(1 - 0.5 / 0.9) / 0.7, 1, 1])
    assert float(method.progress) == 1.5 and int(method.measured) == 5
    assert method.training and method.network.training
    clipped = student({"curriculum_epochs": 4, "curriculum_clipped": True})
    clipped.begin_epoch(5)
    assert float(clipped.progress) == 1


def test_both_streams_learn_from_the_same_experts(student: Any, batch: Any, quiet: Any) -> None:
    method = quiet(student(heads=2, dropout=0.0))
    method.weights.copy_(torch.tensor([1.0, 0.5, 0.2]))
    assert not any(part.training for part in method.experts.modules())
    assert not any(p.requires_grad for p in method.experts.parameters())
    with torch.no_grad():
        taught = [expert(batch["x"]) for expert in method.experts]
        v = weights_now(method.first[batch["index"]], 1 / 45)[:, None]
        plain = method.features(batch["x"])
        total = torch.zeros(())
        for rows in (plain, method.encoder(plain)):
            z = v * method.network.fc(rows)
            total += F.cross_entropy(z, batch["y"])
            total += experts_loss(z, taught, GROUPS, method.weights)
    torch.testing.assert_close(method.step(batch)["loss"], total / 2)


# Runs: three experts on the digits, and their student


def digits(name: str, **changes: Any) -> Recipe:
    train = TrainConfig(batch_size=32, updates=4, figures=False)
    return dataclasses.replace(demo(), name=name, train=train, **changes)


def expert(name: str, least: int, most: int) -> Recipe:
    data = LongTailConfig(name="digits", ratio=50.0, min_images=least, max_images=most)
    return digits(name, method="cross_entropy", data=data)


def of(teacher: str, cuts: tuple[int, int] = (50, 10)) -> Recipe:
    hyper = MethodConfig(expert_cuts=cuts, curriculum_epochs=1)
    return digits("student", method="lfme", hyper=hyper, teacher=teacher)


def test_a_student_of_runs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"root": tmp_path, "device": CPU, "quiet": True}
    bounds = {"many": (50, 0), "medium": (11, 49), "few": (0, 10)}
    listed = "many/baseline, medium/baseline, few/baseline"
    for name, (least, most) in bounds.items():
        run(expert(name, least, most), "baseline", 0, **options)
    with pytest.raises(FileNotFoundError, match=r"(?s)train many.*train medium.*train few") as told:
        run(of(listed), "batchformer", 1, **options)
    assert len(str(told.value).splitlines()) == 3, "a line and a command for each"
    folder = run(of(listed), "batchformer", 0, **options)
    method, _, _ = restore(folder, CPU)
    assert [int(one.fc.out_features) for one in method.experts] == [3, 3, 4]  # type: ignore
    for name, network in zip(bounds, method.experts, strict=True):  # type: ignore[arg-type]
        source = trained_network(tmp_path / f"{name}/baseline/seed0")
        found = network.state_dict()
        assert all(torch.equal(found[key], value) for key, value in source.items())
    for wrong, words in {
        "many/baseline,few/baseline": r"learns from 3 networks, of 3, 3, 4 classes, .*names 2",
        "few/baseline,medium/baseline,few/baseline": "few/baseline does not fit.*3, 3, 4 classes",
        "many/baseline,medium/baseline,student": "would be its own teacher",
        "many/baseline,medium/baseline,small": r"--teacher small: There is no recipe 'small'",
        "many,medium/baseline,few/baseline": "batchformer train many --arm batchformer --seed 1",
    }.items():
        seed = 1 if "--seed 1" in words else 0
        recipe = dataclasses.replace(of(wrong), name="student" if "own" in words else "other")
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            run(recipe, "batchformer", seed, **options)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"lfme learns from trained experts; name the run of each"):
        of("")
    with pytest.raises(ValueError, match=r"has one teacher, and --teacher names 2"):
        digits("taught", method="ride", teacher="demo,demo")
    with pytest.raises(ValueError, match=r"hyper\.expert-cuts is \(20, 100\) .* the larger first"):
        MethodConfig(expert_cuts=(20, 100))
    with pytest.raises(ValueError, match=r"teacher is '\.\./b', which is not inside"):
        of("a,../b,c")


def test_a_group_without_classes_is_answered_with_what_to_set(make: Any) -> None:
    with pytest.raises(ValueError, match=r"classes of 100 to 100 .*set --hyper\.expert-cuts"):
        make("lfme", {"expert_cuts": (100, 20)})
