"""FSDP2: parameters, gradients and moments dealt out to ranks, for networks that fit nowhere whole.

Checkpoints hold whole, plain tensors all the same: they are put together when saved and dealt out
when loaded, so that one written by any number of ranks is read by any other, and by ``export``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import TrainConfig, require
from batchformer.lab.engine.method import Method
from batchformer.nn.exchange import world_size

#: Parameters from which a block is gathered by itself, and not with what is around it.
LEAST_PARAMETERS = 100_000


def shard(method: Method, train: TrainConfig) -> None:
    """Deal the parameters of a method out to all ranks; its blocks first, then all that is left.

    The method itself is the root, since its step and its predictions are what uses the network:
    both gather what they need, whatever part of the network they call.

    Args:
        method: on its device.
        train: refused where it asks for copies of the weights.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    own_moves = type(method).after_update is not Method.after_update
    require(
        not own_moves,
        "train.parallel fsdp is for methods whose weights the optimizer alone moves, and "
        f"{type(method).__name__} moves some itself; set train.parallel ddp",
    )
    require(not train.ema, "train.ema keeps a copy of all weights; set train.parallel ddp")
    device = next(method.parameters()).device.type
    require(
        device != "cpu" or on_the_cpu(),
        "the FSDP of this torch needs GPUs; set train.parallel ddp, or install a newer torch",
    )
    mesh = init_device_mesh(device, (world_size(),))
    for block in blocks(method, LEAST_PARAMETERS):
        fully_shard(block, mesh=mesh)
    fully_shard(method, mesh=mesh)
    for name in ("step", "predict"):
        register_fsdp_forward_method(method, name)


def on_the_cpu() -> bool:
    """Whether torch's FSDP knows how to do without GPUs; that of 2.6 does not."""
    import torch

    return hasattr(torch.cpu.Stream, "record_event")


def blocks(method: nn.Module, least: int) -> Iterator[nn.Module]:
    """The repeated parts of a network: what stands in its sequences and lists, the outermost."""
    network = getattr(method, "network", None)
    waiting = [network] if isinstance(network, nn.Module) else []
    while waiting:
        module = waiting.pop()
        inside = isinstance(module, (nn.Sequential, nn.ModuleList))
        for child in module.children():
            size = sum(p.numel() for p in child.parameters() if p.requires_grad)
            holds = isinstance(child, (nn.Sequential, nn.ModuleList))
            if inside and not holds and size >= least:
                yield child
            else:
                waiting.append(child)


def is_sharded(model: nn.Module) -> bool:
    """Whether the parameters of a model are dealt out, though it may have gathered them for now."""
    return hasattr(model, "unshard") and hasattr(model, "reshard")


def is_dealt(tensor: object) -> bool:
    """Whether a tensor is dealt out to ranks."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "device_mesh")


def whole(state: Any) -> Any:
    """A nest of values with every dealt tensor put together, on the CPU; every rank calls it."""
    if is_dealt(state):
        return state.full_tensor().cpu()
    if isinstance(state, Mapping):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole(value) for value in state)
    return state


def dealt(value: Any, like: Any) -> Any:
    """A whole tensor as another one is dealt out; anything else as it is."""
    if not is_dealt(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def dealt_state(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """A whole state dict as a model has its own."""
    own = model.state_dict()
    return {name: dealt(value, own.get(name)) for name, value in state.items()}


def dealt_moments(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A whole state of an optimizer as its parameters are dealt out."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        number: {name: dealt(value, parameters[number]) for name, value in kept.items()}
        for number, kept in state["state"].items()
    }
    return {**state, "state": moments}


def plain_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers that every rank has whole."""
    if not is_sharded(model):
        yield from (parameter.detach() for parameter in model.parameters())
    yield from model.buffers()
