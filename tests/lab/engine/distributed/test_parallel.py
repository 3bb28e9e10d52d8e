"""Several ranks train what one process trains: same samples, same gradients, same scores.

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
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import DomainSteps
from batchformer.lab.data.feeds.sharding import all_rows, scored_rows
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import digits_train
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.distributed.gradients import Parallel
from batchformer.lab.engine.distributed.rank_zero import (
    RankZeroFailed,
    max_over_ranks,
    on_rank_zero,
)
from batchformer.lab.engine.interrupt import Interrupted, StopRequest
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.engine.loop import Evaluation, Plan, fit, training
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep, Step
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.nn.exchange import as_single_rank
from batchformer.nn.exchange import world_size as all_ranks

CPU = torch.device("cpu")
#: Batches of 8 and, at the end of an epoch, of 6: on three ranks 3, 3, 2 and 2, 2, 2 rows.
IMAGES, BATCH = 30, 8
SPLIT = ImageSplit(
    torch.randint(
        0, 256, (IMAGES, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    ),
    torch.arange(IMAGES) % 10,
)
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
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: OptimizerStep
    ) -> dict[str, Tensor]:
        params = [*self.layers.parameters()]
        losses = mechanics.minimise(self.step, batch, optimizers["main"], params)
        weight = mechanics.parallel.weight(batch) if mechanics.parallel else 1.0
        loss = self.step(batch)["loss"] * weight
        for p, gradient in zip(
            self.head.parameters(),
            torch.autograd.grad(loss, [*self.head.parameters()]),
            strict=True,
        ):
            p.grad = gradient
        optimizers["head"].step()
        return losses


def evaluate(method: Method, mechanics: OptimizerStep) -> Evaluation:
    right = []
    for x, y in zip(
        torch.split(SPLIT.x, 7), torch.split(SPLIT.y, 7), strict=True
    ):  # the last has two images
        logits = all_rows(method.predict(x[scored_rows(len(x))] / 255), len(y))
        right.append(logits.argmax(1) == y)
    return Evaluation({"all": 100 * float(torch.cat(right).double().mean())})


def plan(folder: Path, **train: Any) -> Plan:
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "updates": 9,
        "eval_every": 3,
        "log_every": 4,
        **train,
    }
    return Plan(
        optim=OptimConfig(lr=0.1),
        schedule=ScheduleConfig(kind="cosine", warmup=2),
        train=TrainConfig(**options),
        seed=3,
        folder=folder,
        device=CPU,
        quiet=True,
    )


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
    "domains": lambda: (Net(), SYNC, {"steps": DomainSteps(DOMAIN, 3, 4, seed=3)}),
    "class context": lambda: (class_context(), SYNC, {}),
    "the best kept": lambda: (Net(), {**SYNC, "select_on": "test"}, {}),
}


def trained(name: str, folder: Path) -> dict[str, Any]:
    """What a scenario gives on this rank."""
    method, options, how = SCENARIOS[name]()
    wrapped: list[bool] = []
    kept = Parallel.finish

    def finish(self: Parallel, step: Step, optimizer: Optimizer) -> None:
        wrapped.append(self._by_ddp)
        kept(self, step, optimizer)

    Parallel.finish = finish  # type: ignore[method-assign]
    feed = Feed(SPLIT, digits_train(), BATCH, seed=3, **how)
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
        found["alone"] = (all_ranks(), on_rank_zero(lambda: rank))

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
    # It goes on to the end of one that was not stopped, from what rank 0 alone has on its disk.
    method = Net()
    fit(method, feed_of(), evaluate, plan(folder / "stopped"))
    found["went on"] = {k: v.clone() for k, v in method.state_dict().items()}
    method = Net()
    fit(method, feed_of(), evaluate, plan(folder / "whole"))
    found["whole"] = {k: v.clone() for k, v in method.state_dict().items()}
    # What several ranks began one goes on with.
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
        Feed(SPLIT, digits_train(), 29, seed=0)
    except ValueError as error:
        found["too few"] = str(error)
    return found


def feed_of() -> Feed:
    return Feed(SPLIT, digits_train(), BATCH, seed=3)


def work(rank: int, ranks: int, folder: Path) -> None:
    """What one rank of a group does; only that of rank 0 is where the tests look."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    own = folder / f"{rank}of{ranks}"
    found = {name: trained(name, own / name) for name in SCENARIOS}
    torch.save((found, agreements(own)), folder / f"{rank}of{ranks}.pt")
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
        for number, (scenarios, _) in enumerate(by_rank):
            found = scenarios[name]
            close(found["state"], one["state"])
            assert found["metrics"] == one["metrics"]
            assert found["window"] == (number == 0), "rank 0 writes"
        close(by_rank[0][0][name]["kept"], one["kept"])
        if one["average"] is not None:
            close(by_rank[0][0][name]["average"], one["average"])
        whole = [len(rows) for rows in one["seen"]]
        seen = [scenarios[name]["seen"] for scenarios, _ in by_rank]
        for step, size in enumerate(whole):
            parts = [rows[step] for rows in seen]
            assert torch.equal(torch.cat(parts).sort().values, one["seen"][step].sort().values), (
                "the batch is dealt out, nothing twice"
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
    for by_rank in groups.values():
        for scenarios, _ in by_rank:
            assert scenarios["baseline"]["wrapped"] == [False] + [True] * 8
            assert scenarios["accumulated"]["wrapped"] == [False] + [True] * 8
            assert not any(scenarios["own update"]["wrapped"])


def test_dealt_weights_are_for_one_optimizer() -> None:
    two = TwoOptimizers().optimizers(OptimConfig())
    with pytest.raises(ValueError, match=r"one optimizer, and this one has 2.*parallel ddp"):
        Parallel(two.values(), sharded=True)
    Parallel([two["main"]], sharded=True)


def test_ranks_agree_and_fail_together(groups: dict[int, list[Any]]) -> None:
    for ranks, by_rank in groups.items():
        for number, (_, found) in enumerate(by_rank):
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
        firsts = [found["whole"]["layers.1.running_mean"] for _, found in by_rank]
        assert all(torch.equal(firsts[0], other) for other in firsts), "all score one network"


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    for group in (3, 2):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, Path(sys.argv[1]))
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
