"""SWAD: the mean against the weights of all updates, its statistics, and that it resumes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from batchformer import BatchFormer, match, two_streams
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.cuda_graph import Captured, CapturedUpdate
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.engine.state import Evaluation, Plan
from batchformer.lab.engine.swad import (
    MeanWeights,
    Swad,
    WeightSums,
    joined,
    recalibrate_batch_norm,
    weights_of,
)
from helpers.lab_runs import fit, quiet_plan, same, stop_after

CPU = torch.device("cpu")
HIGH, LOW = 9.0, 1.0


class Net(Method):
    """Two layers, normalisation between them, dropout, and BatchFormer at a tenth of the rate."""

    updates: Tensor
    module_lr_factor = 0.1

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.4))
        self.encoder, self.head = BatchFormer(6, heads=2), nn.Linear(6, 3)
        self.asked = 0
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def after_update(self) -> None:
        self.updates.add_(1)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.head(two_streams(self.body(batch["x"]), self.encoder))
        return {"loss": F.cross_entropy(logits, match(logits, batch["y"]))}

    def predict(self, x: Tensor) -> Tensor:
        self.asked += 1
        logits: Tensor = self.head(self.body(x))
        return logits

    def further_scores(self) -> dict[str, float]:
        asked, self.asked = self.asked, 0
        return {"asked": asked}


class Batches:
    per_epoch = 3

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device

    def batch(self, step: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=draw) * (1 + step % self.per_epoch)
        return {"x": x.to(self.device), "y": (torch.arange(8) % 3).to(self.device)}


IMAGES = [Batches().batch(step)["x"] for step in range(3)]


def weights(method: nn.Module) -> list[Tensor]:
    return [p.detach().double().clone() for p in method.parameters()]


def made(*settings: Any) -> tuple[Net, Swad]:
    net = Net()
    return net, Swad(net, settings)  # type: ignore[arg-type]


def train(
    net: Net, swad: Swad, segments: list[int], losses: list[float]
) -> list[list[list[Tensor]]]:
    """Segments of so many updates, each evaluated to its loss; the weights after every update.

    A segment without a loss is not evaluated.
    """
    optimizers = net.optimizers(OptimConfig(lr=0.5))
    optimizer_step = OptimizerStep(TrainConfig(), CPU)
    net.train()
    seen: list[list[list[Tensor]]] = []
    step = 0
    for updates, loss in zip_longest(segments, losses):
        seen.append([])
        for _ in range(updates):
            net.update(Batches().batch(step), optimizers, optimizer_step)
            swad.add(net)
            seen[-1].append(weights(net))
            step += 1
        if loss is not None:
            swad.tell({"all": 1.0, "val_loss": loss})
    return seen


def assert_mean(averaged: Method, seen: list[list[Tensor]]) -> None:
    for number, parameter in enumerate(averaged.parameters()):
        expected = torch.stack([one[number] for one in seen]).mean(0)
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-5, atol=1e-6)


VALLEYS = [
    # Settings, losses, and the segments of the average, worked out by hand.
    ((2, 2, 0.3), [3.0, 1.0, 1.1, 1.2, 2.0, 2.0, 2.0], [1, 2, 3]),
    ((2, 4, 0.3), [3.0, 1.2, 1.0, 1.1, 1.2, 1.2, 2.0], [1, 2, 3, 4, 5]),
    ((3, 1, 0.3), [3.0, 1.0, 1.1, 1.2, 1.3, 9.0, 1.0], [1, 2, 3, 4]),
    ((3, 6, 0.3), [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [6]),
]


@pytest.mark.parametrize(("settings", "losses", "expected"), VALLEYS, ids=str)
def test_the_mean_is_that_of_every_update_of_the_valley(
    settings: tuple[int, int, float], losses: list[float], expected: list[int]
) -> None:
    net, swad = made(*settings)
    assert swad.finding() == ({}, ""), "before the first update"
    lengths = [3, 1, 4, 2, 5, 2, 3]  # unequal: each update counts, not each part
    seen = train(net, swad, lengths, losses)
    last = weights(net)
    averaged = swad.averaged(net, IMAGES)
    assert_mean(averaged, [one for number in expected for one in seen[number]])
    assert not averaged.training and net.training
    for before, after in zip(last, weights(net), strict=True):
        assert torch.equal(before, after)  # training's own weights are left alone
    again = swad.averaged(net, IMAGES)
    for one, two in zip(averaged.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)

    found, words = swad.finding()
    first, end = sum(lengths[: expected[0]]) + 1, sum(lengths[: expected[-1] + 1])
    evaluations = expected[0] + 1, expected[-1] + 1  # a person counts from 1
    converged = losses != sorted(losses, reverse=True)
    values = {"updates": end - first + 1, "converged": converged, "first_update": first}
    values |= {"last_update": end, "first_evaluation": evaluations[0]}
    values |= {"last_evaluation": evaluations[1]}
    threshold = {"threshold": swad.valley.threshold} if converged else {}
    assert found == {**values, **threshold}
    said = "(evaluation {1})" if len(expected) == 1 else "(evaluations {0} to {1})"
    assert f"{first} to {end} {said.format(*evaluations)}" in words
    assert ("never converged" in words) == (not converged)


def test_what_waits_is_bounded_and_dropped_with_the_valley() -> None:
    net, swad = made(3, 6, 0.3)
    for loss in [5.0] * 4 + [4.0, 3.0, 2.0, LOW] + [LOW] * 12:
        train(net, swad, [1], [loss])
        assert set(swad.waiting) == set(swad.valley.pending) and len(swad.waiting) <= 5
    assert len(swad.waiting) == 5
    train(net, swad, [1] * 6, [HIGH] * 6)
    assert swad.valley.dead and not swad.waiting
    mean = swad.mean
    train(net, swad, [2], [LOW])
    assert swad.mean is mean and not swad.waiting and int(swad.segment.updates) == 0


def test_without_an_evaluation_the_mean_is_that_of_all_updates() -> None:
    net, swad = made(3, 6, 0.3)
    untouched = swad.averaged(net, IMAGES)
    assert all(map(torch.equal, untouched.parameters(), net.parameters()))
    (seen,) = train(net, swad, [4], [])
    assert_mean(swad.averaged(net, IMAGES), seen)
    assert swad.finding()[0] == {
        "updates": 4,
        "converged": False,
        "first_update": 1,
        "last_update": 4,
    }


def test_an_evaluation_without_an_update_is_no_segment() -> None:
    net, swad = made(2, 2, 0.3)
    swad.tell({"val_loss": 0.1})
    train(net, swad, [1, 0, 2, 0], [HIGH, 0.1, LOW, 0.1])
    assert swad.valley.losses == (HIGH, LOW) and sorted(swad.waiting) == [1]


def test_updates_are_added_in_place_and_ask_nothing_of_the_device() -> None:
    net, swad = made(1, 2, 0.3)
    places = [buffer.data_ptr() for buffer in swad.segment.buffers()]
    train(net, swad, [2, 2, 2], [LOW] * 3)
    swad.load_state_dict(swad.state_dict())
    assert places == [buffer.data_ptr() for buffer in swad.segment.buffers()]
    # A tensor on "meta" has no values: to read one back is an error.
    net.to("meta")
    nowhere = Swad(net, (1, 2, 0.3))
    nowhere.add(net)
    with pytest.raises(RuntimeError):
        nowhere.tell({"val_loss": LOW})


class PartlyFrozen(Net):
    """One normalisation that stays in eval, and one that predictions do not pass."""

    def __init__(self, live: bool) -> None:
        super().__init__()
        self.frozen, self.unused = nn.BatchNorm1d(4), nn.BatchNorm1d(3)
        self.live = live

    def train(self, mode: bool = True) -> PartlyFrozen:
        super().train(mode)
        self.frozen.eval()
        if not self.live:
            self.body.eval()
            self.unused.eval()
        return self

    def predict(self, x: Tensor) -> Tensor:
        return super().predict(self.frozen(x))


@pytest.mark.parametrize("live", [True, False])
def test_frozen_and_unused_normalisation_keeps_its_statistics(live: bool) -> None:
    def unasked() -> Iterator[Tensor]:
        assert live, "nothing is to be computed"
        yield from IMAGES

    inner: Any = PartlyFrozen(live)
    swad = Swad(inner, (2, 2, 0.3))
    for number, norm in enumerate([inner.frozen, inner.unused, inner.body[1]]):
        norm.running_mean.fill_(0.1 * number + 0.1)
        norm.running_var.fill_(2.0 + number)
    train(inner, swad, [0], [LOW])
    swad.add(inner)
    got: Any = swad.averaged(inner, unasked())
    for name in ("frozen", "unused"):
        kept, before = getattr(got, name), getattr(inner, name)
        assert torch.equal(kept.running_mean, before.running_mean)
        assert torch.equal(kept.running_var, before.running_var)
    same = torch.equal(got.body[1].running_mean, inner.body[1].running_mean)
    assert same != live and float(inner.body[1].running_mean[0]) == pytest.approx(0.3)


def run_plan(folder: Path, device: str = "cpu", **options: Any) -> Plan:
    train = {"batch_size": 8, "updates": 30, "eval_every": 4, "log_every": 7, **options}
    rates = OptimConfig(lr=0.3), ScheduleConfig(kind="cosine")
    return replace(quiet_plan(folder, *rates, device=device, **train), swad=(2, 3, 0.3))


LOSSES = {4: 3.0, 8: 1.2, 12: 1.0, 16: 1.1, 20: 1.2, 24: 1.3, 28: 2.0, 30: 2.1}


def evaluate(method: Any, optimizer_step: OptimizerStep) -> Evaluation:
    """Scores of the network itself, and a validation loss that falls and rises by the update."""
    x = Batches(method.updates.device).batch(77)["x"]
    score = float(method.predict(x).double().sum())
    return Evaluation({"all": score, "val_loss": LOSSES[int(method.updates)]})


@pytest.mark.parametrize(
    ("stop_at", "options"),
    [
        *((stop_at, {}) for stop_at in (1, 17, 29)),
        *((stop_at, {"checkpoint_every": 5}) for stop_at in (8, 29)),
    ],
    ids=str,
)
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, stop_at: int, options: dict[str, Any]
) -> None:
    found = []
    for name in ("whole", "cut"):
        plan = run_plan(tmp_path / name, **options)
        if name == "cut":
            stop_after(stop_at, Net(), Batches(), evaluate, plan)
            torch.manual_seed(999)
        end = fit(Net(), Batches(), evaluate, plan)
        kept = load_newest(plan.folder / "checkpoints")
        assert kept is not None
        found.append((end.metrics, kept["method"], kept["swad"]))
    names = ["all", "val_loss", "without_swad_all", "without_swad_val_loss"]
    assert list(found[0][0]) == names
    assert found[0][0]["without_swad_all"] != found[0][0]["all"]
    assert found[0][2]["_extra_state"]["waiting"], "what waits to join is kept"
    assert same(*found)


def test_an_average_in_double_precision_is_scored(tmp_path: Path) -> None:
    """Its batch normalisation is recalibrated by batches, which feeds give in single precision."""
    end = fit(Net(), Batches(), evaluate, run_plan(tmp_path, precision="fp64"))
    assert end.metrics["all"] != end.metrics["without_swad_all"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_updates_are_averaged_like_eager_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cuda")
    captures: list[CapturedUpdate] = []
    record = Captured._capture

    def counted(self: Captured, batch: Batch) -> CapturedUpdate:
        captures.append(record(self, batch))
        return captures[-1]

    monkeypatch.setattr(Captured, "_capture", counted)
    means = {}
    for capture in (False, True):
        plan = run_plan(tmp_path / str(capture), "cuda", capture=capture)
        result = fit(Net(), Batches(device), evaluate, plan)
        assert "without_swad_all" in result.metrics
        means[capture] = load_newest(plan.folder / "swad")
    assert len(captures) == 1
    torch.testing.assert_close(means[False], means[True], rtol=1e-3, atol=1e-4)


# Sums and means of weights, and batch normalisation recalibrated for them.


def test_sums_take_the_format_of_the_weights() -> None:
    conv = nn.Conv2d(3, 5, 3)
    method = nn.ModuleList([conv, WeightSums(list(conv.parameters()))])
    method.to(memory_format=torch.channels_last)
    sums: WeightSums = method[1]  # type: ignore[assignment]
    assert sums.sums[0].stride() == conv.weight.stride() and not conv.weight.is_contiguous()
    sums.add(list(conv.parameters()))
    sums.add(list(conv.parameters()))
    mean = sums.mean()
    assert mean is not None and mean.updates == 2
    torch.testing.assert_close(mean.weights[0], conv.weight.detach())


def test_all_of_it_is_on_the_device_of_the_weights() -> None:
    """A count on the host would be made once, when the update is captured, and never replayed."""
    sums = WeightSums([torch.zeros(2, device="meta")])
    assert {buffer.device.type for buffer in sums.buffers()} == {"meta"}


def test_sums_are_single_precision_whatever_the_weights_are() -> None:
    half = torch.full((2,), 1.0, dtype=torch.bfloat16)
    sums = WeightSums([half])
    for _ in range(300):  # beyond 256 a sum in bfloat16 would stand still
        sums.add([half])
    assert sums.sums[0].tolist() == [300.0, 300.0]


def summed(values: list[Tensor], before: int) -> MeanWeights:
    sums = WeightSums([values[0]])
    for value in values:
        sums.add([value])
    mean = sums.mean(before)
    assert mean is not None
    return mean


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99))
def test_segments_join_to_the_mean_over_their_updates(lengths: list[int], seed: int) -> None:
    draws = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(seed))
    mean, done = None, 7
    for part in torch.split(draws, lengths):
        mean = joined(mean, summed(list(part), done))
        done += len(part)
    assert mean is not None and mean.updates == len(draws) and mean.last == 7 + len(draws)
    torch.testing.assert_close(mean.weights[0].double(), draws.double().mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_are_the_parameters_that_have_a_mean(frozen: bool) -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).requires_grad_(not frozen)
    network.register_parameter("table", nn.Parameter(torch.arange(3), requires_grad=False))
    found = weights_of(network)
    assert [tuple(weight.shape) for weight in found] == [(3, 2), (3,), (3,), (3,)]


def test_statistics_are_those_that_torch_computes() -> None:
    net = Net()
    expected = copy.deepcopy(net.body[:2])
    update_bn(IMAGES, expected)
    for batches_tracked in (0, 17):
        norm: Any = net.body[1]
        norm.num_batches_tracked.fill_(batches_tracked)
        norm.running_mean.fill_(5.0)
        recalibrate_batch_norm(net, IMAGES)
        theirs: Any = expected[1]
        torch.testing.assert_close(norm.running_mean, theirs.running_mean)
        torch.testing.assert_close(norm.running_var, theirs.running_var)
        assert norm.momentum == 0.1 and int(norm.num_batches_tracked) == 3
        assert not any(module.training for module in net.modules())


def test_statistics_are_of_so_many_batches_and_draw_nothing(tmp_path: Path) -> None:
    asked: list[int] = []

    class Long(Batches):
        per_epoch = 250

        def batch(self, step: int) -> dict[str, Any]:
            asked.append(step)
            return super().batch(step)

    fit(Net(), Long(), evaluate, run_plan(tmp_path))
    assert asked == [*range(30), *range(100)], "after the updates"
    net, before = Net(), torch.get_rng_state()
    recalibrate_batch_norm(net, IMAGES)
    assert torch.equal(before, torch.get_rng_state())


def test_what_predictions_were_like_meanwhile_is_forgotten() -> None:
    net = Net()
    recalibrate_batch_norm(net, IMAGES)
    assert net.further_scores() == {"asked": 0}


def test_without_normalisation_nothing_is_computed() -> None:
    net = Net()
    net.body[1] = nn.Identity()
    recalibrate_batch_norm(net, IMAGES)
    assert net.asked == 0 and not any(module.training for module in net.modules())
