"""Sums, means and state between ranks, normalisation by all of them, and boxes that all found.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from batchformer.lab.data.feeds.sharding import own_positions
from batchformer.lab.engine.distributed import gradients as in_step
from batchformer.lab.engine.distributed.sync_norm import SyncNorm, synchronise_norms
from batchformer.lab.tasks.detection import of_all_ranks
from batchformer.nn.exchange import world_size

RANKS = 3
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
    in_step.average_gradients(model.parameters())
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


def work(rank: int, folder: str) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    own = own_positions([ROWS])
    module = nn.Linear(2, 2)
    first, second = module.parameters()
    if rank == 1:
        first.grad = torch.full((2, 2), 3.0)
    spare = nn.Parameter(torch.zeros(1))
    in_step.average_gradients([first, second, spare])
    state = [
        torch.full((2, 3), float(rank), dtype=torch.float64).t(),
        torch.tensor(rank == 0),
        torch.tensor(7 + rank),
        torch.ones(1, 2, 2, 2).contiguous(memory_format=torch.channels_last) * rank,
        torch.full((3,), rank, dtype=torch.bfloat16),
    ]
    in_step.broadcast_state(state)
    images = {5: own_positions([5]).tolist(), 2: own_positions([2]).tolist() or [0]}
    found = {
        "norms": {kind: normalised(kind, own) for kind in KINDS},
        "mean": in_step.mean_over_ranks(torch.tensor([float(rank), 1.0])),
        "averaged": [first.grad, second.grad, spare.grad],
        "state": state,
        "boxes": {n: of_all_ranks([boxes(i) for i in own], n) for n, own in images.items()},
    }
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_three_ranks_are_in_step(
    run_ranks: Callable[[str, Path, int], None], tmp_path: Path
) -> None:
    """One test, since starting the ranks takes longer than all they do."""
    run_ranks(__file__, tmp_path, RANKS)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    assert_normalised_as_by_one_process(found)
    for one in found:
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


def assert_normalised_as_by_one_process(found: list[dict[str, Any]]) -> None:
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


def test_one_rank_needs_nobody() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    assert in_step.sum_over_ranks(x) is x and in_step.mean_over_ranks(x) is x
    in_step.broadcast_state([x])
    in_step.average_gradients([nn.Parameter(x.detach())])
    model = nn.Sequential(nn.BatchNorm1d(3))
    synchronise_norms(model, torch.device("cpu"))
    assert type(model[0]) is nn.BatchNorm1d
    norm = nn.BatchNorm1d(3)
    made = SyncNorm.of(norm)
    assert made.weight is norm.weight and made.running_mean is norm.running_mean
    torch.testing.assert_close(made(x), norm(x))


if __name__ == "__main__":
    work(int(sys.argv[2]), sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
