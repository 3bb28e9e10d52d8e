"""BBN against computations by hand: its schedule, sampler, loss, branches and data."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batchformer import check
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.feeds.samplers import ReversedClasses
from batchformer.lab.losses.bbn import mixed_branches
from batchformer.lab.methods.bbn import Bbn
from batchformer.lab.models.bbn import TwoBranches, split_last_block
from batchformer.lab.models.build import build_model
from batchformer.lab.models.networks import resnet32
from batchformer.lab.models.ride import ride_resnet32
from batchformer.lab.tasks.base import load

CPU = torch.device("cpu")
COUNTS = torch.tensor([50, 20, 10, 5, 1])


def residual(seed: int = 0, **module: Any) -> Bbn:
    """BBN on a small ResNet of grey images, without dropout."""
    torch.manual_seed(seed)
    network = resnet32(5, in_channels=1, widths=(4, 6, 8), depth=14)
    settings = ModuleConfig(heads=2, dropout=0.0, **module)
    return Bbn(network, COUNTS, settings, seed=0, hyper=MethodConfig(cumulative_epochs=10))


# The schedule, the sampler and the loss


def test_rare_classes_are_drawn_by_the_inverse_of_their_size_and_images_evenly() -> None:
    sizes = torch.tensor([100, 0, 10, 1])
    labels = torch.arange(4).repeat_interleave(sizes)[torch.randperm(111)]
    sampler = ReversedClasses(labels, seed=3)
    drawn = torch.cat([sampler.order(epoch) for epoch in range(400)])
    shares = labels[drawn].bincount(minlength=4) / len(drawn)
    expected = torch.tensor([1, 0, 10, 100]) / 111
    # Five standard deviations of a share.
    deviation = (expected * (1 - expected) / len(drawn)).sqrt()
    assert bool(((shares - expected).abs() <= 5 * deviation).all())
    of_ten = drawn.bincount(minlength=111)[labels == 2].double()
    assert bool(((of_ten - of_ten.mean()).abs() < 5 * of_ten.mean().sqrt()).all())


def test_the_order_is_a_function_of_seed_epoch_and_stream() -> None:
    labels = torch.arange(5).repeat_interleave(COUNTS)
    first = ReversedClasses(labels, 0).order(0)
    assert first.shape == (len(labels),) and ReversedClasses(labels, 0).length == len(labels)
    assert torch.equal(first, ReversedClasses(labels, 0).order(0))
    others = (ReversedClasses(labels, 1), ReversedClasses(labels, 0, stream=1))
    for other in (*(sampler.order(0) for sampler in others), ReversedClasses(labels, 0).order(1)):
        assert not torch.equal(first, other)


# The method


@pytest.mark.parametrize("module", [{"enabled": False}, {}, {"streams": "mixed_only"}], ids=str)
def test_a_step_by_hand(batch: Any, module: dict[str, Any]) -> None:
    method = residual(**module).train()
    method.begin_epoch(4)
    found = method.step(batch)["loss"]
    network: Any = copy.deepcopy(residual(**module)).train().network
    block, alpha = network.layer3[-1], 1 - 0.4**2
    streams = []
    for name, branch in (("x", block.conventional), ("paired_x", block.rebalancing)):
        network.layer3[-1] = branch  # an ordinary network of one branch
        streams.append(network.forward_features(batch[name]))
    rows = [streams]
    if method.encoder is not None:
        mixed = [encoder.mix(f) for encoder, f in zip(method.encoder, streams, strict=True)]
        rows = [mixed] if module else [streams, mixed]
    losses = []
    for first, second in rows:
        z = network.fc(torch.cat((2 * alpha * first, 2 * (1 - alpha) * second), 1))
        own, other = F.cross_entropy(z, batch["y"]), F.cross_entropy(z, batch["paired_y"])
        losses.append(alpha * own + (1 - alpha) * other)
    torch.testing.assert_close(found, sum(losses) / len(losses))


def test_in_the_first_epoch_the_second_branch_has_no_gradient(batch: Any) -> None:
    method = residual().train()
    method.begin_epoch(0)
    loss = method.step(batch)["loss"]
    loss.backward()
    (branches,) = method.branches
    assert all(not p.grad.any() for p in branches.rebalancing.parameters() if p.grad is not None)
    assert all(p.grad is not None and p.grad.any() for p in branches.conventional.parameters())
    other = method.step({**batch, "paired_y": batch["y"]})["loss"]
    torch.testing.assert_close(loss, other, msg="the label of the pair does not count yet")


def test_at_test_both_branches_count_as_with_half_of_alpha(batch: Any) -> None:
    method = residual(enabled=False).eval()
    method.alpha.fill_(0.5)
    halves = method.branch_features(batch["x"], "both").chunk(2, dim=1)
    one_by_one = [method.branch_features(batch["x"], b) for b in ("conventional", "rebalancing")]  # type: ignore[arg-type]
    for half, alone in zip(halves, one_by_one, strict=True):
        torch.testing.assert_close(half, alone)
    trained = method.classify(mixed_branches(*one_by_one, method.alpha))
    for answer in (method.predict(batch["x"]), method(batch["x"]), method.network(batch["x"])):
        torch.testing.assert_close(answer, trained)
    same = {**batch, "paired_x": batch["x"], "paired_y": batch["y"]}
    torch.testing.assert_close(method.step(same)["loss"], F.cross_entropy(trained, batch["y"]))


def test_alpha_follows_the_length_of_the_training_unless_it_is_given(make: Any) -> None:
    method, given = make("bbn"), make("bbn", {"cumulative_epochs": 100})
    method.epochs = given.epochs = 50.0
    for each, alpha in ((method, 0.75), (given, 0.9375)):
        each.begin_epoch(25)
        assert float(each.alpha) == alpha


@pytest.mark.parametrize("streams", ["shared", "mixed_only"])
def test_check_finds_both_modules_and_no_sample_in_anothers_answer(
    batch: Any, streams: Any
) -> None:
    method = residual(streams=streams)
    optimizer = method.optimizers(OptimConfig())["main"]
    found = check(method, batch["x"], optimizer, mixed_only=streams == "mixed_only")
    assert found.passed and "2 in the model's own code" in str(found), str(found)
    first, second = (encoder.state_dict() for encoder in method.encoder or ())
    assert not torch.equal(first["layers.0.linear1.weight"], second["layers.0.linear1.weight"]), (
        "weights of their own"
    )


def test_relations_are_those_of_each_branch(batch: Any) -> None:
    method = residual().eval()
    relations: Any = method.relations()
    features = relations.features(batch["x"])
    mixed, weights = relations.mix(features)
    parts = [
        encoder.mix(half, return_weights=True)
        for encoder, half in zip(method.encoder or (), features.chunk(2, 1), strict=True)
    ]
    torch.testing.assert_close(mixed, torch.cat([part[0] for part in parts], 1))
    expected = torch.stack([part[1].flatten(0, 1).mean(0) for part in parts]).mean(0)
    torch.testing.assert_close(weights, expected)
    copies = features.expand(3, *features.shape)
    rows = torch.tensor([0, 4, 9])
    torch.testing.assert_close(relations.mix_rows(copies, rows), mixed[rows])
    assert residual(enabled=False).relations().encoder is None  # type: ignore[union-attr]


# The network


def test_the_second_branch_has_weights_of_its_own_of_the_same_distribution() -> None:
    network = resnet32(10)
    block = network.layer3[-1]
    branches = split_last_block(network, 7)
    assert branches.conventional is block and isinstance(network.layer3[-1], TwoBranches)
    for (name, own), other in zip(
        branches.conventional.named_parameters(), branches.rebalancing.parameters(), strict=True
    ):
        assert torch.equal(own.flatten().sort().values, other.flatten().sort().values)
        assert own.ndim == 1 or not torch.equal(own, other), name
    images = torch.randn(2, 3, 32, 32)
    assert network.eval()(images).shape == (2, 7) and network.num_features == 128


def test_branches_of_a_trained_network_begin_with_its_weights() -> None:
    network = resnet32(10)
    network(torch.randn(4, 3, 32, 32))  # in training: the norms have seen images
    branches = split_last_block(network, 7)
    torch.testing.assert_close(
        branches.rebalancing.state_dict(), branches.conventional.state_dict(), rtol=0, atol=0
    )


def test_a_resnet_of_timms_has_the_blocks_of_the_released_code() -> None:
    with torch.device("meta"):
        network: Any = build_model("resnet50", 8142)
        alone = sum(p.numel() for p in network.layer4[-1].parameters())
        before = sum(p.numel() for p in network.parameters())
        split_last_block(network, 8142)
        after = sum(p.numel() for p in network.parameters())
    assert after == before + alone + 2048 * 8142 and network.fc.in_features == 4096


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (lambda: ride_resnet32(5), "RideNetwork does not end"),
        (lambda: build_model("vit_tiny_patch16_224", 5), "VisionTransformer does not end"),
        (lambda: torch.nn.Linear(2, 2), "Linear does not end"),
    ],
)
def test_networks_without_a_last_block_are_refused(network: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"{words} with a stage.*set --model to a ResNet"):
        Bbn(network(), COUNTS, ModuleConfig(), seed=0, hyper=MethodConfig())


# Data and recipes


def test_an_image_of_a_rare_class_comes_beside_each_image() -> None:
    config = LongTailConfig(name="digits", ratio=50)
    train = TrainConfig(batch_size=32)
    alone = load(config, CPU).feed(train, seed=0)
    task = load(dataclasses.replace(config, paired="reversed"), CPU)
    feed = task.feed(train, seed=0)
    labels: Any = task.data.train.labels  # type: ignore[attr-defined]
    assert feed.per_epoch == alone.per_epoch
    order = ReversedClasses(labels, 0, stream=1).order(0)
    for step in range(feed.per_epoch):  # the last batch is a smaller one
        batch, expected = feed.batch(step), alone.batch(step)
        assert all(torch.equal(batch[key], expected[key]) for key in expected)
        assert batch["paired_x"].shape == batch["x"].shape
        assert torch.equal(batch["paired_y"], labels[order[32 * step : 32 * step + 32]])
