"""TF32 where it is asked for and nowhere else; double precision in weights and predictions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.log import read_records
from batchformer.lab.engine.loop import Job, train_interleaved, training
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import (
    Batch,
    OptimizerStep,
    matmul_precision,
    predict_in_double,
    to_double,
)
from batchformer.lab.engine.state import Evaluation, Plan
from helpers.lab_runs import fit, quiet_plan

IMAGES = torch.linspace(0, 1, 12).view(4, 3)


class Net(Method):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.layer(batch["x"]), batch["y"])}

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits


class Batches:
    per_epoch = 2

    def batch(self, step: int) -> dict[str, Tensor]:
        return {"x": IMAGES + step, "y": torch.tensor([0, 1, 0, 1])}


def evaluate(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
    logits = method.predict(IMAGES)
    assert logits.dtype == torch.float64
    return Evaluation({"sum": float(logits.sum())})


Precision = Literal["fp32", "tf32", "bf16", "fp64"]


def plan(folder: Path, precision: Precision, device: str = "cpu", **train: Any) -> Plan:
    options = {"precision": precision, "batch_size": 4, "updates": 4, **train}
    optim = OptimConfig(weight_decay=0.0)
    return quiet_plan(folder, optim, ScheduleConfig(), 0, device, **options)


def test_a_training_in_double_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    by_hand = Net()
    by_hand.load_state_dict(net.state_dict())
    fit(net, Batches(), evaluate, plan(tmp_path, "fp64", updates=5))
    found = checkpoint.load_newest(tmp_path / "checkpoints")
    assert found is not None
    assert all(value.dtype == torch.float64 for value in found["method"].values())
    assert "predict" not in vars(net)
    single = plan(tmp_path / "single", "fp32", updates=5)
    fit(by_hand, Batches(), lambda *_: Evaluation({"a": 0.0}), single)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(value.double(), found["method"][name], rtol=0, atol=1e-5)
        assert not torch.equal(value.double(), found["method"][name]), "more digits"


def test_what_has_a_prediction_of_its_own_keeps_it() -> None:
    net = Net().double()
    own = net.predict
    net.__dict__["predict"] = own
    with predict_in_double(net):
        assert net.predict(IMAGES).dtype == torch.float64
    assert net.__dict__["predict"] is own
    assert [x.dtype for x in to_double([IMAGES])] == [torch.float64] and to_double("a") == "a"


def switches() -> tuple[bool, bool]:
    """Whether matrix products, and convolutions, may use TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(params=[(False, True), (True, False)], ids=["torch's default", "turned round"])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """The switches as somebody else left them; a training puts them back."""
    found = switches()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = found


class Watching(Net):
    """Notes the switches in updates and in predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.seen.append(switches())
        return super().step(batch)

    def predict(self, x: Tensor) -> Tensor:
        self.seen.append(switches())
        return super().predict(x)


def scored(method: Method, _: OptimizerStep) -> Evaluation:
    return Evaluation({"sum": float(method.predict(IMAGES).sum())})


def test_products_and_convolutions_use_tf32_where_it_is_asked_for(
    tmp_path: Path, before: tuple[bool, bool]
) -> None:
    """Also in runs side by side, each as its own settings say; and all is left as it was found."""
    kinds: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
    nets = {kind: Watching() for kind in kinds}

    def job(kind: Precision) -> Job:
        where = plan(tmp_path / kind, kind)
        return Job(
            kind, lambda request: training(nets[kind], Batches(), scored, where, request, False)
        )

    for _ in train_interleaved([job(kind) for kind in kinds], torch.device("cpu")):
        assert switches() == before
    assert switches() == before
    for kind, net in nets.items():
        assert len(net.seen) == 5 and set(net.seen) == {(kind == "tf32", kind == "tf32")}


def test_the_switches_are_put_back_after_an_error(before: tuple[bool, bool]) -> None:
    with pytest.raises(KeyError), matmul_precision("tf32"):
        assert switches() == (True, True)
        raise KeyError
    assert switches() == before


class Convolved(Method):
    """Notes how far its convolution and its matrix product are from the exact ones.

    Its loss is zero, so that no update moves its weights.
    """

    def __init__(self, exact: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(64, 64, 3, bias=False)
        self.fc = nn.Linear(64 * 16 * 16, 64, bias=False)
        self.exact = exact

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.conv(x)
        return maps, self.fc(maps.flatten(1))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        made = self(batch["x"])
        assert self.exact is not None
        loss = sum(0 * own.mean() for own in made)
        off = (
            (own.detach() - exact).abs().max() / exact.abs().max()
            for own, exact in zip(made, self.exact, strict=True)
        )
        return {"loss": loss, **dict(zip(("convolution", "product"), off, strict=True))}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
def test_fp32_is_fp32_on_a_gpu_and_tf32_is_not(tmp_path: Path, capture: bool) -> None:
    """Against double precision on the CPU: fp32 has 24 bits, TF32 has 11."""
    x = torch.randn(32, 64, 18, 18, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        maps, logits = Convolved().double()(x.double())
    exact = maps.float().cuda(), logits.float().cuda()
    batch = {"x": x.cuda(), "y": torch.zeros(32, dtype=torch.int64, device="cuda")}

    class Fixed:
        per_epoch = 2

        def batch(self, step: int) -> dict[str, Tensor]:
            return dict(batch)

    def compared(method: Method, _: OptimizerStep) -> Evaluation:
        own = method.step(batch)
        return Evaluation({name: float(own[name]) for name in ("convolution", "product")})

    for kind in ("fp32", "tf32"):
        where = plan(tmp_path / kind, kind, "cuda", updates=8, capture=capture, log_every=1)
        fit(Convolved(exact), Fixed(), compared, where)
        records = read_records(tmp_path / kind / "metrics.jsonl")
        off = [record[name] for record in records for name in ("convolution", "product")]
        assert len(off) == 2 * 9, "eight updates and an evaluation"
        assert max(off) < 2e-5 if kind == "fp32" else min(off) > 5e-5
