"""Where BatchFormer goes: the modules that ``at=`` names, or the classifier of the model.

The classifier is found by following the gradient graph back from the outputs of one forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from batchformer.nn.streams import leaves
from batchformer.plug.example import Batch, find_batch, guess, run_without_values
from batchformer.plug.preserve import preserve_state, temporary_hooks
from batchformer.torch_private import CHILDREN, BatchNorm, Conv

At = str | nn.Module | Sequence[str | nn.Module]

#: The child of a module under which its BatchFormer is registered.
CHILD = "batchformer"

#: Advice for models in which BatchFormer can stand before no submodule.
OWN_FORWARD = (
    "In a forward of your own, call logits = classifier(batchformer.two_streams(x, encoder)) with "
    "encoder = batchformer.BatchFormer({channels}) and x of shape (N, {channels}), one row for "
    "each sample or region that may attend to the others; then loss = criterion(logits, "
    "batchformer.match(logits, y))."
)


class AttachError(ValueError):
    """BatchFormer cannot be attached; the message says what to do."""


@dataclass
class Call:
    """How a module was called in one forward pass."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    times: int = 1

    @property
    def source(self) -> Tensor | None:
        """The first argument, if it is a tensor: the features."""
        return self.args[0] if self.args and isinstance(self.args[0], Tensor) else None

    def has_other_samples(self, rows: int) -> bool:
        """Whether another argument than the first has an axis of samples."""
        others = (*self.args[1:], *self.kwargs.values())
        return any(isinstance(t, Tensor) and t.ndim and rows in t.shape[:2] for t in others)

    def reads_samples(self, rows: int) -> bool:
        """Whether it is called once, with one tensor of features that has an axis of samples."""
        return (
            self.times == 1
            and self.source is not None
            and self.source.ndim >= 2
            and self.source.is_floating_point()  # not the indices that an embedding reads
            and rows in self.source.shape[:2]
            and not self.has_other_samples(rows)
        )

    def describe(self) -> str:
        shape = "no tensor" if self.source is None else str(tuple(self.source.shape))
        often = "" if self.times == 1 else f", called {self.times} times"
        kind = getattr(self.module, "_own_class", type(self.module)).__name__
        return f"{self.name!r} ({kind}, input {shape}{often})"


@dataclass
class Trace:
    """One forward pass of the model in eval, before anything is attached."""

    # Every module that was called, by name, in the order of first calls
    calls: dict[str, Call] = field(default_factory=dict)
    # For each output tensor, the last layers before it
    producers: list[list[str]] = field(default_factory=list)
    # Names of weight matrices between those layers and the outputs that are in no layer
    bare: list[str] = field(default_factory=list)
    rows: int = 0  # the number of samples in the pass
    # The shapes of the output tensors, without auxiliary ones
    shapes: list[torch.Size] = field(default_factory=list)

    def around(self, tried: Sequence[str]) -> str:
        """For error messages: the numbered block around each place, such as ``blocks.3``."""

        def block(name: str) -> str:
            while name := name.rpartition(".")[0]:
                call = self.calls.get(name)
                number = name.rpartition(".")[2].isdecimal()
                if number and call is not None and call.reads_samples(self.rows):
                    break
            return name

        blocks = " and ".join(repr(name) for name in dict.fromkeys(map(block, tried)) if name)
        return f"Try the block around the place: {blocks}. " if blocks else ""

    def candidates(self, tried: Sequence[str] = (), lines: bool = True) -> str:
        """For error messages: the last six layers that read samples, except those tried.

        If there is none, the message gives the lines to write instead, unless ``lines`` is false.
        """
        others = [call for name, call in self.calls.items() if name not in tried]
        layers = [call for call in others if is_layer(call.module)]
        shown = [call.describe() for call in layers if call.reads_samples(self.rows)][-6:]
        if shown:
            return "Candidates for at=: " + "; ".join(shown)
        return (
            f"There is no candidate for at=: no layer is called once, with one tensor of "
            f"{self.rows} rows for {self.rows} samples."
            + (f" {OWN_FORWARD.format(channels='C')}" if lines else "")
        )


def output_tensors(outputs: Any) -> list[Tensor]:
    """The tensors that a loss would use: the one named ``logits``, else all floating-point ones."""
    logits = outputs if isinstance(outputs, Tensor) else _parts_by_name(outputs).get("logits")
    parts = [logits] if isinstance(logits, Tensor) else [leaf for _, leaf in leaves(outputs)]
    return [t for t in parts if isinstance(t, Tensor) and t.ndim and t.is_floating_point()]


def without_auxiliary(outputs: Any) -> Any:
    """The outputs without those named "aux..." (Inception's ``aux_logits``, FCN's ``aux``).

    These have their own classifier, which keeps the N plain rows.
    """
    parts = _parts_by_name(outputs)
    return {k: v for k, v in parts.items() if not k.startswith("aux")} if parts else outputs


def _parts_by_name(outputs: Any) -> dict[str, Any]:
    """The parts of a mapping, a named tuple or a dataclass; none for any other outputs."""
    if isinstance(outputs, Mapping):
        return {str(key): part for key, part in outputs.items()}
    names = getattr(outputs, "_fields", ())
    if is_dataclass(outputs):
        names = [part.name for part in fields(outputs)]
    return {name: getattr(outputs, name) for name in names}


def trace(model: nn.Module, batch: Batch) -> Trace:
    """Record how modules are called, and which layers the outputs come from."""
    with with_graph(model):
        return run_without_values(model, batch, lambda batch: _traced(model, batch))


def find_and_trace(model: nn.Module, example: Any, axis: int) -> tuple[Batch, Trace]:
    """The example, or else a guessed batch that the model accepts, and its trace."""
    if example is not None:
        batch = find_batch(model, example, axis)
        return batch, trace(model, batch)
    with with_graph(model):
        # Prefer a batch that the model trains on. If none does, dry_run says why.
        with suppress(ValueError):
            return guess(model, lambda batch: _traced_and_trained(model, batch), axis)
        return guess(model, lambda batch: _traced(model, batch), axis)


def _traced_and_trained(model: nn.Module, batch: Batch) -> Trace:
    """The trace, if training accepts the batch too: auxiliary heads may need a larger image."""
    record = _traced(model, batch)
    layers = (name for name, module in model.named_modules() if name and is_layer(module))
    if any(name not in record.calls for name in layers):
        model.train()
        try:
            with torch.no_grad():
                batch.run(model)
        finally:
            model.eval()
    return record


@contextmanager
def with_graph(model: nn.Module) -> Iterator[None]:
    """Within the block, eval with gradients for all parameters: a frozen model has no graph."""
    with preserve_state(model), torch.enable_grad():
        model.eval()
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.requires_grad_(True)
        yield


def _traced(model: nn.Module, batch: Batch) -> Trace:
    record = Trace(rows=batch.rows)
    produced: dict[Any, str] = {}  # graph node -> layer whose output it is

    def watch(name: str, layer: bool) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if name in record.calls:
                record.calls[name].times += 1
            else:
                record.calls[name] = Call(name, module, args, kwargs)
            if layer:
                for tensor in output_tensors(output):
                    produced.setdefault(tensor.grad_fn, name)

        return hook

    handles = [
        module.register_forward_hook(watch(name, is_layer(module)), with_kwargs=True)
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)  # which takes no hooks
    ]
    with temporary_hooks(handles):
        outputs = batch.run(model)
    produced.pop(None, None)
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for tensor in output_tensors(without_auxiliary(outputs)):
        layers, weights = _nearest(tensor.grad_fn, produced)
        record.producers.append(layers)
        record.shapes.append(tensor.shape)
        record.bare += [names[weight] for weight in weights if weight in names]
    return record


def is_layer(module: nn.Module) -> bool:
    """Whether a module multiplies by its own weights and contains no other such module."""
    children = list(module.modules())[1:]
    return _has_weight(module) and not any(_has_weight(child) for child in children)


def _has_weight(module: nn.Module) -> bool:
    if isinstance(module, ParametrizationList):  # the weight of the module it belongs to
        return False
    own = module.parameters(recurse=False)
    known = isinstance(module, (nn.Linear, Conv)) or is_parametrized(module)
    return known or any(p.ndim >= 2 for p in own)


def _nearest(node: Any, produced: dict[Any, str]) -> tuple[list[str], list[Tensor]]:
    """The nearest layers before ``node`` in the graph, and weights on the way in no layer."""
    nearest: dict[str, None] = {}
    weights: list[Tensor] = []
    seen, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in produced:
            nearest[produced[node]] = None
        else:
            waiting.extend(parent for parent, _ in node.next_functions)
            leaf = getattr(node, "variable", None)
            if leaf is not None and sum(size > 1 for size in leaf.shape) >= 2:
                weights.append(leaf)
    return list(nearest), weights


NO_ROWS = (
    "attach(): the model returns no floating-point tensor with rows, so nothing can show that they "
    "double. Let it return its logits, beside the loss if it computes one, as a tensor or in a "
    "tuple, dict or dataclass."
)


def find_classifiers(model: nn.Module, record: Trace) -> list[str]:
    """Names of the layers that compute the logits.

    Several are returned only if they belong together: heads that feed one output (distillation),
    or heads that read the same tensor (multi-task).

    Raises:
        AttachError: there are none, or several that do not belong together. The message lists the
            candidates.
    """
    declared = _declared_heads(model, record)
    if declared:
        return declared
    if is_layer(model):
        raise AttachError(
            "attach(): the model is one layer, and BatchFormer stands before a submodule. Put it "
            "into a model: model = attach(nn.Sequential(layer))."
        )
    if not record.producers:
        at = "If it returns them in training, name its classifier with at=."
        raise AttachError(f"{NO_ROWS} {at} {record.candidates()}")
    if not all(record.producers):
        raise AttachError(
            f"attach(): found no layer of {type(model).__name__} that produces its outputs. Name "
            f"the classifier with at=. {record.candidates()}"
        )
    if record.bare:
        owners = dict.fromkeys(name.rpartition(".")[0] for name in record.bare)
        calls = [record.calls[name] for name in owners if name in record.calls]
        named = [call.describe() for call in calls if call.reads_samples(record.rows)]
        if named:
            raise AttachError(
                f"attach(): the outputs are computed with {', '.join(map(repr, record.bare))}, "
                f"weights of a module that has layers too. If it is the classifier, name it with "
                f"at=: {named[0]}. {record.candidates()}"
            )
        raise AttachError(
            f"attach(): the outputs are computed with {', '.join(map(repr, record.bare))}, weights "
            f"that belong to no layer that is called, so the classifier is not a submodule. Call "
            f"the module itself, head(x) rather than head.forward(x), move such weights into a "
            f"module of their own, or name a place with at=. {record.candidates()}"
        )
    groups = {frozenset(names): list(names) for names in record.producers}
    names = found = list(dict.fromkeys(name for group in groups.values() for name in group))
    if len(groups) > 1:
        names = _on_same_features(names, record)
    widths = {_width(record.calls[name]) for name in names}
    if not names or len(widths) > 1:
        raise AttachError(
            f"attach(): {type(model).__name__} has no single classifier: its outputs come from "
            f"layers that read different features, {', '.join(map(repr, found[:6]))}. Name one "
            f"with at=, or a list of those that compute one output together, or switch auxiliary "
            f"outputs off. {record.candidates()}"
        )
    return names


def _declared_heads(model: nn.Module, record: Trace) -> list[str]:
    """The modules that ``get_classifier()`` returns (timm's convention)."""
    method = getattr(model, "get_classifier", None)
    if not callable(method):
        return []
    heads = method()
    heads = [heads] if isinstance(heads, nn.Module) else list(heads)
    if any(isinstance(head, nn.Identity) for head in heads):
        raise AttachError(
            f"attach(): {type(model).__name__} has no classifier (num_classes=0). Call "
            f"reset_classifier(num_classes) first, or name a layer with at=. {record.candidates()}"
        )
    return [name for head in heads for name, call in record.calls.items() if call.module is head]


def _on_same_features(names: list[str], record: Trace) -> list[str]:
    """The layers, or the blocks around them, that are called with the same tensor."""

    def blocks(name: str) -> Iterator[Call]:
        while name:
            if name in record.calls:
                yield record.calls[name]
            name = name.rpartition(".")[0]

    for call in blocks(names[0]):
        matching = [[c.name for c in blocks(name) if c.source is call.source] for name in names]
        distinct = {found[0] for found in matching if found}
        if call.source is not None and len(distinct) == len(names):
            return [found[0] for found in matching]
    return []


def resolve(model: nn.Module, at: At | None, record: Trace) -> list[str]:
    """Names of the modules that BatchFormer shall stand before, in the order of their calls."""
    modules = dict(model.named_modules())
    if at is None:
        return [_first_layer(name, modules) for name in find_classifiers(model, record)]
    chosen = []
    several = isinstance(at, Iterable) and not isinstance(at, (str, nn.Module))
    places: Iterable[Any] = at if several else [at]  # type: ignore[assignment]
    for place in places:
        name = _name_of(place, modules, model)
        if name not in modules or not name:
            near = " or ".join(map(repr, get_close_matches(name, record.calls)))
            hint = f"Do you mean {near}? " if near else ""
            raise AttachError(
                f"attach(): {type(model).__name__} has no submodule {name!r}. "
                f"{hint}{record.candidates()}"
            )
        name = _first_layer(name, modules)
        if name not in record.calls:
            raise AttachError(
                f"attach(): {name!r} is not called in a forward pass, so BatchFormer would never "
                f"act there. {record.candidates()}"
            )
        chosen.append(name)
    if not chosen or len(set(chosen)) < len(chosen):
        raise AttachError(f"attach(): at={at!r} names no place, or one place twice.")
    order = list(record.calls)
    return sorted(chosen, key=order.index)


def _first_layer(name: str, modules: dict[str, nn.Module]) -> str:
    """The name of a Sequential's first layer, which has its input; any other module's own name.

    A Sequential would run a BatchFormer among its children as its last layer.
    """
    while isinstance(modules[name], nn.Sequential) and len(modules[name]):  # type: ignore[arg-type]
        name = f"{name}.{next(iter(getattr(modules[name], CHILDREN)))}"
    return name


def _name_of(place: Any, modules: dict[str, nn.Module], model: nn.Module) -> str:
    if isinstance(place, str):
        return place
    if not isinstance(place, nn.Module):
        raise AttachError(
            f"attach(): at= takes the name of a submodule, the submodule itself, or a list of "
            f"them, not {place!r}. Names are those of model.named_modules(), such as 'layer4.1'."
        )
    found = [name for name, module in modules.items() if module is place]
    if not found:
        raise AttachError(
            f"attach(): at= is a {type(place).__name__} that is no submodule of this "
            f"{type(model).__name__}. Pass one of model.modules()."
        )
    return found[0]


def usable(call: Call, record: Trace, named: bool = False) -> Call:
    """The call, if BatchFormer can stand before its module.

    Args:
        named: the user chose the module. It may then read other samples beside the features.
    """
    if call.times > 1:
        raise AttachError(
            f"attach(): {call.name!r} is called {call.times} times in one forward pass, so its "
            f"rows would double more than once. If all calls read the same features (several "
            f"dropouts), let forward send these through an nn.Identity() of the model first, and "
            f"name that with at=. {record.candidates([call.name])}"
        )
    if call.source is None:
        given = f"a {type(call.args[0]).__name__}" if call.args else "given by keyword"
        raise AttachError(
            f"attach(): the input of {call.name!r} is {given}, and BatchFormer reads one tensor, "
            f"the first positional argument. Choose the first layer inside it that reads the "
            f"features. {record.candidates([call.name])}"
        )
    if not named and call.has_other_samples(record.rows):
        raise AttachError(
            f"attach(): the input of {call.name!r} is not one tensor of samples. Only the first "
            f"would pass through BatchFormer, and whether that is right depends on the others. If "
            f"it is, say at={call.name!r}. {record.candidates([call.name])}"
        )
    if "forward" in vars(call.module):
        raise AttachError(
            f"attach(): {call.name!r} has a forward of its own, set on the object (hooks of "
            f"Accelerate's device_map do that). It runs instead of the class's forward, so "
            f"BatchFormer would never act. Attach first and set it afterwards, or remove it: "
            f"accelerate.hooks.remove_hook_from_module(module, recurse=True)."
        )
    if hasattr(call.module, CHILD):
        raise AttachError(
            f"attach(): {call.name!r} already has an attribute named {CHILD!r}. Rename it."
        )
    return call


def axes_of(call: Call, rows: int | None, width: int | None, record: Trace) -> tuple[int, int]:
    """The batch axis and the channel axis of the module's input; None means to find the axis."""
    assert call.source is not None
    shape, samples = tuple(call.source.shape), record.rows
    if rows is None:
        channels = channel_axis(call, record)  # not taken for the samples, even if as many
        axes = (axis for axis in (0, 1) if width is not None or (axis - channels) % len(shape))
        rows = next((axis for axis in axes if shape[axis : axis + 1] == (samples,)), None)
    known = rows is not None and len(shape) >= 2 and -len(shape) <= rows < len(shape)
    if rows is None or not known or shape[rows] != samples:
        raise AttachError(
            f"attach(): the input of {call.name!r} has shape {shape} for {samples} samples (rows "
            f"of the batch's first tensor); no axis holds the samples. Choose another place. If "
            f"another tensor has the samples, begin example=, a dict, with it. Set input_axis=1 if "
            f"the inputs of the model are (L, N, ...), or batch_axis for this place. Rows of "
            f"regions, as in a detector's box head, are not samples: the model doubles no labels "
            f"for them. "
            f"{OWN_FORWARD.format(channels=shape[channel_axis(call, record)])} "
            f"{record.candidates([call.name], lines=False)}"
        )
    ndim = len(shape)
    if width is not None and not (-ndim <= width < ndim and (width - rows) % ndim):
        raise AttachError(
            f"attach(): the input of {call.name!r} has shape {shape}, with samples on axis {rows}, "
            f"and no channels on axis {width}. Set channel_axis to another axis, from {-ndim} to "
            f"{ndim - 1}."
        )
    return rows, channel_axis(call, record) if width is None else width


def _width(call: Call) -> int | None:
    return None if call.source is None else call.source.shape[channel_axis(call)]


def channel_axis(call: Call, record: Trace | None = None) -> int:
    """The axis of the channels: the last for linear layers, 1 for convolutions.

    For a block, its first layer or norm that fits decides: some models have channels-last images.
    If none fits (Swin's stages first merge four positions into one), the last layer or norm before
    the block does.
    """
    if isinstance(call.module, nn.Linear) or call.source is None or call.source.ndim <= 2:
        return -1
    if isinstance(call.module, Conv):
        return 1
    shape = call.source.shape
    axes = [_axis_by(layer, shape, "in") for layer in call.module.modules()]
    if record is not None and not any(axes):
        earlier = list(record.calls)[: list(record.calls).index(call.name)]
        outside = [name for name in reversed(earlier) if not name.startswith(f"{call.name}.")]
        axes = [_axis_by(record.calls[name].module, shape, "out") for name in outside]
    return next(filter(None, axes), 1 if call.source.ndim > 3 else -1)


def _axis_by(layer: nn.Module, shape: torch.Size, side: Literal["in", "out"]) -> int | None:
    """The channel axis of ``shape``, if its size there is what the layer reads or returns."""
    if isinstance(layer, Conv) and getattr(layer, f"{side}_channels") == shape[1]:
        return 1
    if isinstance(layer, BatchNorm) and layer.num_features == shape[1]:
        return 1
    if isinstance(layer, nn.Linear) and getattr(layer, f"{side}_features") == shape[-1]:
        return -1
    if isinstance(layer, nn.LayerNorm) and layer.normalized_shape[-1] == shape[-1]:
        return -1
    return None
