"""Double precision: weights, images and predictions, and what tasks have stays as it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.engine import checkpoint
from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.engine.fit import Evaluation, Plan, fit
from batchformer.engine.mechanics import Batch, Mechanics
from batchformer.engine.method import Method
from batchformer.engine.precision import in_double, predicting_in_double

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


def evaluate(method: Method, mechanics: Mechanics) -> Evaluation:
    logits = method.predict(IMAGES)
    assert logits.dtype == torch.float64
    return Evaluation({"sum": float(logits.sum())})


def test_a_training_in_double_precision(tmp_path: Path) -> None:
    train = TrainConfig(updates=5, precision="fp64", batch_size=4)
    plan = Plan(
        OptimConfig(), ScheduleConfig(), train, 0, tmp_path, torch.device("cpu"), quiet=True
    )
    torch.manual_seed(0)
    net = Net()
    by_hand = Net()
    by_hand.load_state_dict(net.state_dict())
    fit(net, Batches(), evaluate, plan)
    found = checkpoint.load_newest(tmp_path / "checkpoints")
    assert found is not None
    assert all(value.dtype == torch.float64 for value in found["method"].values())
    assert "predict" not in vars(net)
    single = dataclasses.replace(plan, folder=tmp_path / "single")
    single = dataclasses.replace(single, train=dataclasses.replace(train, precision="fp32"))
    fit(by_hand, Batches(), lambda *_: Evaluation({"a": 0.0}), single)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(value.double(), found["method"][name], rtol=0, atol=1e-5)
        assert not torch.equal(value.double(), found["method"][name]), "more digits"


def test_what_has_a_prediction_of_its_own_keeps_it() -> None:
    net = Net().double()
    own = net.predict
    net.__dict__["predict"] = own
    with predicting_in_double(net):
        assert net.predict(IMAGES).dtype == torch.float64
    assert net.__dict__["predict"] is own
    assert [x.dtype for x in in_double([IMAGES])] == [torch.float64] and in_double("a") == "a"
