"""Rows find their domain, and what compares domains refuses batches without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.domains import by_domain

NAMES = ["coral", "irm", "vrex", "mixstyle"]
HYPER = {"mixstyle_after": ("layer1",)}


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_marked_rows(streams: int, groups: int) -> None:
    n = 4
    marks = torch.tensor(
        [[s, g, i] for s in range(streams) for g in range(groups) for i in range(n)]
    )
    grouped = by_domain(marks, groups, streams)
    assert grouped.shape == (groups, streams * n, 3)
    for g in range(groups):
        expected = [[s, g, i] for s in range(streams) for i in range(n)]
        assert grouped[g].tolist() == expected
    assert torch.equal(by_domain(marks[:, 2], groups, streams), grouped[..., 2])


def test_gradients_return_to_their_rows() -> None:
    rows = torch.zeros(12, 2, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
    (by_domain(rows, 3, 2) * weights).sum().backward()
    expected = torch.tensor([1.0, 1, 10, 10, 100, 100] * 2).unsqueeze(1).expand(12, 2)
    assert rows.grad is not None and torch.equal(rows.grad, expected)


@pytest.mark.parametrize(("rows", "groups", "streams"), [(10, 3, 1), (20, 3, 2), (0, 2, 1)])
def test_unequal_blocks_are_refused(rows: int, groups: int, streams: int) -> None:
    with pytest.raises(ValueError, match=f"{rows // streams} rows is not {groups} equal blocks"):
        by_domain(torch.zeros(rows, 4), groups, streams)


@pytest.mark.parametrize("name", NAMES)
def test_batches_without_blocks_are_refused(make: Any, batch: Any, name: str) -> None:
    with pytest.raises(ValueError, match=r"data\.sampler domains"):
        make(name, HYPER)
    with pytest.raises(ValueError, match=r"equal blocks.*data\.sampler domains"):
        make(name, HYPER, {"groups": 3}).step(batch)


@pytest.mark.parametrize("name", NAMES)
def test_accumulation_would_part_the_domains(make: Any, batch: Any, name: str) -> None:
    method = make(name, HYPER, {"groups": 2})
    mechanics = OptimizerStep(TrainConfig(batch_size=10, accumulate=2), torch.device("cpu"))
    with pytest.raises(ValueError, match=r"train\.accumulate 1"):
        method.update(batch, method.optimizers(OptimConfig()), mechanics)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(make: Any, batch: Any, name: str) -> None:
    method = make(name, HYPER, {"groups": 2})
    mechanics = OptimizerStep(TrainConfig(batch_size=10, precision="bf16"), torch.device("cpu"))
    losses = method.update(batch, method.optimizers(OptimConfig()), mechanics)
    assert all(v.isfinite() and v.dtype == torch.float32 for v in losses.values())
    assert all(p.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("module", [{}, {"enabled": False}, {"streams": "mixed_only"}], ids=str)
def test_trained_once(
    make: Any, batch: Any, name: str, module: Any, assert_trained_once: Any
) -> None:
    assert_trained_once(make(name, HYPER, {"groups": 2}, **module), batch)


@pytest.mark.parametrize("name", NAMES)
def test_prediction_is_the_plain_network(make: Any, batch: Any, name: str) -> None:
    method = make(name, {**HYPER, "feature_dropout": 0.5}, {"groups": 2}).eval()
    plain = make("cross_entropy", enabled=False).eval()
    assert torch.equal(method.predict(batch["x"]), plain.predict(batch["x"]))
