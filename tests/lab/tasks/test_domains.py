"""A target left out: what is trained on, held out and scored, in memory and from files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.transforms import digits_test, digits_train
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.domains import DomainTask, read_domains
from helpers.data_files import save_plain

CPU = torch.device("cpu")
SIDE = 8


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three domains of 10, 15 and 20 images, each of one grey level that tells it apart."""
    level = 0
    for number, domain in enumerate(("a", "b", "c")):
        for image in range(10 + 5 * number):
            path = tmp_path / "tree" / domain / f"class{image % 2}" / f"{image:02d}.png"
            save_plain(path, level, SIDE, SIDE)
            level += 1
    read_domains.cache_clear()
    return tmp_path / "tree"


def digits(**changes: Any) -> DomainTask:
    options = {"target": "r45", "sampler": "domains", "size": 16, **changes}
    config = DomainConfig(name="rotated_digits", augment="shift", **options)
    return DomainTask.load(config, CPU)


class Says(Method):
    """Says class 0 with a confidence that grows with the mean of the image."""

    def predict(self, x: Tensor) -> Tensor:
        return torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)


def optimizer_step(**train: Any) -> OptimizerStep:
    return OptimizerStep(TrainConfig(workers=0, **train), CPU)


def test_a_batch_has_the_sources_one_after_the_other() -> None:
    task = digits()
    assert task.sources == ("r0", "r15", "r30", "r60", "r75") and task.groups == 5
    feed = task.feed(TrainConfig(batch_size=20), seed=1)
    batch = feed.batch(3)
    assert batch["domain"].tolist() == sorted([0, 1, 2, 3, 4] * 4)
    assert batch["x"].shape == (20, 1, 16, 16)
    part, domain = task.data.joined(task.seeded(1).split.train)
    assert torch.equal(batch["y"], part.labels[batch["index"]])  # type: ignore[union-attr]
    assert torch.equal(batch["domain"], domain[batch["index"]])
    assert task.method_options["groups"] == 5
    sources = sum(size for domain, size in task.data.sizes.items() if domain != "r45")
    assert int(task.method_options["class_counts"].sum()) == sources


def test_digits_are_shifted_and_scored_as_they_are() -> None:
    task = digits()
    part, _ = task.data.joined(task.split.train)
    assert task._view(part, training=True) == digits_train()
    assert task._view(part, training=False) == digits_test()


def test_without_held_out_images_there_is_no_score_of_validation() -> None:
    assert digits().unvalidated == "" and digits(target="each").unvalidated == ""
    assert digits(held_out=0.0).unvalidated == "data.held-out is 0"


def test_fewer_domains_in_a_batch_and_an_epoch_of_ones_own() -> None:
    task = digits(domains_in_batch=2, epoch=7)
    feed = task.feed(TrainConfig(batch_size=20), seed=0)
    assert task.groups == 2 and feed.per_epoch == 7
    blocks = {tuple(feed.batch(step)["domain"].unique().tolist()) for step in range(20)}
    assert len(blocks) > 3 and all(len(block) == 2 for block in blocks)


def test_shuffled_batches_are_one_group() -> None:
    task = digits(sampler="shuffle")
    assert task.groups == 1
    feed = task.feed(TrainConfig(batch_size=50, drop_last=True), seed=0)
    batch = feed.batch(0)
    assert batch["domain"].tolist() != sorted(batch["domain"].tolist())
    assert feed.per_epoch == sum(len(rows) for rows in task.split.train.values()) // 50


def grey_levels(x: Tensor) -> list[int]:
    """(N, 3, H, W) normalised images of one grey level each: that level."""
    return [round(255 * (0.485 + 0.229 * value)) for value in x[:, 0].mean((1, 2)).tolist()]


def test_a_batch_of_no_size_has_32_images_of_each_domain() -> None:
    for task, groups in ((digits(), 5), (digits(domains_in_batch=2), 2)):
        batch = task.feed(TrainConfig(batch_size=0), 0).batch(0)
        assert batch["domain"].unique(return_counts=True)[1].tolist() == [32] * groups


def test_a_batch_that_cannot_be_shared_out() -> None:
    with pytest.raises(ValueError, match=r"batch of 32 cannot hold 5 domains.*multiple of 5"):
        digits().feed(TrainConfig(batch_size=32), 0)


def test_seeds_hold_out_other_images_and_facts_stay() -> None:
    task = digits()
    first, second = task.seeded(0), task.seeded(1)
    assert first.draws() != second.draws() and first.facts() == second.facts()
    assert first.facts()["domains"]["r0"] == 300
    assert digits(target="each").draws() == {}


def test_an_image_that_changes_under_its_name_changes_a_fact(tree: Path) -> None:
    task = DomainTask.load(DomainConfig(name="tree", root=str(tree), target="c"), CPU)
    before = task.facts()
    save_plain(min(tree.rglob("*.png")), 0, 90, 90)
    after = task.facts()
    assert {key for key in before if before[key] != after[key]} == {"file_sizes_sha256"}


@pytest.mark.parametrize("memory", [False, True])
def test_scores_by_hand(tree: Path, memory: bool) -> None:
    """Labels alternate and everything is said to be class 0: half of the target is right."""
    config = DomainConfig(name="tree", root=str(tree), target="c", size=SIDE, memory=memory)
    task = DomainTask.load(config, CPU).seeded(3)
    evaluation = task.evaluate(Says(), optimizer_step())
    # Grey levels below ImageNet's mean have negative means: class 1 is said for all of them.
    assert evaluation.metrics["c"] == 50.0
    assert list(evaluation.metrics) == ["c", "val", "val_loss"]
    assert evaluation.figures["correct"].shape == (20,)
    assert evaluation.figures["confusion"].tolist() == [[0, 10], [0, 10]]
    held = task.split.val
    assert {d: len(rows) for d, rows in held.items()} == {"a": 2, "b": 3}
    in_memory = DomainTask.load(dataclasses.replace(config, memory=True), CPU)
    parts: list[Any] = [in_memory.data.joined({d: rows})[0] for d, rows in held.items()]
    wanted = 100 * sum(float((part.labels == 1).double().mean()) for part in parts) / 2
    assert evaluation.metrics["val"] == pytest.approx(wanted)
    losses = [said_loss(in_memory, {d: rows}) for d, rows in held.items()]
    target = said_loss(in_memory, {"c": task.split.target_all})
    assert evaluation.metrics["val_loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)
    assert abs(target - sum(losses) / 2) > 0.01, "else either would do"


def said_loss(task: DomainTask, rows: dict[str, Tensor]) -> float:
    """Mean cross-entropy of what `Says` says of images of one grey level, by hand."""
    part: Any = task.data.joined(rows)[0]
    levels, labels = part.x[:, 0, 0, 0].double(), part.labels
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
    std = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)
    first = ((levels[:, None] / 255 - mean) / std).mean(1)  # the logit of class 0; that of 1 is 0
    wrong = torch.where(labels == 0, -first, first)
    return float(torch.log1p(wrong.exp()).mean())


def test_the_part_of_the_target_that_swad_scores(tree: Path) -> None:
    config = DomainConfig(name="tree", root=str(tree), target="c", size=SIDE, scored_on="in")
    evaluation = DomainTask.load(config, CPU).evaluate(Says(), optimizer_step())
    assert evaluation.figures["correct"].shape == (16,)


def test_files_and_memory_train_on_the_same_images(tree: Path) -> None:
    """A crop of an image of one grey level has that level, whichever way it was cut."""
    found = []
    for memory in (False, True):
        config = DomainConfig(
            name="tree", root=str(tree), target="b", size=SIDE, memory=memory, augment="centre"
        )
        feed = DomainTask.load(config, CPU).feed(TrainConfig(batch_size=6, workers=0), 0)
        found.append([feed.batch(step) for step in range(4)])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours["index"], theirs["index"])
        assert torch.equal(ours["domain"], theirs["domain"])
        assert torch.allclose(ours["x"], theirs["x"], atol=1e-5)


def test_adaptation_sees_the_target_without_its_labels(tree: Path) -> None:
    config = DomainConfig(
        name="tree",
        root=str(tree),
        source="a",
        target="c",
        size=SIDE,
        adapt=True,
        held_out=0.0,
        augment="centre",
    )
    task = DomainTask.load(config, CPU)
    feed = task.feed(TrainConfig(batch_size=3, workers=0), 0)
    batch = feed.batch(0)
    assert set(batch) == {"x", "y", "index", "domain", "x_target"}
    assert batch["x_target"].shape == (3, 3, SIDE, SIDE) and task.sources == ("a",)
    levels = [grey_levels(feed.batch(step)["x_target"]) for step in range(7)]
    assert [len(own) for own in levels] == [3] * 7, "20 images in full batches"
    assert {level for own in levels for level in own} <= set(range(25, 45))
    assert set(grey_levels(batch["x"])) <= set(range(10))
    metrics = task.evaluate(Says(), optimizer_step()).metrics
    assert list(metrics) == ["c", "mean_class"] and metrics["mean_class"] == 50.0


def test_an_unknown_domain_is_answered_with_those_there_are(tree: Path) -> None:
    with pytest.raises(ValueError, match=r"no domain 'd'; choose data.target of a, b, c"):
        DomainTask.load(DomainConfig(name="tree", root=str(tree), target="d"), CPU)
    with pytest.raises(ValueError, match=r"name one with data.target"):
        DomainTask.load(DomainConfig(name="tree", root=str(tree)), CPU).split  # noqa: B018
