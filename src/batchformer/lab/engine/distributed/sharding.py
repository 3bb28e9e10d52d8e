"""FSDP2: parameters, gradients and optimizer moments sharded over ranks.

Checkpoints hold full, plain tensors: they are gathered when saved and sharded when loaded. So a
checkpoint of any number of ranks can be read by any other number, and by ``export``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import TrainConfig, require
from batchformer.lab.engine.distributed.rank_zero import max_over_ranks
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optim import parameters_of
from batchformer.nn.exchange import world_size
from batchformer.plug.insertion import is_sharded

#: Smaller blocks are not gathered by themselves, but with the module around them.
MIN_BLOCK_PARAMETERS = 100_000


def shard(method: Method, train: TrainConfig) -> None:
    """Shard the parameters of a method over all ranks: first its blocks, then the rest.

    The method is the root, because its ``step`` and ``predict`` use the network: both gather the
    parameters they need, whichever part of the network they call.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    require(
        type(method).after_update is Method.after_update,
        "train.parallel fsdp is for methods whose weights the optimizer alone moves, and "
        f"{type(method).__name__} moves some itself; set train.parallel ddp",
    )
    require(not train.ema, "train.ema keeps a copy of all weights; set train.parallel ddp")
    device = next(method.parameters()).device.type
    require(
        device != "cpu" or fsdp_runs_on_cpu(),
        "the FSDP of this torch needs GPUs; set train.parallel ddp, or install a newer torch",
    )
    mesh = init_device_mesh(device, (world_size(),))
    for block in blocks(method, MIN_BLOCK_PARAMETERS):
        fully_shard(block, mesh=mesh)
    fully_shard(method, mesh=mesh)
    for name in ("step", "predict"):
        register_fsdp_forward_method(method, name)


def fsdp_runs_on_cpu() -> bool:
    """Whether torch's FSDP works without GPUs; that of torch 2.6 does not."""
    return hasattr(torch.cpu.Stream, "record_event")


def blocks(method: nn.Module, least: int) -> Iterator[nn.Module]:
    """Outermost members of the network's sequences and lists with at least `least` parameters."""
    network = getattr(method, "network", None)
    waiting = [network] if isinstance(network, nn.Module) else []
    containers = (nn.Sequential, nn.ModuleList)
    while waiting:
        module = waiting.pop()
        for child in module.children():
            size = sum(p.numel() for p in child.parameters() if p.requires_grad)
            is_member = isinstance(module, containers) and not isinstance(child, containers)
            if is_member and size >= least:
                yield child
            else:
                waiting.append(child)


def full_tensors(state: Any) -> Any:
    """A nested state with every sharded tensor gathered, on the CPU; every rank calls it."""
    if _is_sharded_tensor(state):
        return state.full_tensor().cpu()
    if isinstance(state, Mapping):
        return {key: full_tensors(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(full_tensors(value) for value in state)
    return state


def weights_are_finite(model: nn.Module) -> bool:
    """Whether no parameter is NaN or infinite on any rank; every rank calls it."""
    parameters: Iterator[Any] = model.parameters()
    local = (p.to_local() if _is_sharded_tensor(p) else p for p in parameters)
    return not max_over_ranks(int(not all(bool(part.isfinite().all()) for part in local)))


def sharded_state(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict of full tensors, sharded like the model's own."""
    own = model.state_dict()
    return {name: _shard_like(value, own.get(name)) for name, value in state.items()}


def sharded_moments(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer state of full tensors, sharded like the optimizer's parameters."""
    parameters = parameters_of(optimizer)
    moments = {
        number: {name: _shard_like(value, parameters[number]) for name, value in kept.items()}
        for number, kept in state["state"].items()
    }
    return {**state, "state": moments}


def replicated_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of which every rank has a full copy."""
    if not is_sharded(model):
        yield from (parameter.detach() for parameter in model.parameters())
    yield from model.buffers()


def _is_sharded_tensor(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and hasattr(tensor, "device_mesh")


def _shard_like(value: Any, like: Any) -> Any:
    """A full tensor sharded like another of its shape; other values unchanged."""
    if not _is_sharded_tensor(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
