"""Steps run as the engine runs them, with and without BatchFormer, in each mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.kernels.available import unsupported_reason
from batchformer.lab.bench import step
from batchformer.lab.bench.measure import BenchSettings, Timing
from batchformer.lab.bench.step import (
    CAPTURED,
    COMPILED,
    EAGER,
    HALF,
    RESNET32,
    WITHOUT_KERNELS,
    Mode,
    UpdateRunner,
    UpdateStopwatch,
    cases,
    measure,
    shares,
    with_and_without,
)
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.cuda_graph import WARM_UP, Captured
from batchformer.lab.models.kernels import available

CPU = torch.device("cpu")
ONCE = BenchSettings(CPU, repeats=1)


def test_the_modes() -> None:
    assert cases(on_gpu=False, full=True) == [(RESNET32, 32, (EAGER,))]
    quick = cases(on_gpu=True, full=False)
    assert [(network.name, size) for network, size, _ in quick] == [
        ("resnet32", 128),
        ("resnet50", 256),
    ]
    assert all(modes[0] is EAGER and COMPILED not in modes for _, _, modes in quick)
    full = {size: modes for _, size, modes in cases(on_gpu=True, full=True)}
    assert set(full[512]) == {EAGER, HALF, CAPTURED, WITHOUT_KERNELS, COMPILED}
    assert CAPTURED.train.capture and not HALF.train.capture and COMPILED.train.compile
    assert CAPTURED.kernels and not WITHOUT_KERNELS.kernels


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One update warms up."""
    monkeypatch.setattr(step, "WARM_UP", 0)


@pytest.mark.usefixtures("cold")
def test_a_small_measurement() -> None:
    slow = Mode("accumulated", TrainConfig(batch_size=4, accumulate=2, capture=False))
    table = measure(ONCE, [(RESNET32, 4, (EAGER, slow))])
    assert [row[:3] for row in table.rows] == [
        ("ResNet-32", 4, "eager fp32"),
        ("ResNet-32", 4, "accumulated"),
    ]
    for row in table.rows:
        plain, both, rate, _, share = row[3:]
        assert isinstance(plain, Spread) and isinstance(both, Spread)
        assert isinstance(rate, Spread) and rate.median == pytest.approx(4000 / both.median)
        expected = 100 * (1 - plain.median / both.median)
        assert isinstance(share, Spread) and share.median == pytest.approx(expected)
    first, second = table.rows
    assert first[6] is None
    speed_up = first[4].median / second[4].median  # type: ignore[union-attr]
    assert second[6].median == pytest.approx(speed_up)  # type: ignore[union-attr]


@pytest.mark.usefixtures("cold")
def test_a_mode_that_fails_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = UpdateRunner.warm_up

    def broken(self: UpdateRunner) -> None:
        if self.mode.name == "broken":
            raise RuntimeError("no such kernel")
        original(self)

    monkeypatch.setattr(UpdateRunner, "warm_up", broken)
    modes = (EAGER, Mode("broken", TrainConfig(capture=False)))
    table = measure(ONCE, [(RESNET32, 2, modes)])
    assert [row[2] for row in table.rows] == ["eager fp32"]
    assert sum("broken with" in note and "no such kernel" in note for note in table.notes) == 2


def test_each_mode_is_timed_on_images_of_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []

    class Runner:
        def __init__(self, network: Any, mode: Mode, *rest: Any) -> None:
            last = rest[-1][0]["x"].is_contiguous(memory_format=torch.channels_last)
            seen.append((mode.train.channels_last, last))

        def warm_up(self) -> None: ...
        def __call__(self) -> None: ...

    monkeypatch.setattr(step, "UpdateRunner", Runner)
    timed = with_and_without(Table("", "", (), {}), ONCE, RESNET32, 2, (EAGER, HALF))
    assert [mode for mode, _, _ in timed] == [EAGER, HALF]
    assert seen == [(False, False)] * 2 + [(True, True)] * 2


def test_the_share_is_paired() -> None:
    with_it, without = Timing((2.0, 4.0), (1.0, 1.0)), Timing((1.5, 3.0), (1.0, 1.0))
    assert shares(with_it, without) == [25.0, 25.0]


def test_batches_are_random_and_normalised() -> None:
    batches = RESNET32.batches(16, CPU, channels_last=True)
    x = torch.cat([batch["x"] for batch in batches])
    assert 0.8 < x.std() < 2 and x[0].ne(x[16]).any()
    assert len({int(label) for batch in batches for label in batch["y"]}) > 10
    assert batches[0]["x"].is_contiguous(memory_format=torch.channels_last)


def runner_of(mode: Mode, batchformer: bool) -> UpdateRunner:
    return UpdateRunner(RESNET32, mode, batchformer, CPU, RESNET32.batches(4, CPU))


def test_a_call_is_one_update() -> None:
    runner = runner_of(EAGER, batchformer=True)
    before = [p.clone() for p in runner.method.parameters()]
    runner()
    assert all(p.ne(q).any() for p, q in zip(runner.method.parameters(), before, strict=True))
    assert runner.optimizers["main"].state


def test_only_batchformer_tells_the_two_apart() -> None:
    both = [RESNET32.method(batchformer, CPU) for batchformer in (True, False)]
    with_it, without = (dict(method.named_parameters()) for method in both)
    assert all(torch.equal(with_it[name], p) for name, p in without.items())
    assert all(name.startswith("encoder.") for name in with_it.keys() - without.keys())
    assert with_it.keys() > without.keys()


def test_kernels_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str | None] = set()

    def look(x: torch.Tensor, conv: torch.nn.Conv2d) -> str:
        seen.add(unsupported_reason(x))
        return "looking"

    monkeypatch.setattr(available, "conv_unsupported_reason", look)
    runner_of(Mode("without", TrainConfig(capture=False), kernels=False), batchformer=True)()
    assert seen == {"kernels are disabled"}


def test_a_capture_that_fails_is_not_passed_off_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Captured, batch: object) -> None:
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(Captured, "_capture", fail)
    runner = runner_of(Mode("captured", TrainConfig()), batchformer=False)
    for _ in range(WARM_UP):
        runner()
    watch = UpdateStopwatch(lambda: runner, CPU)
    with pytest.raises(RuntimeError, match=r"the capture failed .operation not permitted"):
        watch()
