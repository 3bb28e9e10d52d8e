"""Run a model without leaving a trace: modes, buffers, flags and random states are restored."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from batchformer.torch_private import BUFFERS, PARAMETERS, compiler_is_imported


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Within the block, the model is in eval; the modes of its modules are restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train()  # clears what some modules cache in eval
        for module, mode in modes:
            module.training = mode


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore, bit for bit, whatever running the model inside the block changes.

    Covers the training mode of every module, the ``requires_grad`` of every parameter, the
    generators of :func:`preserve_generators` and those that modules keep as attributes, and what
    :class:`ModelState` covers.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    state, own_states = ModelState(model, objects=False), _own_states(model)
    try:
        with preserve_generators(_devices(model)):
            yield
    finally:
        for restore, generator_state in own_states:
            restore(generator_state)
        model.train()  # clears what some modules cache in eval
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        state.restore_own()


#: Attributes that torch gives to every module.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _write(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor back its value, and its shape: observers of quantization resize theirs."""
    if tensor.shape != value.shape:
        tensor.resize_(value.shape)
    tensor.copy_(value)


def _same_values(now: Any, value: Tensor) -> bool:
    """Whether nothing was written; False for a tensor that cannot be compared."""
    if not isinstance(now, Tensor) or now.layout is not torch.strided or now.is_meta:
        return False
    return now.shape == value.shape and torch.equal(now, value)


class ModelState:
    """The buffers and attributes that a model has now, to be restored.

    Covers buffers, attributes, and what is inside an attribute that is a container or a tensor, but
    no deeper change (a list in a dict). A new attribute stays, because other objects may rely on it
    by then, unless the class has a default for it. Modules of torch are left out: they have no such
    attributes, except wrappers such as FSDP, which set theirs in the first pass.

    Args:
        objects: cover the plain objects among the modules' attributes as well.
    """

    def __init__(self, model: nn.Module, *, objects: bool = True) -> None:
        # The buffer itself is kept too, so that no other tensor gets its id.
        self.values = {id(buffer): (buffer, buffer.detach().clone()) for buffer in model.buffers()}
        self.places = [
            (module, name, id(buffer))
            for module in model.modules()
            for name, buffer in getattr(module, BUFFERS).items()
            if buffer is not None
        ]
        parts = _with_attributes(model) if objects else model.modules()
        own = (part for part in parts if not type(part).__module__.startswith("torch."))
        self.attributes = [(part, _state_of(part)) for part in own]
        kept = [value for _, attributes in self.attributes for value in attributes.values()]
        self.containers = [(v, v.copy()) for v in kept if type(v) in (list, dict, set, deque)]
        self.tensors = {id(v): v.detach().clone() for v in kept if isinstance(v, Tensor)}

    def restore(self) -> None:
        """Restore all before a pass.

        A tensor that a pass has changed is replaced by a new one, because graphs of earlier passes
        still use the old one. New attributes that are numbers are counters, and are removed.
        """
        fresh: dict[int, Tensor] = {}

        def renewed(now: Any, tensor: Tensor, value: Tensor) -> Tensor:
            if _same_values(now, value):
                return now  # type: ignore[no-any-return]
            return fresh.setdefault(id(tensor), value.clone())

        self._restore(renewed, lambda value: isinstance(value, (int, float)))

    def restore_own(self) -> None:
        """Restore all at the end, with the model's own tensors."""

        def written(now: Any, tensor: Tensor, value: Tensor) -> Tensor:
            if not _same_values(tensor, value) and not _is_expanded(tensor):
                _write(tensor, value)
            return tensor

        with torch.no_grad():
            self._restore(written, lambda value: False)

    def _restore(
        self, tensor: Callable[[Any, Tensor, Tensor], Tensor], goes: Callable[[Any], bool]
    ) -> None:
        """Restore all: ``tensor`` gives a tensor to put back, ``goes`` says if a new value goes."""
        for module, name, key in self.places:
            buffers = getattr(module, BUFFERS)
            # A module may have replaced the buffer rather than written into it.
            buffers[name] = tensor(getattr(module, name, None), *self.values[key])
        for part, kept in self.attributes:
            now = vars(part)
            for name in _state_of(part).keys() - kept.keys():
                if hasattr(type(part), name) or goes(now[name]):
                    del now[name]
            for name, value in kept.items():
                contents = self.tensors.get(id(value))
                now[name] = value if contents is None else tensor(now.get(name), value, contents)
        for container, contents in self.containers:
            _refill(container, contents)

    def skip_steps(self, steps: int) -> None:
        """After one pass from the kept state, set counters as if ``steps`` more had followed.

        Counters are whole numbers, in buffers, attributes and dicts, that the pass has changed.
        """
        for module, name, key in self.places:
            buffers, before = getattr(module, BUFFERS), self.values[key][1]
            now = getattr(module, name, None)
            if now is not None and now.numel() == before.numel() == 1 and now.dtype != torch.bool:
                step = now - before
                if step.any() and bool(step == step.round()):
                    buffers[name] = now + steps * step
        for part, kept in self.attributes:
            defaults = {name: getattr(type(part), name, 0) for name in _state_of(part)}
            _skip(vars(part), {**defaults, **kept}, steps)
        for container, contents in self.containers:
            if isinstance(container, dict):
                _skip(container, contents, steps)


def _skip(now: dict[str, Any], before: dict[str, Any], steps: int) -> None:
    for name, old in before.items():
        new = now.get(name)
        if type(new) is int and type(old) is int:
            now[name] = new + steps * (new - old)


def _state_of(part: Any) -> dict[str, Any]:
    """A part's attributes, without a forward set on it, as :mod:`~batchformer.plug.replay` does."""
    left_out = {*_OF_EVERY_MODULE, "forward"}
    return {name: value for name, value in vars(part).items() if name not in left_out}


def _devices(model: nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in (*model.parameters(), *model.buffers())}


def _own_generators(model: nn.Module) -> list[Any]:
    """The random generators of torch, NumPy and Python that modules keep as attributes."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    values = [value for part in _with_attributes(model) for value in vars(part).values()]
    # Classes are tested instead of objects: they are few, and check does this in every pass.
    drawing = {kind for kind in {type(value) for value in values} if issubclass(kind, kinds)}
    return list({id(value): value for value in values if type(value) in drawing}.values())


def _own_states(model: nn.Module) -> list[tuple[Callable[[Any], Any], Any]]:
    """The current state of each of :func:`_own_generators`, and the function that sets it."""
    states: list[tuple[Callable[[Any], Any], Any]] = []
    for generator in _own_generators(model):
        if isinstance(generator, random.Random):
            states.append((generator.setstate, generator.getstate()))
        elif hasattr(generator, "bit_generator"):
            bits = generator.bit_generator
            states.append((partial(setattr, bits, "state"), bits.state))
        else:
            states.append((generator.set_state, generator.get_state()))
    return states


def seed_all(model: nn.Module, number: int) -> None:
    """Seed every generator that a model usually draws from.

    These are its own, those of its devices, and those of Python and NumPy.
    """
    for generator in _own_generators(model):
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        elif hasattr(generator, "bit_generator"):
            bits = generator.bit_generator
            bits.state = type(bits)(number).state
        else:
            generator.seed(number)
    for device in _devices(model) | {torch.device("cpu")}:
        seed_device(device, number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def random_states(model: nn.Module) -> tuple[Any, ...]:
    """All random states that a model may draw from, for comparison with those after a pass."""
    return tuple(_comparable(s) for _, s in (*_states(_devices(model)), *_own_states(model)))


def _comparable(state: Any) -> Any:
    """The state of one generator, such that ``==`` compares all of its numbers."""
    if isinstance(state, Tensor):
        return bytes(state.tolist())
    if isinstance(state, tuple):  # of Python, or of NumPy with an array in it
        return tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)
    return str(state)


#: From this many elements of parameters on, a pass without values is faster on the CPU.
LARGE = 2**22


def may_drop_values(model: nn.Module) -> bool:
    """Whether :func:`shapes_only` is worth trying: for a large model on the CPU.

    Without values torch needs the compiler, whose import takes a second. So it must be loaded
    already, as it is by torchvision, timm or transformers.
    """
    tensors = [*model.parameters(), *model.buffers()]
    ordinary = {type(tensor) for tensor in tensors} <= {Tensor, nn.Parameter}
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    large = ordinary and sum(tensor.numel() for tensor in tensors) >= LARGE
    return large and on_cpu and compiler_is_imported()


@contextmanager
def shapes_only(model: nn.Module) -> Iterator[None]:
    """Within the block, parameters and buffers are on the meta device, so a pass computes nothing.

    A pass that reads a value raises; so does one that uses a tensor which is neither a parameter
    nor a buffer. What modules store during such a pass, such as tensors without values, is removed
    at the end.
    """
    attributes = {id(vars(part)): vars(part) for part in _with_attributes(model)}
    kept = [(now, dict(now)) for now in attributes.values()]
    containers: list[tuple[Any, Any]] = [
        (value, kind(value))
        for _, before in kept
        for value in before.values()
        for kind in (dict, list, set)
        if isinstance(value, kind)
    ]
    twins: dict[Tensor, Tensor] = {}
    try:
        for module in model.modules():
            for tensors in (getattr(module, PARAMETERS), getattr(module, BUFFERS)):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = twins.setdefault(tensor, _without_values(tensor))
        yield
    finally:
        for now, before in kept:
            _restore(now, before)
        for value, contents in containers:
            _refill(value, contents)


def _refill(value: Any, contents: Any) -> None:
    """Give a dict, list, set or deque back the contents that it had."""
    if isinstance(value, dict):
        _restore(value, contents)
    elif isinstance(value, list):
        value[:] = contents
    elif isinstance(value, deque):
        value.clear()
        value.extend(contents)
    else:
        value.intersection_update(contents)
        value.update(contents)


def _restore(now: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Undo what changed in a dict, and touch nothing else, because others may be reading it."""
    for key in now.keys() - before.keys():
        del now[key]
    for key, value in before.items():
        if now.get(key, now) is not value:
            now[key] = value


def _with_attributes(model: nn.Module) -> Iterator[Any]:
    """The modules, and the plain objects among their attributes, which may have tensors too."""
    not_plain = (type, ModuleType, Tensor)
    for module in model.modules():
        yield module
        for value in vars(module).values():
            attributes = getattr(value, "__dict__", None)
            if type(attributes) is dict and not isinstance(value, not_plain):
                yield value


def _without_values(tensor: Tensor) -> Tensor:
    twin = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin


@contextmanager
def preserve_generators(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the random states of Python, NumPy, torch's CPU generator and these devices."""
    states = _states(devices)
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


@contextmanager
def temporary_hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove these hooks at the end of the block."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def seed_device(device: torch.device, number: int) -> None:
    """Seed torch's generators of the CPU and of one device.

    ``torch.manual_seed`` would also seed accelerators that are not in use.
    """
    torch.default_generator.manual_seed(number)
    if device.type in ("cpu", "meta"):
        return
    module: Any = torch.get_device_module(device)
    # manual_seed seeds the current one of several devices. MPS has only one.
    with module.device(device) if hasattr(module, "device") else nullcontext():
        module.manual_seed(number)


def _states(devices: Iterable[torch.device]) -> list[tuple[Callable[[Any], Any], Any]]:
    """Each generator's current state, and the function that sets it."""
    states: list[tuple[Callable[[Any], Any], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    numpy: Any = sys.modules.get("numpy")  # code that draws from it has imported it
    if numpy is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    for device in set(devices):
        if device.type in ("cpu", "meta"):
            continue
        module: Any = torch.get_device_module(device)
        if device.type == "mps":  # there is only one, and its functions take no device
            states.append((module.set_rng_state, module.get_rng_state()))
        else:
            restore = partial(module.set_rng_state, device=device)
            states.append((restore, module.get_rng_state(device)))
    return states


def _is_expanded(buffer: Tensor) -> bool:
    """Whether several elements share one place in memory, so that nothing can be written."""
    if buffer.layout is not torch.strided:
        return False
    return any(
        step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True)
    )
