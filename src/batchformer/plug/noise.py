"""Fix all that could move rows, except attention: dropout, batch statistics, random numbers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from batchformer.nn.module import BatchFormer, parameter_ids, without_exchange
from batchformer.plug.example import Batch
from batchformer.plug.preserve import preserve_state, seed_all
from batchformer.torch_private import BUFFERS, COMPILED_CALL, BatchNorm, Dropout

#: The buffer by which torch's fake quantization says that each batch changes its range.
OBSERVES = "observer_enabled"


@contextmanager
def without_noise(model: nn.Module, batch: Batch) -> Iterator[None]:
    """Keep the model's modes, but fix everything except attention that could move rows.

    Dropout and stochastic depth are off, unless they drop everything: that is no noise. BatchNorm
    in training normalises by the statistics of one training pass over the unchanged batch, and fake
    quantization keeps the range that it has after that pass. The caller restores buffers and modes
    (:func:`~batchformer.plug.preserve.preserve_state`); the rest is restored here.
    """
    with ExitStack() as undo:
        undo.enter_context(NoDropout())
        for module in model.modules():
            if drops_everything(module):
                continue
            if _is_dropout(module):
                module.training = False
            elif isinstance(module, (BatchFormer, nn.MultiheadAttention)):
                undo.callback(setattr, module, "dropout", module.dropout)
                module.dropout = 0.0
        norms = [m for m in model.modules() if _has_statistics(m) and m.training]
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        for norm in norms:
            # A synchronised norm waits for other ranks, and a scripted one has a fixed momentum.
            if isinstance(norm, (nn.SyncBatchNorm, torch.jit.ScriptModule)):
                norm.training = False
            else:
                undo.callback(_with_statistics(norm, device))
        observers = [m for m in model.modules() if OBSERVES in getattr(m, BUFFERS)]
        if observers or any(norm.training for norm in norms):
            seed_all(model, 0)
            with torch.no_grad():
                batch.run(model)
        for norm in norms:
            norm.training = False
        for observer in observers:
            observer.get_buffer(OBSERVES).zero_()
        yield


def _is_dropout(module: nn.Module) -> bool:
    named = type(module).__name__.endswith(("DropPath", "StochasticDepth"))
    return named or isinstance(module, Dropout)


def drops_everything(module: nn.Module) -> bool:
    """Whether this is dropout with probability 1, alone or as a part of attention.

    A subclass of torch's dropout may do something else with that probability, as MixStyle does.
    """
    if isinstance(module, (BatchFormer, nn.MultiheadAttention)):
        return module.dropout >= 1.0
    if isinstance(module, Dropout) and type(module).__module__ != Dropout.__module__:
        return False
    rate = getattr(module, "drop_prob", getattr(module, "p", 0.0)) if _is_dropout(module) else 0.0
    return isinstance(rate, (int, float)) and rate >= 1.0


class NoDropout(TorchFunctionMode):
    """Switch off dropout that a model calls as a function, also in attention, and random slopes.

    Dropout with probability 1 stays: it returns zeros.
    """

    FUNCTIONS = (
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
        *(F.alpha_dropout, F.feature_alpha_dropout),
        *(torch.dropout, torch.alpha_dropout, torch.feature_dropout),
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.FUNCTIONS:
            return _dropout(*args, **kwargs)
        if func in (F.rrelu, torch.rrelu):  # it draws slopes for negative entries only
            x = args[0] if args else kwargs["input"]
            lower = args[1] if len(args) > 1 else kwargs.get("lower", 1 / 8)
            upper = args[2] if len(args) > 2 else kwargs.get("upper", 1 / 3)
            return F.leaky_relu(x, (lower + upper) / 2)
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], float(args[4] >= 1.0), *args[5:])
            else:
                kwargs["dropout_p"] = float(kwargs.get("dropout_p", 0.0) >= 1.0)
        return func(*args, **kwargs)


def _dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool = True,
) -> Tensor:
    """Dropout without noise: all or nothing. ``torch.dropout`` calls its argument ``train``."""
    return input * 0.0 if p >= 1.0 and training and train else input


def _has_statistics(module: nn.Module) -> bool:
    buffers = getattr(module, BUFFERS)
    return isinstance(module, BatchNorm) or {"running_mean", "running_var"} <= {*buffers.keys()}


def _with_statistics(norm: Any, device: torch.device) -> Any:
    """Let a norm take over the statistics of the next batch; returns what undoes it."""
    names = ("momentum", "track_running_stats")
    kept = {name: getattr(norm, name) for name in names if hasattr(norm, name)}
    bare = isinstance(norm, BatchNorm) and norm.running_mean is None
    if bare:
        norm.running_mean = torch.zeros(norm.num_features, device=device)
        norm.running_var = torch.ones(norm.num_features, device=device)
        norm.track_running_stats = True
    if "momentum" in kept:
        norm.momentum = 1.0

    def undo() -> None:
        for name, value in kept.items():
            setattr(norm, name, value)
        if bare:
            norm.running_mean = norm.running_var = None

    return undo


def fixed_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Normal numbers in the shape of a tensor, by default the same in every call.

    They are drawn on the CPU, so they do not depend on the device.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    return torch.randn(like.shape, generator=generator, device="cpu").to(like)


@contextmanager
def isolated(model: nn.Module) -> Iterator[None]:
    """Within the block, passes record gradients, compile nothing and wait for no other rank.

    The model is restored at the end.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        preserve_state(model),
        _not_compiled(model),
        without_exchange(model),
    ):
        yield


@contextmanager
def _not_compiled(model: nn.Module) -> Iterator[None]:
    """Within the block, modules run without ``.compile()``, which would compile every pass."""
    calls = [(module, getattr(module, COMPILED_CALL)) for module in model.modules()]
    compiled = [(module, call) for module, call in calls if call is not None]
    try:
        for module, _ in compiled:
            setattr(module, COMPILED_CALL, None)
        yield
    finally:
        for module, call in compiled:
            setattr(module, COMPILED_CALL, call)


def _inside_encoders(model: nn.Module) -> set[int]:
    kinds = (BatchFormer, nn.TransformerEncoderLayer)
    return parameter_ids(m for m in model.modules() if isinstance(m, kinds))


def zero_matrices(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Matrices that are all zeros, with their names, to be filled by :func:`gates_open`.

    A classifier that starts at zero gives the same outputs for all inputs. Encoders are left as
    they are: zeros in them are a result of training, not an initialisation.
    """
    inside = _inside_encoders(model)
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and parameter.is_floating_point() and id(parameter) not in inside
        if parameter.numel() and not bool(parameter.detach().flatten()[0]) and not parameter.any()
    ]


#: A weight with no larger entry is a gate that training opens: LayerScale starts at 1e-6 to 1e-3.
CLOSED = 1e-2


def closed_gates(model: nn.Module, trained: Container[int]) -> list[tuple[str, nn.Parameter]]:
    """Weights of about zero by which an output may be multiplied; no biases.

    Inside an encoder a weight must be exactly zero, as in an output projection that starts there,
    because weight decay leaves small weights.

    Args:
        trained: ids of the parameters that training can change. A gate that stays closed is no
            initialisation.
    """
    inside = _inside_encoders(model)
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if id(parameter) in trained and parameter.numel() and not name.endswith("bias")
        if parameter.is_floating_point()
        if parameter.detach().abs().max() <= (0.0 if id(parameter) in inside else CLOSED)
    ]


@contextmanager
def gates_open(gates: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within the block, these weights are one, and matrices have small random weights."""
    generator = torch.Generator().manual_seed(0)
    kept = [(gate, gate.detach().clone()) for gate in gates]
    try:
        with torch.no_grad():
            for gate, _ in kept:
                if gate.ndim > 1:
                    gate.copy_(fixed_noise(gate, generator) / gate[0].numel() ** 0.5)
                else:
                    gate.fill_(1.0)
        yield
    finally:
        with torch.no_grad():
            for gate, value in kept:
                gate.copy_(value)
