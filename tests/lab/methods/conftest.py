"""Small methods and batches, and a run that is stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import METHODS, MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.data.transforms import digits_train
from batchformer.lab.engine.cuda_graph import Captured, Eager
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation, Plan
from batchformer.lab.methods import build_method
from batchformer.lab.methods.training_images import Bank
from batchformer.lab.models.build import build_model
from batchformer.lab.models.ride import ride_resnet32
from batchformer.nn.randomness import drawing
from batchformer.torch_private import BatchNorm
from helpers.lab_runs import fit, quiet_plan, same, stop_after

COUNTS = torch.tensor([50, 20, 10, 5, 1])
#: Of lfme: two, two and one class.
CUTS = (20, 1)
#: Of cge and compcos: the classes of the batches are pairs that are trained on, 5 and 6 are not.
PAIRS = Compositions.of(
    train=[("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("c", "x")],
    val=[("c", "y")],
    test=[("c", "z")],
)
Make = Callable[..., Method]


def network_for(name: str, experts: int = 2) -> Any:
    if name.startswith("ride"):
        return ride_resnet32(5, experts, in_channels=1, widths=(4, 6, 8), depth=8)
    return build_model("digits_net", 5)


@pytest.fixture(scope="session")
def images() -> Bank:
    """The 86 training images of the five classes, and one of each for validation."""
    labels = torch.arange(5).repeat_interleave(COUNTS)
    x = torch.randn(86, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    val = Bank(torch.arange(5), 0, lambda: [(x[[3, 52, 71, 82, 85]], torch.arange(5))])
    return Bank(labels, 0, lambda: zip(x.split(40), labels.split(40), strict=True), val)


@pytest.fixture(scope="session")
def make(images: Bank) -> Make:
    """A method on a small network with five classes: its name, its settings, the module's.

    It is given the training images and teachers that it declares.
    """

    def made(
        name: str, hyper: dict[str, Any] | None = None, options: Any = None, **module: Any
    ) -> Method:
        entry, own, given = METHODS[name], dict(hyper or {}), {}
        if entry.bank:
            given["bank"] = images
        if entry.teacher_classes is not None:
            own = {"expert_cuts": CUTS, **own}
            classes = entry.teacher_classes(MethodConfig(**own), COUNTS.tolist())
            with drawing(7, "weights"):
                given["teacher"] = [build_model("digits_net", size) for size in classes]
        with drawing(0, "weights"):
            given |= {"network": network_for(name), "seed": 0}
        if "compositional" in entry.tasks:
            draw = torch.Generator().manual_seed(5)
            given |= {"compositions": PAIRS, "vectors": torch.randn(6, 7, generator=draw)}
        elif "contrastive" not in entry.tasks:
            given["class_counts"] = COUNTS
        settings = {"module": ModuleConfig(**module), "hyper": MethodConfig(**own)}
        return build_method(name, **settings, **{**given, **(options or {})})

    return made


@pytest.fixture(scope="session")
def update() -> Callable[..., dict[str, Tensor]]:
    """Updates of a method in training, with optimizers of its own; the losses of the last."""

    def updated(
        method: Method, batch: Any, optim: OptimConfig | None = None, times: int = 1, **train: Any
    ) -> dict[str, Tensor]:
        optimizers = method.train().optimizers(optim or OptimConfig())
        optimizer_step = OptimizerStep(TrainConfig(**train), torch.device("cpu"))
        for _ in range(times):
            losses = method.update(batch, optimizers, optimizer_step)
            method.after_update()
        return dict(losses)

    return updated


@pytest.fixture
def boxed() -> dict[str, Any]:
    """Rectangles of classes 0 and 2, and one of class 1 in a smaller image."""
    x = torch.full((2, 3, 64, 64), 100, dtype=torch.uint8)
    x[0, 0, 8:40, 4:36], x[0, 2, 20:60, 40:62], x[1, 1, 10:50, 20:48] = 255, 255, 255
    first = torch.tensor([[4.0, 8.0, 36.0, 40.0], [40.0, 20.0, 62.0, 60.0]])
    return {
        "x": [x[0], x[1, :, :60, :48]],
        "boxes": [first, torch.tensor([[20.0, 10.0, 48.0, 50.0]])],
        "labels": [torch.tensor([0, 2]), torch.tensor([1])],
        "y": torch.tensor([2, 1]),
        "index": torch.tensor([4, 2]),
        "row": torch.arange(2),
        "objects_per_image": 1.5,
    }


@pytest.fixture(scope="session")
def batch() -> dict[str, Tensor]:
    """Ten samples of five classes, a second view of them, ten to judge by, and ten of rare ones.

    The index is that of images of the same classes.
    """
    draw = torch.Generator().manual_seed(0)

    def images() -> Tensor:
        return torch.randn(10, 1, 8, 8, generator=draw)

    y = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 3, 4])
    meta = torch.arange(10) % 5
    own = {"x": images(), "y": y, "view2": images(), "meta_x": images(), "meta_y": meta}
    index = torch.tensor([0, 7, 13, 49, 50, 69, 70, 79, 80, 85])
    return {**own, "index": index, "paired_x": images(), "paired_y": 4 - y}


class Batches:
    """Fourteen images, two views, in batches of ten and four: an epoch is two updates."""

    per_epoch = 2

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        x = torch.randint(0, 256, (14, 1, 8, 8), generator=draw, dtype=torch.uint8)
        split = ImageSplit(x, torch.arange(14) % 5)
        order = Steps(Shuffle(14, seed=2), 10)
        self.feed = Feed(split, digits_train(), order, seed=2, second=digits_train())

    def batch(self, step: int) -> dict[str, Any]:
        got = self.feed.batch(step)
        seconds = {f"{name}_x": got["view2"] for name in ("meta", "paired")}
        labels = {f"{name}_y": got["y"] for name in ("meta", "paired")}
        return {**got, **seconds, **labels, "x_target": got["view2"]}


def _evaluate(method: Method, _: Any) -> Evaluation:
    x = torch.linspace(-1, 1, 3 * 64).view(3, 1, 8, 8)
    return Evaluation({"all": float(method.predict(x).double().sum())})


@pytest.fixture
def assert_resumes(tmp_path: Path) -> Callable[..., None]:
    """Eight updates at one go, and stopped after five and resumed, end in the same state."""

    def check(
        build: Callable[[], Method],
        batches: Any = None,
        evaluate: Any = _evaluate,
        optim: OptimConfig | None = None,
        **train: Any,
    ) -> None:
        def plan(folder: str) -> Plan:
            rates = optim or OptimConfig(lr=0.05), ScheduleConfig(kind="cosine")
            return quiet_plan(tmp_path / folder, *rates, batch_size=10, updates=8, **train)

        batches = batches or Batches()
        whole = build()
        expected = fit(whole, batches, evaluate, plan("whole"))
        stop_after(5, build(), batches, evaluate, plan("cut"))
        torch.manual_seed(999)
        resumed = build()
        got = fit(resumed, batches, evaluate, plan("cut"))
        assert got.metrics == expected.metrics
        assert same(resumed.state_dict(), whole.state_dict())

    return check


@pytest.fixture(scope="session")
def quiet() -> Callable[[Any], Any]:
    """Sets a method to training without dropout layers and with stored statistics."""

    def set_modes(method: Any) -> Any:
        for module in method.train().modules():
            if isinstance(module, (nn.Dropout, BatchNorm)):
                module.eval()
        return method

    return set_modes


@pytest.fixture(scope="session")
def assert_trained_once() -> Callable[[Method, dict[str, Tensor]], None]:
    """Every parameter that requires a gradient has one after a step and is in one group."""

    def check(method: Method, batch: dict[str, Tensor]) -> None:
        optimizers = method.optimizers(OptimConfig()).values()
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        wanted = {id(p) for p in method.parameters() if p.requires_grad}
        assert len(held) == len(wanted) and {id(p) for p in held} == wanted
        method.train()
        method.zero_grad()
        method.step(batch)["loss"].backward()
        for name, parameter in method.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None, name
            elif not name.startswith("sampler."):  # trained by the outer loss alone
                assert parameter.grad is not None and parameter.grad.isfinite().all(), name

    return check


@pytest.fixture(scope="session")
def assert_captured_equals_eager() -> Callable[..., tuple[Any, Any]]:
    """Twelve updates on a GPU, captured as CUDA graphs from the fourth on, equal eager ones.

    An epoch is four updates, so that all phases of a method are captured. Both methods are
    returned, the eager one first.
    """

    def check(
        build: Callable[[], Method], batch: Any, optim: OptimConfig, rel: float = 1e-3, **train: Any
    ) -> tuple[Any, Any]:
        device, methods, losses = torch.device("cuda"), [], []
        for kind in (Eager, Captured):
            method = build().to(device).train()
            method.begin_training(12)
            optimizers = method.optimizers(optim)
            optimizer_step = OptimizerStep(TrainConfig(**train), device)

            def work(
                batch: Any, m: Any = method, o: Any = optimizers, k: Any = optimizer_step
            ) -> Any:
                found = m.update(batch, o, k)
                m.after_update()
                return found

            more = (method.phase, pytest.fail) if kind is Captured else ()
            updater: Any = kind(work, device, *more)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            losses.append([])
            with torch.cuda.stream(stream):
                for step in range(12):
                    method.begin_epoch(step // 4)
                    on_device = {name: value.to(device) for name, value in batch(step).items()}
                    losses[-1].append(float(updater(on_device, seed=step)["loss"]))
            torch.cuda.synchronize()
            assert method.why_eager() is None and (kind is Eager or updater.graphs)
            methods.append(method)
        assert losses[1] == pytest.approx(losses[0], rel=rel, abs=1e-4)
        return methods[0], methods[1]

    return check
