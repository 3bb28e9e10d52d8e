"""Whole trainings: resumed equals uninterrupted, a finished one is only scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import BatchFormer, match, two_streams
from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.transforms import digits_train
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.interrupt import Interrupted, StopRequest
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.engine.state import BEST, Evaluation, Plan
from helpers.data_files import grey_images
from helpers.lab_runs import fit, quiet_plan, records_of, same


class Net(Method):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)
        )
        self.encoder, self.head = BatchFormer(16), nn.Linear(16, 10)
        self.steps = 0

    def step(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.head(two_streams(self.layers(batch["x"]), self.encoder))
        loss = F.cross_entropy(logits, match(logits, batch["y"]))
        self.steps += 1
        return {"loss": loss, "penalty": loss.detach()}

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x))
        return logits


SPLIT = grey_images(56)


def evaluate(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
    assert not method.training and not torch.is_grad_enabled()
    logits = method.predict(SPLIT.x.float() / 255)
    score = float((logits.argmax(1) == SPLIT.labels).float().mean())
    return Evaluation({"all": 100 * score, "mean": float(logits.mean())}, {"n": 56})


def feed() -> Feed:
    return Feed(SPLIT, digits_train(), Steps(Shuffle(len(SPLIT), seed=3), 16), seed=3)


def plan(folder: Path, **train: Any) -> Plan:
    options = {"batch_size": 16, "updates": 30, "eval_every": 10, "log_every": 7, **train}
    optim = OptimConfig(name=options.pop("optim", "sgd"), lr=0.1)
    return quiet_plan(folder, optim, ScheduleConfig(kind="cosine", warmup=4), **options)


def run(folder: Path, **train: Any) -> tuple[Net, Evaluation]:
    net = Net()
    return net, fit(net, feed(), evaluate, plan(folder, **train))


Unbroken = Callable[..., tuple[Path, Net, Evaluation]]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """A whole training with these settings, once for all tests, and its folder."""
    done: dict[str, tuple[Path, Net, Evaluation]] = {}

    def once(**train: Any) -> tuple[Path, Net, Evaluation]:
        if str(train) not in done:
            folder = tmp_path_factory.mktemp("whole")
            done[str(train)] = (folder, *run(folder, **train))
        return done[str(train)]

    return once


@pytest.mark.parametrize(
    ("stop_at", "options"),
    [
        *((1, {}), (20, {}), (13, {"checkpoint_every": 4}), (13, {"ema": 0.9})),
        *((13, {"accumulate": 2, "clip_norm": 0.5}), (13, {"precision": "bf16"})),
        *((1, {"select_on": "test"}), (20, {"select_on": "test"})),
        (13, {"optim": "adam"}),
    ],
    ids=str,
)
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Unbroken,
    stop_at: int,
    options: dict[str, Any],
) -> None:
    folder, whole, expected = unbroken(**options)
    net = Net()
    after = net.after_update
    request: list[StopRequest] = []
    made = StopRequest.__init__

    def remember(self: StopRequest) -> None:
        made(self)
        request.append(self)

    def interrupt() -> None:
        after()
        if net.steps == stop_at * options.get("accumulate", 1):
            request[-1].signal_number = 15

    monkeypatch.setattr(StopRequest, "__init__", remember)
    net.__dict__["after_update"] = interrupt
    with pytest.raises(Interrupted, match=f"saved at update {stop_at}"):
        fit(net, feed(), evaluate, plan(tmp_path / "cut", **options))
    torch.manual_seed(999)  # whatever happened in between
    resumed, got = run(tmp_path / "cut", **options)

    assert got.metrics == expected.metrics
    assert records_of(tmp_path / "cut") == records_of(folder)
    assert same(resumed.state_dict(), whole.state_dict())


def test_the_seconds_of_all_sittings_are_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those in between, nor what the clock of another machine begins with."""
    now = [5.0]
    monkeypatch.setattr("batchformer.lab.engine.state.time.perf_counter", lambda: now[0])

    def sitting(folder: str, net: Net, updates: int, seconds: float) -> float:
        after = net.after_update

        def work() -> None:
            after()
            now[0] += seconds

        net.__dict__["after_update"] = work
        return fit(net, feed(), evaluate, plan(tmp_path / folder, updates=updates)).seconds

    assert sitting("one", Net(), 8, 2.0) == pytest.approx(16.0)
    now[0] = 7e6
    assert sitting("one", Net(), 20, 3.0) == pytest.approx(16.0 + 12 * 3.0)


def test_a_finished_run_is_only_evaluated_again(unbroken: Unbroken) -> None:
    folder, _, expected = unbroken()
    before = records_of(folder)
    net, got = run(folder)
    assert net.steps == 0 and got.metrics == expected.metrics and records_of(folder) == before


def test_a_training_that_falls_back_leaves_no_network_of_what_was_lost(tmp_path: Path) -> None:
    _, expected = run(tmp_path, select_on="test")
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(b"damaged")
    checkpoint.save(tmp_path / "best", 30, {"method": "of another training"})
    checkpoint.save(tmp_path / "other", 30, {"method": "of another training"})
    _, got = run(tmp_path, select_on="test")
    assert got.metrics == expected.metrics and not newest.exists()
    assert not list((tmp_path / "other").iterdir())
    kept = checkpoint.load_newest(tmp_path / "best")
    assert kept is not None and kept["method"] != "of another training"


def test_compiled_and_channels_last_train_the_same(tmp_path: Path) -> None:
    _, expected = run(tmp_path / "plain", updates=4)
    _, got = run(tmp_path / "last", updates=4, channels_last=True)
    assert got.metrics["mean"] == pytest.approx(expected.metrics["mean"], abs=1e-5)
    torch.compiler.reset()
    with torch.compiler.set_stance("force_eager"):
        _, compiled = run(tmp_path / "compiled", updates=4, compile=True)
    assert compiled.metrics == expected.metrics


def test_determinism_is_one_switch(tmp_path: Path) -> None:
    run(tmp_path / "a", updates=2, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    run(tmp_path / "b", updates=2)
    assert not torch.are_deterministic_algorithms_enabled()


def test_everything_is_written_below_its_folder(tmp_path: Path) -> None:
    run(tmp_path / "a/run", updates=4, eval_every=2, log_every=2, select_on="test")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    folder = tmp_path / "a/run"
    assert [r["step"] for r in records_of(folder)] == [2, 2, 4, 4]
    assert list((folder / BEST).glob("*.pt")) and list((folder / "checkpoints").glob("*.pt"))


@pytest.mark.parametrize("quiet", [False, True])
def test_its_title_names_it_unless_it_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    told = plan(tmp_path, updates=2)
    fit(Net(), feed(), evaluate, dataclasses.replace(told, title="tail seed 0", quiet=quiet))
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert bool(lines) != quiet
    assert all(line.startswith("tail seed 0: ") for line in lines)
