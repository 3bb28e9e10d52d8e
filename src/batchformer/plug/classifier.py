"""Find the layers that produce a model's outputs, by following the gradient back from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from batchformer.nn.streams import leaves
from batchformer.plug.example import Batch, find_batch, guess, passed
from batchformer.plug.preserve import preserve_state

#: What to write where no submodule can be stood before.
OWN_FORWARD = (
    "In a forward of your own, call logits = classifier(batchformer.two_streams(x, encoder)) with "
    "encoder = batchformer.BatchFormer({channels}) and x of shape (N, {channels}), one row for "
    "each sample or region that may attend to the others; then loss = criterion(logits, "
    "batchformer.match(logits, y))."
)


class AttachError(ValueError):
    """BatchFormer cannot be put there; the message says what to do."""


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
        """Its first argument, the features, if that is a tensor."""
        return self.args[0] if self.args and isinstance(self.args[0], Tensor) else None

    def reads_samples(self, rows: int) -> bool:
        """Whether it is called once, with one tensor of features that has an axis of samples."""
        others = [*self.args[1:], *self.kwargs.values()]
        return (
            self.times == 1
            and self.source is not None
            and self.source.ndim >= 2
            and self.source.is_floating_point()  # not the indices that an embedding reads
            and rows in self.source.shape[:2]
            and not any(isinstance(t, Tensor) and t.ndim and rows in t.shape[:2] for t in others)
        )

    def describe(self) -> str:
        shape = "no tensor" if self.source is None else str(tuple(self.source.shape))
        often = "" if self.times == 1 else f", called {self.times} times"
        kind = getattr(self.module, "_own_class", type(self.module)).__name__
        return f"{self.name!r} ({kind}, input {shape}{often})"


@dataclass
class Trace:
    """One forward pass of a plain model in eval.

    Attributes:
        calls: every module that was called, by name, in the order of first calls.
        layers: names of the weight-bearing leaf modules among them.
        producers: for each output tensor, the layers it comes from with no layer between.
        bare: names of the weight matrices between those layers and the outputs, in no layer.
        rows: the number of samples in the pass.
        shapes: those of the output tensors, but for auxiliary ones.
    """

    calls: dict[str, Call] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    producers: list[list[str]] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    rows: int = 0
    shapes: list[torch.Size] = field(default_factory=list)

    def candidates(self, tried: Sequence[str] = (), most: int = 6, lines: bool = True) -> str:
        """The last layers that read samples, but for those tried, for error messages.

        Where there is none, the lines to write instead are told, unless ``lines`` is false.
        """
        calls = [self.calls[name] for name in self.layers if name not in tried]
        shown = [call.describe() for call in calls if call.reads_samples(self.rows)][-most:]
        if shown:
            return "Candidates for at=: " + "; ".join(shown)
        return (
            f"There is no candidate for at=: no layer is called once, with one tensor of "
            f"{self.rows} rows for {self.rows} samples."
            + (f" {OWN_FORWARD.format(channels='C')}" if lines else "")
        )


def output_tensors(outputs: Any) -> list[Tensor]:
    """The tensors that a loss would use: ``logits`` where outputs are a mapping that has them."""
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        return [outputs["logits"]]
    tensors = [leaf for _, leaf in leaves(outputs) if isinstance(leaf, Tensor)]
    return [t for t in tensors if t.ndim and t.is_floating_point()]


def without_auxiliary(outputs: Any) -> Any:
    """Outputs less those whose name begins with "aux" (Inception's ``aux_logits``, FCN's ``aux``).

    They have a classifier of their own, which keeps the N plain rows.
    """
    if isinstance(outputs, Mapping):
        return {k: v for k, v in outputs.items() if not str(k).startswith("aux")}
    names = getattr(outputs, "_fields", None)
    if names is None:
        return outputs
    return tuple(v for k, v in zip(names, outputs, strict=True) if not k.startswith("aux"))


def trace(model: nn.Module, batch: Batch) -> Trace:
    """Record who is called with what, and which layers the outputs come from."""
    with _with_graph(model):
        return passed(model, batch, lambda batch: _traced(model, batch))


def find_and_trace(model: nn.Module, example: Any, axis: int) -> tuple[Batch, Trace]:
    """A batch the model accepts, as :func:`~batchformer.plug.example.find_batch`, and its trace."""
    if example is not None:
        batch = find_batch(model, example, axis)
        return batch, trace(model, batch)
    with _with_graph(model):
        try:
            return guess(model, lambda batch: _trained(model, batch))
        except ValueError:  # training may need targets, or be refused for a reason to be told later
            return guess(model, lambda batch: _traced(model, batch))


def _trained(model: nn.Module, batch: Batch) -> Trace:
    """The trace, if training takes the batch too: auxiliary heads may want a larger image."""
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
def _with_graph(model: nn.Module) -> Iterator[None]:
    """Eval, with a gradient for every parameter: a frozen model has no graph to follow."""
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
                    record.layers.append(name)
            if layer:
                for tensor in output_tensors(output):
                    produced.setdefault(tensor.grad_fn, name)

        return hook

    handles = [
        module.register_forward_hook(watch(name, is_layer(module)), with_kwargs=True)
        for name, module in model.named_modules()
        if name
    ]
    try:
        outputs = batch.run(model)
        produced.pop(None, None)
        names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        for tensor in output_tensors(without_auxiliary(outputs)):
            layers, weights = _nearest(tensor.grad_fn, produced)
            record.producers.append(layers)
            record.shapes.append(tensor.shape)
            record.bare += [names[weight] for weight in weights if weight in names]
    finally:
        for handle in handles:
            handle.remove()
    return record


def is_layer(module: nn.Module) -> bool:
    """Whether a module multiplies its input by weights of its own, and holds no such module."""
    children = list(module.modules())[1:]
    return _has_weight(module) and not any(_has_weight(child) for child in children)


def _has_weight(module: nn.Module) -> bool:
    if isinstance(module, ParametrizationList):  # the weight of the module it belongs to
        return False
    own = module.parameters(recurse=False)
    known = isinstance(module, (nn.Linear, _ConvNd)) or is_parametrized(module)
    return known or any(p.ndim >= 2 for p in own)


def _nearest(node: Any, produced: dict[Any, str]) -> tuple[list[str], list[Tensor]]:
    """Layers, and weights of none, met walking the graph back from ``node`` as far as layers."""
    met: dict[str, None] = {}
    weights: list[Tensor] = []
    seen, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in produced:
            met[produced[node]] = None
        else:
            waiting.extend(parent for parent, _ in node.next_functions)
            leaf = getattr(node, "variable", None)
            if leaf is not None and sum(size > 1 for size in leaf.shape) >= 2:
                weights.append(leaf)
    return list(met), weights


def find_classifiers(model: nn.Module, record: Trace) -> list[str]:
    """Names of the layers that make the logits.

    Several are found only where they belong together: heads that feed one output (distillation),
    or heads that read the very same features (multi-task).

    Raises:
        AttachError: none, or several that do not belong together; the candidates are listed.
    """
    declared = _declared_heads(model, record)
    if declared:
        return declared
    if not record.producers or not all(record.producers):
        raise AttachError(
            f"attach(): no layer of {type(model).__name__} could be found that produces its "
            f"outputs. Choose the classifier by name. {record.candidates()}"
        )
    if record.bare:
        raise AttachError(
            f"attach(): the outputs are made with {', '.join(map(repr, record.bare))}, weights "
            f"that belong to no layer, so the classifier is not a submodule to stand before. Move "
            f"them into a module of their own, or choose a place by name. {record.candidates()}"
        )
    groups = {frozenset(names): list(names) for names in record.producers}
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    if len(groups) > 1:
        names = _on_same_features(names, record)
    widths = {_width(record.calls[name]) for name in names}
    if not names or len(widths) > 1:
        raise AttachError(
            f"attach(): {type(model).__name__} has {len(record.producers)} outputs and no single "
            f"classifier. Choose one by name, or switch auxiliary outputs off. "
            f"{record.candidates()}"
        )
    return names


def _declared_heads(model: nn.Module, record: Trace) -> list[str]:
    """What ``get_classifier`` says (timm's convention)."""
    method = getattr(model, "get_classifier", None)
    if not callable(method):
        return []
    heads = method()
    heads = [heads] if isinstance(heads, nn.Module) else list(heads)
    if any(isinstance(head, nn.Identity) for head in heads):
        raise AttachError(
            f"attach(): {type(model).__name__} has no classifier (num_classes=0). Call "
            f"reset_classifier(num_classes) first, or choose a layer. {record.candidates()}"
        )
    return [name for head in heads for name, call in record.calls.items() if call.module is head]


def _on_same_features(names: list[str], record: Trace) -> list[str]:
    """The layers, or the blocks around them, that are called with one and the same tensor."""

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


def _width(call: Call) -> int | None:
    return None if call.source is None else call.source.shape[channel_axis(call)]


def channel_axis(call: Call) -> int:
    """Linear layers read channels from the last axis, convolutions from axis 1.

    A block is asked for its first layer or norm that fits: images are channels-last in some.
    """
    if isinstance(call.module, nn.Linear) or call.source is None or call.source.ndim <= 2:
        return -1
    if isinstance(call.module, _ConvNd):
        return 1
    second, last = call.source.shape[1], call.source.shape[-1]
    for layer in call.module.modules():
        if isinstance(layer, _ConvNd) and layer.in_channels == second:
            return 1
        if isinstance(layer, _BatchNorm) and layer.num_features == second:
            return 1
        if isinstance(layer, nn.Linear) and layer.in_features == last:
            return -1
        if isinstance(layer, nn.LayerNorm) and layer.normalized_shape[-1] == last:
            return -1
    return 1 if call.source.ndim > 3 else -1
