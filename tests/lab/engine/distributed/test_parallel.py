"""Several ranks compute what one process computes: sums, norms, gradients, trainings, scores.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from batchformer import BatchFormer, match, two_streams
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import DomainSteps, Order, Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.feeds.sharding import all_rows, own_positions, scored_rows
from batchformer.lab.data.transforms import digits_train
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.distributed.gradients import (
    Parallel,
    average_gradients,
    broadcast_state,
    mean_over_ranks,
)
from batchformer.lab.engine.distributed.rank_zero import (
    RankZeroFailed,
    max_over_ranks,
    on_rank_zero,
)
from batchformer.lab.engine.distributed.sync_norm import synchronise_norms
from batchformer.lab.engine.interrupt import Interrupted, StopRequest
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.engine.loop import training
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep, Step
from batchformer.lab.engine.state import Evaluation, Plan
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.lab.tasks.detection import of_all_ranks
from batchformer.nn.exchange import as_single_rank, world_size
from helpers.data_files import grey_images
from helpers.lab_runs import fit, quiet_plan

#: Batches of 8 and, at the end of an epoch, of 6: on three ranks 3, 3, 2 and 2, 2, 2 rows.
IMAGES, BATCH = 30, 8
SPLIT = grey_images(IMAGES)
SHUFFLED = Steps(Shuffle(IMAGES, seed=3), BATCH)
#: Which of three domains an image is of.
DOMAIN = torch.arange(IMAGES) % 3


class Net(Method):
    """With batch normalisation, and BatchFormer over all ranks if asked for."""

    def __init__(self, mixed: bool = False, unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16)
        )
        self.encoder = BatchFormer(16, exchange=True) if mixed else None
        self.head = nn.Linear(16, 10)
        self.spare = nn.Linear(2, 2) if unused else None
        self.seen: list[Tensor] = []
        self.double()

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.seen.append(batch["index"])
        x = self.layers(batch["x"].double())
        logits = self.head(x if self.encoder is None else two_streams(x, self.encoder))
        loss = F.cross_entropy(logits, match(logits, batch["y"]))
        return {"loss": loss, "square": logits[: len(x)].square().mean()}

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x.double()))
        return logits


class TwoOptimizers(Net):
    """Two optimizers, one of them stepped by hand with a gradient set by hand."""

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return {
            "main": torch.optim.SGD([{"params": [*self.layers.parameters()], "base_lr": 0.1}], 0.1),
            "head": torch.optim.Adam([{"params": [*self.head.parameters()], "base_lr": 0.01}]),
        }

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        params = [*self.layers.parameters()]
        losses = optimizer_step.minimise(self.step, batch, optimizers["main"], params)
        weight = optimizer_step.parallel.weight(batch) if optimizer_step.parallel else 1.0
        loss = self.step(batch)["loss"] * weight
        for p, gradient in zip(
            self.head.parameters(),
            torch.autograd.grad(loss, [*self.head.parameters()]),
            strict=True,
        ):
            p.grad = gradient
        optimizers["head"].step()
        return losses


def evaluate(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
    right = []
    for x, y in zip(
        torch.split(SPLIT.x, 7), torch.split(SPLIT.labels, 7), strict=True
    ):  # the last has two images
        logits = all_rows(method.predict(x[scored_rows(len(x))] / 255), len(y))
        right.append(logits.argmax(1) == y)
    return Evaluation({"all": 100 * float(torch.cat(right).double().mean())})


def plan(folder: Path, **train: Any) -> Plan:
    options = {"batch_size": BATCH, "updates": 6, "eval_every": 3, "log_every": 4, **train}
    schedule = ScheduleConfig(kind="cosine", warmup=2)
    return quiet_plan(folder, OptimConfig(lr=0.1), schedule, **options)


def class_context() -> Method:
    """The control: samples of different ranks do not attend to one another, so ranks agree."""
    torch.manual_seed(0)
    module = ModuleConfig(context="classes", attend="self", dropout=0.0)
    network = build_model("digits_net", 10)
    counts = torch.arange(10, 0, -1)
    made = build_method(
        "balanced_softmax", network=network, module=module, seed=0, class_counts=counts
    )
    return Wide(made).double()


class Wide(Method):
    """A method of float32 images in float64."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.seen: list[Tensor] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.seen.append(batch["index"])
        return self.method.step({**batch, "x": batch["x"].double()})

    def predict(self, x: Tensor) -> Tensor:
        return self.method.predict(x.double())


Made = tuple[Method, dict[str, Any], dict[str, Any]]
SYNC = {"sync_norm": True}
#: A method, options of its training and options of its feed, by name.
SCENARIOS: dict[str, Callable[[], Made]] = {
    "baseline": lambda: (Net(), SYNC, {}),
    "unused parameters": lambda: (Net(unused=True), SYNC, {}),
    "batchformer": lambda: (Net(mixed=True), SYNC, {}),
    "clipped and averaged": lambda: (Net(), {**SYNC, "clip_norm": 0.3, "ema": 0.9}, {}),
    "accumulated": lambda: (Net(mixed=True), {**SYNC, "accumulate": 2}, {"accumulate": 2}),
    "own update": lambda: (TwoOptimizers(), SYNC, {}),
    "domains": lambda: (Net(), SYNC, {"order": DomainSteps(DOMAIN, 3, 4, seed=3)}),
    "class context": lambda: (class_context(), SYNC, {}),
    "the best kept": lambda: (Net(), {**SYNC, "select_on": "test"}, {}),
}
#: Three ranks have unequal numbers of rows, the harder case; two have these.
ON_TWO_RANKS = ("baseline", "batchformer", "domains")


def trained(name: str, folder: Path) -> dict[str, Any]:
    """What a scenario gives on this rank."""
    method, options, how = SCENARIOS[name]()
    wrapped: list[bool] = []
    kept = Parallel.finish

    def finish(self: Parallel, step: Step, optimizer: Optimizer) -> None:
        wrapped.append(self._by_ddp)
        kept(self, step, optimizer)

    Parallel.finish = finish  # type: ignore[method-assign]
    feed = feed_of(**how)
    try:
        found = fit(method, feed, evaluate, plan(folder, **options))
    finally:
        Parallel.finish = kept  # type: ignore[method-assign]
    state = checkpoint.load_newest(folder / "checkpoints")
    return {
        "state": {k: v.clone() for k, v in method.state_dict().items()},
        "metrics": found.metrics,
        "seen": getattr(method, "seen", []),
        "wrapped": wrapped,
        "kept": None if state is None else state["method"],
        "average": None if state is None else state["average"],
        "window": (folder / "metrics.jsonl").exists(),
    }


def agreements(folder: Path) -> dict[str, Any]:
    """What ranks agree on, and how they fail together."""
    rank = dist.get_rank()
    found: dict[str, Any] = {"highest": max_over_ranks(rank * 10)}
    found["said"] = on_rank_zero(lambda: {"rank": rank, "list": [1.5, None]})
    with as_single_rank():
        found["alone"] = (world_size(), on_rank_zero(lambda: rank))

    def fails() -> None:
        raise ValueError("no such file")

    try:
        on_rank_zero(fails)
    except (ValueError, RankZeroFailed) as error:
        found["failed"] = (type(error).__name__, str(error))

    class Explodes(Net):
        def step(self, batch: Batch) -> dict[str, Tensor]:
            factor = float("nan") if rank == 1 else 1.0
            return {name: value * factor for name, value in super().step(batch).items()}

    try:
        fit(Explodes(), feed_of(), evaluate, plan(folder / "explodes"))
    except DivergedError as error:
        found["diverged"] = str(error)
    request = StopRequest()
    run = training(Net(), feed_of(), evaluate, plan(folder / "stopped"), request)
    for _ in range(5):
        next(run)
    if rank == 1:
        request.signal_number = 15
    try:
        next(run)
    except Interrupted as stop:
        found["stopped"] = str(stop)
    # It continues from the checkpoint that only rank 0 has on its disk.
    method = Net()
    fit(method, feed_of(), evaluate, plan(folder / "stopped"))
    found["went on"] = {k: v.clone() for k, v in method.state_dict().items()}
    method = Net()
    fit(method, feed_of(), evaluate, plan(folder / "whole"))
    found["whole"] = {k: v.clone() for k, v in method.state_dict().items()}
    # One process continues what several ranks began.
    often = plan(folder / "narrower", **SYNC, checkpoint_every=3)
    run = training(Net(), feed_of(), evaluate, often, StopRequest())
    for _ in range(5):
        next(run)
    run.close()
    if rank == 0:
        with as_single_rank():
            method = Net()
            fit(method, feed_of(), evaluate, often)
        found["narrower"] = {k: v.clone() for k, v in method.state_dict().items()}
    try:
        feed_of(Steps(Shuffle(len(SPLIT), seed=0), 29))
    except ValueError as error:
        found["too few"] = str(error)
    return found


# Collectives.

#: Rows of all ranks, of which the first ones have one more.
ROWS = 8
KINDS: dict[str, Any] = {
    "images": (lambda: nn.BatchNorm2d(3, dtype=torch.float64), (ROWS, 3, 4, 4)),
    "features": (lambda: nn.BatchNorm1d(3, momentum=None, dtype=torch.float64), (ROWS, 3)),
    "no weights": (lambda: nn.BatchNorm1d(3, affine=False, dtype=torch.float64), (ROWS, 3)),
    "no statistics": (
        lambda: nn.BatchNorm1d(3, track_running_stats=False, dtype=torch.float64),
        (ROWS, 3),
    ),
    "half": (lambda: nn.BatchNorm2d(3), (ROWS, 3, 4, 4)),
}


def rows_of(kind: str, step: int) -> tuple[Tensor, Tensor]:
    """All rows, and what their loss multiplies them by."""
    draw = torch.Generator().manual_seed(step)
    shape = KINDS[kind][1]
    x = 3 + 2 * torch.randn(shape, generator=draw, dtype=torch.float64)
    factors = torch.randn(shape, generator=draw, dtype=torch.float64)
    return (x.bfloat16(), factors.bfloat16()) if kind == "half" else (x, factors)


def normalised(kind: str, own: Tensor) -> dict[str, Any]:
    """Two steps, and one in eval, of the rows at these positions."""
    model = nn.Sequential(KINDS[kind][0]())
    if model[0].affine:
        next(model.parameters()).data += torch.arange(3)
    synchronise_norms(model, torch.device("cpu"))
    outputs = []
    for step in range(2):
        x, factors = rows_of(kind, step)
        x = x[own].requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "half"):
            made = model(x)
        # The loss of a rank counts as rows x ranks / all rows: here, of a mean over the rows.
        loss = (made * factors[own]).sum() * world_size() / ROWS
        loss.backward()
        assert x.grad is not None
        # That of a row is of the sum over ranks, which the mean of the parameters' undoes.
        outputs += [made.detach(), x.grad / world_size()]
    average_gradients(model.parameters())
    outputs.append(model.eval()(rows_of(kind, 9)[0][own]).detach())
    return {
        "rows": outputs,
        "gradients": [p.grad for p in model.parameters()],
        "state": model.state_dict(),
        "type": type(model[0]).__name__,
    }


def boxes(image: int) -> dict[str, Tensor]:
    """What is found in an image: as many boxes as its number modulo 3."""
    count = image % 3
    return {
        "boxes": torch.arange(count * 4.0).view(count, 4) + image,
        "labels": torch.full((count,), image),
        "scores": torch.full((count,), 0.5),
    }


def primitives() -> dict[str, Any]:
    """What the collectives of one of three ranks give."""
    rank = dist.get_rank()
    own = own_positions([ROWS])
    module = nn.Linear(2, 2)
    first, second = module.parameters()
    if rank == 1:
        first.grad = torch.full((2, 2), 3.0)
    spare = nn.Parameter(torch.zeros(1))
    average_gradients([first, second, spare])
    state = [
        torch.full((2, 3), float(rank), dtype=torch.float64).t(),
        torch.tensor(rank == 0),
        torch.tensor(7 + rank),
        torch.ones(1, 2, 2, 2).contiguous(memory_format=torch.channels_last) * rank,
        torch.full((3,), rank, dtype=torch.bfloat16),
    ]
    broadcast_state(state)
    images = {5: own_positions([5]).tolist(), 2: own_positions([2]).tolist() or [0]}
    return {
        "norms": {kind: normalised(kind, own) for kind in KINDS},
        "mean": mean_over_ranks(torch.tensor([float(rank), 1.0])),
        "averaged": [first.grad, second.grad, spare.grad],
        "state": state,
        "boxes": {n: of_all_ranks([boxes(i) for i in own], n) for n, own in images.items()},
    }


def feed_of(order: Order = SHUFFLED, **how: Any) -> Feed:
    return Feed(SPLIT, digits_train(), order, seed=3, **how)


def work(rank: int, ranks: int, folder: Path) -> None:
    """What one rank of a group does; only that of rank 0 is where the tests look."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    own = folder / f"{rank}of{ranks}"
    names = SCENARIOS if ranks == 3 else ON_TWO_RANKS
    found = {name: trained(name, own / name) for name in names}
    alike = primitives() if ranks == 3 else {}
    torch.save((found, agreements(own), alike), folder / f"{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def groups(
    run_ranks: Callable[[str, Path, int], None], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[Any]]:
    """What every rank of groups of two and of three got."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(__file__, folder, 3)
    return {
        ranks: [torch.load(folder / f"{rank}of{ranks}.pt") for rank in range(ranks)]
        for ranks in (2, 3)
    }


def close(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_ranks_train_as_one_process(
    name: str, groups: dict[int, list[Any]], tmp_path: Path
) -> None:
    one = trained(name, tmp_path)
    for ranks, by_rank in groups.items():
        if ranks == 2 and name not in ON_TWO_RANKS:
            continue
        for number, (scenarios, *_) in enumerate(by_rank):
            found = scenarios[name]
            close(found["state"], one["state"])
            assert found["metrics"] == one["metrics"]
            writes = found["window"], found["kept"] is not None
            assert writes == (number == 0, number == 0), "rank 0 writes"
        close(by_rank[0][0][name]["kept"], one["kept"])
        if one["average"] is not None:
            close(by_rank[0][0][name]["average"], one["average"])
        whole = [len(rows) for rows in one["seen"]]
        seen = [scenarios[name]["seen"] for scenarios, *_ in by_rank]
        for step, size in enumerate(whole):
            parts = [rows[step] for rows in seen]
            assert torch.equal(torch.cat(parts).sort().values, one["seen"][step].sort().values), (
                "the batch is sharded, no row twice"
            )
            assert max(map(len, parts)) - min(map(len, parts)) <= (1 if name != "domains" else 3)
            assert size == sum(map(len, parts))
        if name == "domains":
            per_rank = [DOMAIN[rows[0]].bincount().tolist() for rows in seen]
            expected = {2: [[2, 2, 2]] * 2, 3: [[2, 2, 2], [1, 1, 1], [1, 1, 1]]}
            assert per_rank == expected[ranks], "each rank has a part of every domain"


def test_one_process_goes_on_with_what_ranks_began(
    groups: dict[int, list[Any]], tmp_path: Path
) -> None:
    one = trained("baseline", tmp_path)
    for by_rank in groups.values():
        close(by_rank[0][1]["narrower"], one["state"])


def test_ddp_takes_over_after_the_first_update(groups: dict[int, list[Any]]) -> None:
    for scenarios, *_ in groups[3]:
        assert scenarios["baseline"]["wrapped"] == [False] + [True] * 5
        assert scenarios["accumulated"]["wrapped"] == [False] + [True] * 5
        assert not any(scenarios["own update"]["wrapped"])


def test_sharded_weights_are_for_one_optimizer() -> None:
    two = TwoOptimizers().optimizers(OptimConfig())
    with pytest.raises(ValueError, match=r"one optimizer, and this one has 2.*parallel ddp"):
        Parallel(two.values(), sharded=True)
    Parallel([two["main"]], sharded=True)


def test_ranks_agree_and_fail_together(groups: dict[int, list[Any]]) -> None:
    for ranks, by_rank in groups.items():
        for number, (_, found, _) in enumerate(by_rank):
            assert found["highest"] == 10 * (ranks - 1)
            assert found["said"] == {"rank": 0, "list": [1.5, None]}
            assert found["alone"] == (1, number)
            words = "no such file" if number == 0 else "ValueError: no such file"
            assert found["failed"] == ("RankZeroFailed" if number else "ValueError", words)
            assert "became nan at update 0" in found["diverged"]
            assert "stopped and saved at update 5" in found["stopped"]
            for name, value in found["whole"].items():
                # The sum of two has one order; that of three depends on how DDP has cut it.
                far = 0 if ranks == 2 else 1e-12
                torch.testing.assert_close(found["went on"][name], value, rtol=0, atol=far)
            assert "train.drop-last" in found["too few"] and "fewer ranks" in found["too few"]
        firsts = [found["whole"]["layers.1.running_mean"] for _, found, _ in by_rank]
        assert all(torch.equal(firsts[0], other) for other in firsts), "all score one network"


def test_norms_of_ranks_are_those_of_one_process(groups: dict[int, list[Any]]) -> None:
    found = [rank[2] for rank in groups[3]]
    for kind in KINDS:
        one = normalised(kind, torch.arange(ROWS))
        by_rank = [rank["norms"][kind] for rank in found]
        assert one["type"].startswith("BatchNorm") and by_rank[0]["type"] == "SyncNorm"
        far = 0.05 if kind == "half" else 1e-12
        for number, expected in enumerate(one["rows"]):
            got = torch.cat([rank["rows"][number] for rank in by_rank])
            torch.testing.assert_close(got, expected, rtol=far, atol=far, msg=f"{kind} {number}")
        for rank in by_rank:
            for got, expected in zip(rank["gradients"], one["gradients"], strict=True):
                torch.testing.assert_close(got, expected, rtol=far, atol=far, msg=kind)
            assert rank["state"].keys() == one["state"].keys()
            for name, expected in one["state"].items():
                near = 1e-2 if kind == "half" else 1e-12
                torch.testing.assert_close(rank["state"][name], expected, rtol=near, atol=near)


def test_means_state_and_boxes_are_the_same_on_all_ranks(groups: dict[int, list[Any]]) -> None:
    for *_, one in groups[3]:
        assert one["mean"].tolist() == [1.0, 1.0]
        first, second, spare = one["averaged"]
        assert first.tolist() == [[1.0, 1.0]] * 2 and second is None and spare is None
        zero, true, seven, images, half = one["state"]
        assert zero.tolist() == [[0.0, 0.0]] * 3 and bool(true) and int(seven) == 7
        assert images.sum() == 0 and half.tolist() == [0, 0, 0]
        for count, listed in one["boxes"].items():
            assert len(listed) == count
            for image, got in enumerate(listed):
                for name, value in boxes(image).items():
                    assert torch.equal(got[name], value), (count, image, name)


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    for group in (3, 2):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, Path(sys.argv[1]))
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
