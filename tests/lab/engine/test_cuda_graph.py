"""When updates are captured, and that a captured update computes what eager code computes."""

from __future__ import annotations

import gc
import json
import signal
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.io import write_png

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.feeds.framing import RandomResizedCrop
from batchformer.lab.data.feeds.loader import FileFeed
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import cifar_train
from batchformer.lab.engine import cuda_graph
from batchformer.lab.engine.cuda_graph import (
    WARM_UP,
    Captured,
    CapturedUpdate,
    synchronize,
    why_eager,
)
from batchformer.lab.engine.interrupt import Interrupted
from batchformer.lab.engine.loop import Job, train_interleaved, training
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.state import Evaluation, Plan
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from helpers.lab_runs import fit, quiet_plan

CUDA = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_no_garbage_is_collected_during_a_capture() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    before = weakref.ref(Cycle())
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with pytest.raises(RuntimeError, match="fails"), cuda_graph.no_collection():
            assert before() is None, "garbage from before is gone"
            inside = weakref.ref(Cycle())
            _ = [[] for _ in range(100)]  # would start a collection
            assert inside() is not None
            raise RuntimeError("the capture fails")
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)


class Talker(Method):
    def why_eager(self) -> str | None:
        return "it reads its losses back"


@pytest.mark.parametrize(
    ("train", "device", "method", "expected"),
    [
        (TrainConfig(), "cuda", Method(), None),
        (TrainConfig(), "cpu", Method(), "the device is cpu, not cuda"),
        (TrainConfig(capture=False), "cuda", Method(), "train.no-capture asks for it"),
        (TrainConfig(precision="fp16"), "cuda", Method(), "fp16 decides"),
        (TrainConfig(precision="bf16", ema=0.9, clip_norm=1.0), "cuda", Method(), None),
        (TrainConfig(), "cuda", Talker(), "it reads its losses back"),
    ],
)
def test_the_reasons(train: TrainConfig, device: str, method: Method, expected: str | None) -> None:
    reason = why_eager(train, torch.device(device), method)
    assert reason == expected or (expected is not None and reason and reason.startswith(expected))


class FakeGraph:
    """Stands for a CUDA graph: counts how often it was replayed."""

    replays, dropped = 0, False

    def replay(self) -> None:
        self.replays += 1

    def reset(self) -> None:
        self.dropped = True


class Machine:
    """An updater whose graphs are fakes, with what it was asked to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> None:
        self.phase: Any = None
        self.eager = 0
        self.graphs: list[FakeGraph] = []
        self.said: list[str] = []

        def capture(_: Captured, batch: Any) -> CapturedUpdate:
            if fails:
                raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
            self.graphs.append(FakeGraph())
            static = {name: torch.zeros_like(value) for name, value in batch.items()}
            return CapturedUpdate(self.graphs[-1], static, {"loss": static["x"].sum()})  # type: ignore[arg-type]

        def work(batch: Any) -> dict[str, Tensor]:
            self.eager += 1
            return {"loss": batch["x"].sum()}

        monkeypatch.setattr(Captured, "_capture", capture)
        self.update = Captured(work, torch.device("cpu"), lambda: self.phase, self.said.append)

    def run(self, rows: int, times: int = 1, dtype: torch.dtype = torch.float32) -> None:
        for _ in range(times):
            self.update({"x": torch.ones(rows, dtype=dtype)}, seed=0)


def test_a_batch_is_captured_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.run(8, WARM_UP)
    assert (machine.eager, len(machine.graphs)) == (WARM_UP, 0)
    machine.run(8, 5)
    assert (machine.eager, [g.replays for g in machine.graphs]) == (WARM_UP, [5])
    assert float(next(iter(machine.update.graphs.values())).batch["x"].sum()) == 8


def test_ragged_batches_and_phases_are_kinds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    for _ in range(4):
        machine.run(8, 3)
        machine.run(5)
    assert machine.eager == 2 * WARM_UP and [g.replays for g in machine.graphs] == [9, 1]
    machine.phase = "deferred"
    machine.run(8, WARM_UP + 1)
    assert machine.eager == 3 * WARM_UP and len(machine.graphs) == 3
    machine.phase = None
    machine.run(8)
    assert machine.graphs[0].replays == 10
    machine.run(8, WARM_UP + 1, torch.float64)
    assert machine.eager == 4 * WARM_UP and len(machine.graphs) == 4


def test_too_many_kinds_stay_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    for rows in range(1, cuda_graph.MAX_GRAPHS + 4):
        machine.run(rows, WARM_UP + 1)
    assert len(machine.graphs) == cuda_graph.MAX_GRAPHS
    assert machine.eager == (cuda_graph.MAX_GRAPHS + 3) * WARM_UP + 3


def test_a_failed_capture_is_reported_once_and_updates_go_on_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, fails=True)
    machine.run(8, 10)
    machine.run(5, 10)
    assert machine.eager == 20
    (line,) = machine.said
    assert "eager from here" in line and "not permitted" in line and "more lines" not in line


def test_graphs_can_be_released(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.run(8, WARM_UP + 1)
    machine.update.release()
    assert machine.graphs[0].dropped and not machine.update.graphs
    machine.run(8, WARM_UP + 1)
    assert machine.eager == 2 * WARM_UP and len(machine.graphs) == 2


def test_a_device_is_waited_for_on_all_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    synchronize(torch.device("cpu"))
    synchronize(torch.device("cuda:1"))
    assert waited == [torch.device("cuda:1")]


# On a GPU.


@pytest.fixture(autouse=True)
def deterministic_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def split(rows: int = 300) -> ImageSplit:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(10, (rows,), generator=draw)
    x = torch.randint(256, (rows, 3, 32, 32), generator=draw) // 4 + 18 * y[:, None, None, None]
    return ImageSplit(x.to(torch.uint8), y)


def method(
    seed: int = 0,
    module: bool = True,
    hyper: MethodConfig | None = None,
    network: nn.Module | None = None,
    **settings: Any,
) -> Method:
    torch.manual_seed(seed)
    return build_method(
        "balanced_softmax",
        network=network or build_model("resnet32", 10),
        module=ModuleConfig(enabled=module, **settings),
        seed=seed,
        class_counts=torch.arange(10, 0, -1),
        hyper=hyper,
    )


def plan(folder: Path, seed: int = 0, **changes: Any) -> Plan:
    optim = changes.pop("optim", OptimConfig(lr=0.05))
    train = {"batch_size": 64, "updates": 200, "log_every": 1, **changes}
    return quiet_plan(
        folder, optim, ScheduleConfig(kind="cosine", warmup=20), seed, "cuda", **train
    )


def evaluation(trained: Method, _: Any) -> Evaluation:
    total = sum(float(p.double().abs().sum()) for p in trained.parameters())
    return Evaluation({"weights": total})


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [r["loss"] for r in map(json.loads, lines) if r["kind"] == "train"]


def feed(seed: int = 0) -> Feed:
    images = split()
    order = Steps(Shuffle(len(images), seed), 64)
    return Feed(images, cifar_train(), order, seed, device=CUDA)


def both_ways(
    folder: Path,
    make: Callable[[], Method],
    batches: Callable[[], AbstractContextManager[Batches]] = lambda: nullcontext(feed()),
    **changes: Any,
) -> tuple[list[Method], list[Evaluation]]:
    """Train eagerly and captured; the losses of all updates are the same."""
    trained, ends = [], []
    for name in ("eager", "captured"):
        where = plan(folder / name, capture=name == "captured", deterministic=True, **changes)
        trained.append(make())
        with batches() as source:
            ends.append(fit(trained[-1], source, evaluation, where))
    eager, captured = losses(folder / "eager"), losses(folder / "captured")
    assert len(captured) == changes.get("updates", 200)
    assert captured == pytest.approx(eager, rel=1e-3)
    return trained, ends


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "channels_last": True},
        {"ema": 0.9, "clip_norm": 1.0, "accumulate": 2},
        {"optim": OptimConfig(name="adamw", lr=1e-3)},
    ],
    ids=["fp32", "bf16", "ema-clip-accumulate", "adamw"],
)
def test_captured_equals_eager_for_200_updates(tmp_path: Path, changes: dict[str, Any]) -> None:
    _, (eager, captured) = both_ways(tmp_path, method, **changes)
    assert captured.metrics["weights"] == pytest.approx(eager.metrics["weights"], rel=1e-4)
    each = losses(tmp_path / "eager")
    assert each[-1] < each[0], "it learns"


#: Box, partner and decision are drawn on the device, anew at each replay.
CUTMIX = MethodConfig(cutmix=1.0, mix_prob=0.5)
ADAMW = OptimConfig(name="adamw", lr=1e-3, weight_decay=0.05, decayed="matrices")


def transformer(**module: Any) -> Method:
    torch.manual_seed(0)
    network = build_model("deit_cifar", 10, drop_path_rate=0.1)
    places: dict[str, Any] = {"at": ("blocks.1", "blocks.3", "norm"), "share": True, **module}
    return method(network=network, **places)


#: A method, and what else its training changes.
METHODS: list[tuple[Callable[[], Method], dict[str, Any]]] = [
    *((partial(method, module=on, hyper=CUTMIX), {}) for on in (False, True)),
    *(
        (partial(transformer, **module), {"optim": ADAMW})
        for module in ({}, {"attend": "self"}, {"encoder": "none"}, {"streams": "mixed_only"})
    ),
    *(
        (partial(method, hyper=hyper, context="classes", attend=attend), {})
        for hyper in (MethodConfig(), CUTMIX)
        for attend in ("batch", "self")
    ),
    *(
        (partial(method, **module), {})
        for module in (
            *({"mixed_labels": "attention"}, {"mixed_labels": "random"}),
            *({"attend": "self", "views": 4}, {"encoder": "dropout"}, {"encoder": "norm"}),
        )
    ),
]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("make", "changes"), METHODS)
def test_captured_methods_equal_eager_ones(
    tmp_path: Path, make: Callable[[], Method], changes: dict[str, Any], capsys: Any
) -> None:
    trained, _ = both_ways(tmp_path, make, precision="bf16", updates=100, **changes)
    assert "the capture failed" not in capsys.readouterr().err
    eager, captured = (one.state_dict().get("encoder.means") for one in trained)
    if eager is not None:  # means of classes are updated in place, once for each replay
        torch.testing.assert_close(captured, eager, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@needs_gpu
def test_runs_side_by_side_are_the_runs_alone(tmp_path: Path) -> None:
    """Four runs, two seeds, arms sharing their batches: each as if it had the device to itself."""
    kinds = [(seed, module) for seed in (0, 1) for module in (False, True)]
    changes: dict[str, Any] = {"deterministic": True, "updates": 120}
    for seed, module in kinds:
        where = tmp_path / f"alone{seed}{module}"
        fit(method(seed, module), feed(seed), evaluation, plan(where, seed, **changes))
    feeds = {seed: feed(seed) for seed in (0, 1)}

    def job(seed: int, module: bool) -> Job:
        where = plan(tmp_path / f"together{seed}{module}", seed, **changes)
        made = method(seed, module)
        return Job(
            f"{seed}{module}",
            lambda request: training(made, feeds[seed], evaluation, where, request, False),
        )

    ended = list(train_interleaved([job(*kind) for kind in kinds], CUDA))
    assert len(ended) == 4
    for seed, module in kinds:
        alone = losses(tmp_path / f"alone{seed}{module}")
        assert losses(tmp_path / f"together{seed}{module}") == pytest.approx(alone, rel=1e-3)


class Stopping:
    """Batches of a feed; at one step a signal asks the process to stop."""

    def __init__(self, inner: Feed, at: int) -> None:
        self.inner, self.at, self.per_epoch = inner, at, inner.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        if step == self.at:
            signal.raise_signal(signal.SIGTERM)
        return self.inner.batch(step)


@pytest.mark.gpu
@needs_gpu
def test_a_captured_training_that_a_signal_stops_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    """Two runs side by side, stopped while their graphs are replayed; nothing is left under way."""
    changes: dict[str, Any] = {"deterministic": True, "updates": 40, "log_every": 1}
    arms = (False, True)
    for module in arms:
        fit(method(0, module), feed(), evaluation, plan(tmp_path / f"whole{module}", **changes))

    def jobs(batches: Any) -> list[Job]:
        made = {module: method(0, module) for module in arms}
        plans = {module: plan(tmp_path / f"cut{module}", **changes) for module in arms}
        return [
            Job(
                str(module),
                lambda request, module=module: training(  # type: ignore[misc]
                    made[module], batches, evaluation, plans[module], request, False
                ),
                batches,
            )
            for module in arms
        ]

    with pytest.raises(Interrupted):
        list(train_interleaved(jobs(Stopping(feed(), at=25)), CUDA))
    assert torch.cuda.current_stream().query() and torch.cuda.default_stream().query()
    for module in arms:
        kept = [path.name[:9] for path in (tmp_path / f"cut{module}/checkpoints").iterdir()]
        assert kept in (["000000025"], ["000000026"])
    assert len(list(train_interleaved(jobs(feed()), CUDA))) == 2
    for module in arms:
        cut, whole = (losses(tmp_path / f"{name}{module}") for name in ("cut", "whole"))
        assert len(cut) == 40 and cut == pytest.approx(whole, rel=1e-3)


class DrawsOnTheHost(Method):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def step(self, batch: Any) -> dict[str, Tensor]:
        return {"loss": (self.fc(batch["x"].mean((2, 3))) * float(torch.rand(()))).square().mean()}


@pytest.mark.gpu
@needs_gpu
def test_an_update_that_draws_on_the_host_is_not_frozen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(DrawsOnTheHost(), feed(), evaluation, plan(tmp_path, updates=30))
    assert "draws random numbers on the CPU" in capsys.readouterr().err
    assert len(set(losses(tmp_path))) == 30


@pytest.mark.gpu
@needs_gpu
def test_captured_equals_eager_on_image_files(tmp_path: Path) -> None:
    """Batches that workers read and page-locked memory carries, ragged last ones among them."""
    images = split()
    for number in range(200):
        place = tmp_path / "images" / str(int(images.labels[number]))
        place.mkdir(parents=True, exist_ok=True)
        write_png(images.x[number], str(place / f"{number}.png"))
    files = ImageFiles.from_folder(tmp_path / "images")
    order = Steps(Shuffle(len(files), seed=0), 64)
    parts = files, RandomResizedCrop(32), cifar_train(), order, 0
    feeds = partial(FileFeed, *parts, device=CUDA, workers=2)
    both_ways(tmp_path, method, lambda: closing(feeds()), updates=60)
