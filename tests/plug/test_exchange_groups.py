"""Attention over the samples of a process group: two ways to split data, two to split tensors.

Run as a script, this file is one of four ranks: it saves what it got, and the test looks at it.
"""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

from batchformer import attach, stream_loss

#: Samples of each part of the data. Ranks 0 and 1 hold the first part, ranks 2 and 3 the second.
SIZES = (3, 5)


def model_of(exchange: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    return attach(model, dropout=0.5, exchange=exchange, verbose=False)


def data_of(*parts: int) -> tuple[Tensor, Tensor]:
    x = [torch.randn(SIZES[part], 6, generator=_seeded(part)) for part in parts]
    y = [torch.randint(4, (SIZES[part],), generator=_seeded(part)) for part in parts]
    return torch.cat(x), torch.cat(y)


def _seeded(part: int) -> torch.Generator:
    return torch.Generator().manual_seed(part)


def trained(model: nn.Module, exchange: Any, *parts: int) -> dict[str, Any]:
    """Outputs and gradients of one step, with the dropout of one seed."""
    x, y = data_of(*parts)
    torch.manual_seed(1)
    out = model(x)
    loss = stream_loss(F.cross_entropy, out, y, exchange=exchange)
    loss.backward()
    return {
        "out": out.detach().as_subclass(Tensor),
        "loss": loss.detach(),
        "gradients": [parameter.grad for parameter in model.parameters()],
    }


def work(rank: int, folder: str) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=4)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    found = {}
    for kind, exchange in (("group", mesh["data"].get_group()), ("mesh", mesh["data"])):
        model = copy.deepcopy(model_of(exchange))  # as an average of weights does
        found[kind] = trained(model, exchange, rank // 2)
        for gradient in found[kind]["gradients"]:
            dist.all_reduce(gradient, group=mesh["data"].get_group())
            gradient /= 2
    try:
        pickle.dumps(model)
    except TypeError as error:
        found["error"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_samples_attend_within_a_group(
    run_ranks: Callable[[str, Path, int], None], tmp_path: Path
) -> None:
    run_ranks(__file__, tmp_path, 4)
    # One process with the samples of both parts, each once.
    whole = trained(model_of(True), True, 0, 1)
    plain, mixed = whole["out"].chunk(2)
    for rank in range(4):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        own = slice(0, 3) if rank < 2 else slice(3, 8)
        for kind in ("group", "mesh"):
            got = found[kind]
            torch.testing.assert_close(got["out"], torch.cat((plain[own], mixed[own])))
            for a, b in zip(got["gradients"], whole["gradients"], strict=True):
                torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
        assert "Save its state_dict()" in found["error"]
    losses = [torch.load(tmp_path / f"{r}.pt", weights_only=True)["group"]["loss"] for r in (0, 2)]
    torch.testing.assert_close(sum(losses) / 2, whole["loss"])


def test_without_ranks_a_module_that_exchanges_is_copied_and_pickled() -> None:
    x = torch.randn(5, 8)
    module = model_of(True)[1].batchformer.eval()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.exchange and torch.equal(twin(x), module(x))


if __name__ == "__main__":
    work(int(sys.argv[2]), sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
