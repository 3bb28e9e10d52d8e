"""A training, update by update, against the same arithmetic in plain numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine import state as state_module
from batchformer.lab.engine.cuda_graph import WARM_UP, Captured, CapturedUpdate
from batchformer.lab.engine.interrupt import Interrupted, StopRequest
from batchformer.lab.engine.log import DivergedError, NoLog, Progress
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.engine.state import Evaluation, TrainingState, WeightEMA, is_better
from batchformer.nn.randomness import seed_for
from helpers.lab_runs import quiet_plan

LR, MOMENTUM, PER_EPOCH, SEED = 0.25, 0.5, 4, 11
#: Of the learning rate, update by update: a warm-up of two.
FACTORS = (0.5, 0.75, *[1.0] * 20)


class Point(Method):
    """One number, pulled towards that of a batch; it notes what it is told."""

    def __init__(self, at: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(at, dtype=torch.float64))
        self.told: list[Any] = []
        self.drawn: list[float] = []
        self.batches: list[Batch] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.batches.append(batch)
        self.drawn.append(float(torch.rand(())))
        return {"loss": 0.5 * (self.w - batch["x"].mean()) ** 2}

    def predict(self, x: Tensor) -> Tensor:
        self.told.append(("predict", x.dtype))
        return self.w.expand(len(x))

    def begin_training(self, updates: int) -> None:
        self.told.append(("training", updates, self.epochs))

    def begin_epoch(self, epoch: int) -> None:
        self.told.append(("epoch", epoch))

    def before_evaluation(self) -> None:
        self.told.append(("before", self.training, torch.is_grad_enabled()))

    def compile_step(self) -> None:
        self.told.append("compiled")

    def release_step(self) -> None:
        self.told.append("released")


class Targets:
    """What the number is pulled towards; others by update where they are given."""

    per_epoch = PER_EPOCH

    def __init__(self, others: dict[int, float] | None = None) -> None:
        self.others = others or {}

    def at(self, step: int) -> float:
        return self.others.get(step, 1.0 + step % 3)

    def batch(self, step: int) -> dict[str, Any]:
        x = torch.tensor([self.at(step)], dtype=torch.float64)
        return {"x": x, "y": torch.zeros(2), "image": torch.zeros(2, 3, 4, 4), "step": step}


class Log(NoLog):
    """Keeps records in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rewound: list[int] = []
        self.records: list[dict[str, Any]] = []

    def rewind(self, update: int) -> None:
        self.rewound.append(update)

    def write(self, kind: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        self.records.append({"kind": kind, "epoch": epoch, "step": step, **values})


class Bar(Progress):
    """Keeps what it is to say."""

    def __init__(self) -> None:
        super().__init__("run", 1, quiet=True)
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def where(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
    """The number itself is the score."""
    assert not method.training and not torch.is_grad_enabled()
    at = float(method.w.detach())  # type: ignore[operator]
    return Evaluation({"all": at}, {"at": at})


def scripted(*values: float) -> Callable[[Method, OptimizerStep], Evaluation]:
    """Scores of validation one after the other, beside the number itself."""
    left = iter(values)

    def score(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        found = where(method, optimizer_step)
        return Evaluation({**found.metrics, "val": next(left)}, found.figures)

    return score


def new_state(
    folder: Path,
    method: Point | None = None,
    evaluate: Any = where,
    batches: Batches | None = None,
    *,
    resumed: bool = False,
    restart: int = 0,
    swad: Any = None,
    **train: Any,
) -> TrainingState:
    options = {"batch_size": 2, "updates": 6, "log_every": 50, **train}
    optim = OptimConfig(lr=LR, momentum=MOMENTUM, weight_decay=0.0)
    schedule = ScheduleConfig(kind="constant", warmup=2, warmup_from=0.5, restart=restart)
    plan = replace(quiet_plan(folder, optim, schedule, SEED, **options), swad=swad)
    found = checkpoint.load_newest(folder / "checkpoints") if resumed else None
    return TrainingState(
        method or Point(), batches or Targets(), evaluate, plan, Log(folder), Bar(), found
    )


def to_the_end(state: TrainingState) -> Evaluation:
    run = state.train(StopRequest())
    while True:
        try:
            next(run)
        except StopIteration as end:
            found: Evaluation = end.value
            return found


def by_hand(
    updates: int, targets: Targets | None = None, restart: int = 0
) -> tuple[list[float], list[float]]:
    """Where the number is after each update, and the losses, without torch."""
    w, moment, places, losses = 0.0, 0.0, [], []
    for step in range(updates):
        target = (targets or Targets()).at(step)
        losses.append(0.5 * (w - target) ** 2)
        since = step
        if restart and step >= restart:
            since = step - restart
            moment = moment if since else 0.0
        moment = MOMENTUM * moment + (w - target)
        w -= LR * FACTORS[since] * moment
        places.append(w)
    return places, losses


def records_of(state: TrainingState) -> list[dict[str, Any]]:
    """What was logged, but the speed."""
    kept: list[dict[str, Any]] = state.log.records  # type: ignore[attr-defined]
    return [{k: v for k, v in r.items() if k != "samples_per_s"} for r in kept]


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name[:9]) for path in folder.glob("*.pt"))


def test_updates_are_those_of_sgd_with_momentum_and_the_schedule(tmp_path: Path) -> None:
    state = new_state(tmp_path, updates=9, log_every=4)
    end = to_the_end(state)
    places, losses = by_hand(9)
    assert end.metrics["all"] == pytest.approx(places[-1], abs=1e-12)
    assert end.figures == {"at": end.metrics["all"]}
    records = [r for r in records_of(state) if r["kind"] == "train"]
    assert [r["epoch"] for r in records] == [0, 1, 2], "that of the last update in it"
    for record, (first, last) in zip(records, ((0, 4), (4, 8), (8, 9)), strict=True):
        assert record["step"] == last
        mean = sum(losses[first:last]) / (last - first)
        assert record["loss"] == pytest.approx(mean, rel=1e-6)
        assert record["lr"] == pytest.approx(LR * FACTORS[last - 1])
    assert state.counters["update"] == 9 and state.counters["seconds"] > 0


def test_what_comes_when(tmp_path: Path) -> None:
    state = new_state(tmp_path, eval_every=2, checkpoint_every=3, log_every=5)
    events: list[tuple[str, int]] = []
    for name in ("record", "save", "evaluate"):

        def watched(name: str, inner: Callable[[], Any]) -> Any:
            events.append((name, state.update))
            return inner()

        setattr(state, name, partial(watched, name, getattr(state, name)))
    to_the_end(state)
    assert events == [
        *(("record", 2), ("evaluate", 2)),
        ("save", 3),
        *(("record", 4), ("evaluate", 4)),
        ("record", 5),
        *(("record", 6), ("save", 6), ("evaluate", 6)),
    ]
    assert saved(tmp_path / "checkpoints") == [3, 6]


def test_by_default_it_is_evaluated_and_saved_at_the_end(tmp_path: Path) -> None:
    state = new_state(tmp_path)
    to_the_end(state)
    kinds = [(r["kind"], r["step"]) for r in records_of(state)]
    assert kinds == [("train", 6), ("eval", 6)] and saved(tmp_path / "checkpoints") == [6]
    assert not state.bar.notes, "on a CPU nobody expects a CUDA graph"  # type: ignore[attr-defined]


def test_a_method_is_told_of_epochs_and_evaluations(tmp_path: Path) -> None:
    method = Point()
    state = new_state(tmp_path, method, updates=5, eval_every=4, compile=True)
    end = to_the_end(state)
    places, _ = by_hand(5)
    assert method.told == [
        *(("training", 5, 5 / PER_EPOCH), ("epoch", 0), "compiled"),
        *(("epoch", 0), ("before", True, True)),
        *(("epoch", 1), ("before", True, True), "released"),
    ]
    assert end.metrics == {"all": pytest.approx(places[4])}


@pytest.mark.parametrize("stop_at", [1, 3, 4, 6])
def test_a_stop_saves_and_the_rest_is_that_of_an_unbroken_run(tmp_path: Path, stop_at: int) -> None:
    options: dict[str, Any] = {"updates": 7, "eval_every": 3, "log_every": 2}
    whole = new_state(tmp_path / "whole", **options)
    expected = to_the_end(whole)
    cut, request = new_state(tmp_path / "cut", **options), StopRequest()
    run = cut.train(request)
    for _ in range(stop_at):
        next(run)
    request.signal_number = 15
    with pytest.raises(Interrupted, match=f"run: stopped and saved at update {stop_at}") as stopped:
        next(run)
    assert stopped.value.exit_code == 143 and saved(tmp_path / "cut/checkpoints")[-1] == stop_at

    method = Point(at=77.0)
    again = new_state(tmp_path / "cut", method, resumed=True, **options)
    assert again.log.rewound == [stop_at] and again.bar.first == stop_at  # type: ignore[attr-defined]
    assert method.told[-1] == ("epoch", stop_at // PER_EPOCH)
    assert to_the_end(again) == expected
    drawn: Any = whole.method.drawn
    assert method.drawn == drawn[stop_at:], "so are dropout's draws"

    kept = [r for r in records_of(cut) if r["step"] < stop_at + (r["kind"] == "train")]
    assert kept + records_of(again) == records_of(whole)


def test_the_best_the_scale_and_torchs_own_generator_go_on(tmp_path: Path) -> None:
    """Our draws are functions of the update, but a method may draw outside of updates."""
    state = new_state(tmp_path, updates=2, precision="fp16")
    scaler = state.optimizer_step.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0, "_growth_tracker": 3})
    state.best = {"all": 3.0}
    torch.manual_seed(5)
    state.save()
    expected = torch.rand(3)
    torch.manual_seed(999)
    again = new_state(tmp_path, updates=2, precision="fp16", resumed=True)
    assert torch.equal(torch.rand(3), expected) and again.best == {"all": 3.0}
    assert again.optimizer_step.scaler.state_dict() == scaler.state_dict()


class OneKind(Targets):
    """Batches that one graph serves."""

    def batch(self, step: int) -> dict[str, Any]:
        return {name: value for name, value in super().batch(step).items() if name != "step"}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a training asks of a device that is only a stand-in, and of the disk, in order."""
    noted: list[str] = []

    class Graph:
        def __init__(self, work: Callable[[], Any]) -> None:
            self.work = work

        def replay(self) -> None:
            noted.append("replay")
            self.work()

        def reset(self) -> None:
            noted.append("drop the graph")

    def record(captured: Captured, batch: Batch) -> CapturedUpdate:
        static = dict(batch)
        losses = {"loss": torch.zeros((), dtype=torch.float64)}

        def work() -> None:
            losses["loss"].copy_(captured.work(static)["loss"])

        return CapturedUpdate(Graph(work), static, losses)  # type: ignore[arg-type]

    def write(folder: Path, *rest: Any) -> None:
        noted.append("save")
        save(folder, *rest)

    save = state_module.save
    monkeypatch.setattr(state_module, "why_eager", lambda *_: None)
    monkeypatch.setattr(state_module, "synchronize", lambda device: noted.append("wait"))
    monkeypatch.setattr(state_module, "save", write)
    monkeypatch.setattr(Captured, "_capture", record)
    return noted


def test_a_stop_waits_for_the_device_before_it_saves_and_before_graphs_go(
    tmp_path: Path, events: list[str]
) -> None:
    state, request = new_state(tmp_path, batches=OneKind(), updates=9), StopRequest()
    run = state.train(request)
    for _ in range(WARM_UP + 2):
        next(run)
    assert events == ["replay", "replay"]
    request.signal_number = 15
    with pytest.raises(Interrupted):
        next(run)
    assert events[2:] == ["wait", "save", "wait", "drop the graph"]
    again = new_state(tmp_path, Point(at=77.0), batches=OneKind(), updates=9, resumed=True)
    assert to_the_end(again).metrics["all"] == pytest.approx(by_hand(9)[0][-1])


@pytest.mark.parametrize("how", ["end", "left", "diverged", "evaluation"])
def test_graphs_outlive_their_work_however_a_training_ends(
    tmp_path: Path, events: list[str], how: str
) -> None:
    def fails(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        raise KeyboardInterrupt

    batches = OneKind({5: math.nan} if how == "diverged" else None)
    evaluate = fails if how == "evaluation" else where
    run = new_state(tmp_path, evaluate=evaluate, batches=batches).train(StopRequest())
    for _ in range(6):
        next(run)
    if how == "left":
        run.close()
    else:
        kinds = {"end": StopIteration, "diverged": DivergedError, "evaluation": KeyboardInterrupt}
        with pytest.raises(kinds[how]):
            next(run)
    assert events[:3] == ["replay"] * 3 and events[-2:] == ["wait", "drop the graph"]
    assert events.count("save") == (how in ("end", "evaluation"))


def test_an_error_of_the_device_does_not_hide_the_first_one(
    tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    run = new_state(tmp_path, batches=OneKind({2: math.nan}), log_every=1).train(StopRequest())
    for _ in range(3):
        next(run)
    monkeypatch.setattr(state_module, "synchronize", broken)
    with pytest.raises(DivergedError):
        next(run)


def test_draws_are_a_function_of_the_seed_and_the_update(tmp_path: Path) -> None:
    method = Point()
    to_the_end(new_state(tmp_path, method, updates=3))
    expected = []
    for update in range(3):
        seed = seed_for(SEED, "dropout", update)
        expected.append(float(torch.rand((), generator=torch.Generator().manual_seed(seed))))
    assert method.drawn == expected and len(set(expected)) == 3


@pytest.mark.parametrize(("log_every", "checkpoint_every", "last"), [(1, 1, 3), (50, 2, 2)])
def test_a_loss_that_is_no_number_is_never_saved(
    tmp_path: Path, log_every: int, checkpoint_every: int, last: int
) -> None:
    bad = Targets({3: math.nan})
    state = new_state(tmp_path, batches=bad, log_every=log_every, checkpoint_every=checkpoint_every)
    with pytest.raises(DivergedError, match=r"'loss'.* nan at update 3"):
        to_the_end(state)
    assert saved(tmp_path / "checkpoints")[-1] == last
    mended = to_the_end(new_state(tmp_path, resumed=True))
    assert mended.metrics["all"] == pytest.approx(by_hand(6)[0][-1])


@pytest.mark.parametrize("updates", [4, 6])  # with a checkpoint after the update, and as the last
def test_a_weight_that_no_loss_showed_to_be_broken_is_never_saved(
    tmp_path: Path, updates: int
) -> None:
    class Breaks(Point):
        def after_update(self) -> None:
            if len(self.batches) == updates:
                self.w.data.fill_(math.nan)

    with pytest.raises(DivergedError, match=rf"weight became NaN or infinite at .* {updates - 1}"):
        to_the_end(new_state(tmp_path, Breaks(), checkpoint_every=2))
    assert saved(tmp_path / "checkpoints")[-1] == updates - 2


@pytest.mark.parametrize(("scores", "best"), [((1.0, 3.0, 2.0), 4), ((2.0, 1.0, 3.0), 6)])
def test_the_best_on_validation_is_kept_and_reported(
    tmp_path: Path, scores: tuple[float, ...], best: int
) -> None:
    evaluate = scripted(*scores, 0.0)  # once more for the figures of the best
    end = to_the_end(new_state(tmp_path, evaluate=evaluate, eval_every=2, select_on="val"))
    place = by_hand(6)[0][best - 1]
    assert end.metrics["all"] == pytest.approx(place)
    assert end.metrics["val"] == scores[best // 2 - 1]
    assert end.figures == {"at": pytest.approx(place)}
    kept = checkpoint.load_newest(tmp_path / "best")
    assert kept is not None and kept.keys() == {"method"} and saved(tmp_path / "best")[-1] == best
    assert float(kept["method"]["w"]) == pytest.approx(place)


def test_without_selection_the_last_is_reported_and_none_is_kept_as_best(tmp_path: Path) -> None:
    evaluate = scripted(1.0, 3.0, 2.0)
    end = to_the_end(new_state(tmp_path, evaluate=evaluate, eval_every=2))
    assert end.metrics["val"] == 2.0 and not (tmp_path / "best").exists()


def test_the_running_mean_of_the_weights_is_what_is_scored(tmp_path: Path) -> None:
    method = Point()
    end = to_the_end(new_state(tmp_path, method, ema=0.75))
    places, _ = by_hand(6)
    mean = places[0]
    for place in places[1:]:
        mean = 0.75 * mean + 0.25 * place
    assert end.metrics["all"] == pytest.approx(mean)
    assert float(method.w.detach()) == pytest.approx(places[-1])


def test_a_restart_forgets_moments_and_begins_the_schedule_anew(tmp_path: Path) -> None:
    state = new_state(tmp_path, restart=3, log_every=1)
    end = to_the_end(state)
    assert end.metrics["all"] == pytest.approx(by_hand(6, restart=3)[0][-1], abs=1e-12)
    assert end.metrics["all"] != pytest.approx(by_hand(6)[0][-1])
    rates = [r["lr"] for r in records_of(state) if r["kind"] == "train"]
    assert rates == pytest.approx([LR * f for f in FACTORS[:3] * 2])


@pytest.mark.parametrize("converge", [1, 9])
def test_the_averaged_network_is_reported_and_kept_and_the_valley_is_recorded(
    tmp_path: Path, converge: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def score(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        found = where(method, optimizer_step)
        return Evaluation({**found.metrics, "val_loss": 1.0}, found.figures)

    state = new_state(tmp_path, evaluate=score, swad=(converge, 1, 0.3), eval_every=3)
    end = to_the_end(state)
    places, _ = by_hand(6)
    averaged = places if converge == 1 else places[3:]
    mean, last = pytest.approx(sum(averaged) / len(averaged)), pytest.approx(places[-1])
    scores = {"all": mean, "val_loss": 1.0, "without_swad_all": last, "without_swad_val_loss": 1.0}
    assert list(end.metrics) == list(scores) and end.metrics == scores
    assert end.figures == {"at": mean, "without_swad_at": last}
    kept = checkpoint.load_newest(tmp_path / "swad")
    assert kept is not None and float(kept["method"]["w"]) == mean
    assert saved(tmp_path / "swad") == [6]
    found = end.findings["swad"]
    assert (found["updates"], found["converged"]) == (len(averaged), converge == 1)
    record = {"kind": "swad", "epoch": 6 // PER_EPOCH, "step": 6, **found}
    assert [r for r in records_of(state) if r["kind"] == "swad"] == [record]
    told = "never converged" in capsys.readouterr().err
    assert told == (converge == 9), "what is unexpected is said even when quiet"
    assert to_the_end(new_state(tmp_path / "other")).findings == {}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_batches_come_in_the_precision_and_the_format_that_is_asked_for(
    tmp_path: Path, precision: Any, channels_last: bool
) -> None:
    def predicts(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        return Evaluation({"all": float(method.predict(torch.zeros(1)).sum())})

    method = Point()
    options: dict[str, Any] = {"precision": precision, "channels_last": channels_last}
    to_the_end(new_state(tmp_path, method, predicts, updates=1, **options))
    batch = method.batches[0]
    wide = torch.float64 if precision == "fp64" else torch.float32
    assert batch["image"].dtype == batch["y"].dtype == wide and batch["step"] == 0
    last = batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert last == channels_last
    assert [told[1] for told in method.told if told[0] == "predict"] == [wide]


def test_time_spent_on_evaluations_is_not_that_of_training(tmp_path: Path) -> None:
    def slow(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        time.sleep(0.05)
        return where(method, optimizer_step)

    state = new_state(tmp_path, evaluate=slow)
    before = state.window.started
    state.evaluate()
    assert 0.05 <= state.window.started - before < 5
    assert state.method.training


def test_the_state_of_another_training_is_refused_by_its_folder(tmp_path: Path) -> None:
    to_the_end(new_state(tmp_path))

    class Wider(Point):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Linear(2, 2)

    with pytest.raises(ValueError, match=r"is not of this training .*more\.weight") as refused:
        new_state(tmp_path, Wider(), resumed=True)
    assert str(tmp_path) in str(refused.value)


# The best of several evaluations, against sorting them all.


MEASURED = st.integers(0, 3).map(float)
SCORES = st.one_of(st.just(math.nan), MEASURED)


@given(st.lists(st.tuples(SCORES, MEASURED), min_size=1), st.sampled_from(["last", "val", "test"]))
def test_the_first_of_the_highest_is_the_best(
    scores: list[tuple[float, float]], select_on: str
) -> None:
    best: dict[str, float] = {}
    for number, (headline, val) in enumerate(scores):
        metrics = {"all": headline, "val": val, "number": number}
        if is_better(metrics, best, select_on):
            best = metrics
    decisive = [pair[select_on == "val"] for pair in scores]
    measured = [-1.0 if math.isnan(score) else score for score in decisive]
    first = measured.index(max(measured))
    assert best["number"] == first


@pytest.mark.parametrize("best", [{}, {"all": 1.0, "val": 2.0}])
def test_a_score_of_validation_that_is_no_number_is_refused(best: dict[str, float]) -> None:
    """Else the first network, the least trained, would be kept."""
    metrics = {"all": 3.0, "val": math.nan}
    with pytest.raises(ValueError, match=r"validation score is NaN.*train\.select-on last"):
        is_better(metrics, best, "val")
    assert is_better(metrics, best, "last") and is_better(metrics, best, "test")


# The running mean of weights, against torch's, which asks the device at each update.


def test_the_mean_is_torchs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours = WeightEMA(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(8, 3))
        ours.update_parameters(model)
        theirs.update_parameters(model)
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for key, value in ours.state_dict().items():
        if value.is_floating_point() or key == "n_averaged":
            torch.testing.assert_close(value, expected[key])
        else:
            assert torch.equal(value, model.state_dict()[key.removeprefix("module.")])
