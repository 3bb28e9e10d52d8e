"""One optimizer step against the plain computation, and the defaults of a method."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from batchformer import BatchFormer
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep

CPU = torch.device("cpu")


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def update(config: TrainConfig, rows: int = 12, lr: float = 1.0) -> tuple[nn.Linear, float]:
    model = linear()
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(1))
    y = torch.arange(rows) % 3

    def step(batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(model(batch["x"]), batch["y"])}

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = OptimizerStep(config, CPU).minimise(
        step, {"x": x, "y": y, "note": "kept"}, optimizer, model.parameters()
    )
    return model, float(losses["loss"])


@settings(max_examples=20)
@given(rows=st.integers(2, 20), parts=st.integers(1, 6))
def test_accumulation_gives_the_same_update_whatever_the_parts(rows: int, parts: int) -> None:
    whole, loss = update(TrainConfig(batch_size=20), rows)
    cut, same = update(TrainConfig(batch_size=20, accumulate=parts), rows)
    torch.testing.assert_close(cut.weight, whole.weight, atol=1e-5, rtol=1e-5)
    assert same == pytest.approx(loss, rel=1e-5)


def test_clipping_limits_the_step() -> None:
    before = linear()
    clipped, _ = update(TrainConfig(clip_norm=0.01))
    pairs = zip(before.parameters(), clipped.parameters(), strict=True)
    change = torch.stack([(a - b).square().sum() for a, b in pairs]).sum()
    assert float(change.detach()) ** 0.5 == pytest.approx(0.01, rel=1e-3)


def test_the_loss_multiplier_scales_the_gradient_but_not_the_record() -> None:
    before, (plain, loss), (scaled, same) = (
        linear(),
        update(TrainConfig()),
        update(TrainConfig(loss_multiplier=3.0)),
    )
    torch.testing.assert_close(scaled.weight - before.weight, 3 * (plain.weight - before.weight))
    assert same == loss


def test_bf16_computes_in_bf16() -> None:
    optimizer_step = OptimizerStep(TrainConfig(precision="bf16"), CPU)
    with optimizer_step.autocast():
        assert linear()(torch.randn(2, 5)).dtype == torch.bfloat16
    exact, rounded = update(TrainConfig())[0], update(TrainConfig(precision="bf16"))[0]
    assert not torch.equal(exact.weight, rounded.weight)
    torch.testing.assert_close(exact.weight, rounded.weight, atol=0.02, rtol=0.02)


# The defaults of the contract.


class Small(Method):
    module_lr_factor = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.encoder = nn.Linear(4, 4), BatchFormer(4)


def test_every_parameter_is_in_one_group_with_its_rate() -> None:
    method = Small()
    optimizer = method.optimizers(OptimConfig(lr=0.5))["main"]
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in method.parameters())
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.05])


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"Method does not implement step"):
        Method().step({})
    with pytest.raises(NotImplementedError, match=r"Small does not implement predict"):
        Small().predict(torch.zeros(1))
