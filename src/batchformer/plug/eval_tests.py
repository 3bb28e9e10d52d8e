"""Is eval the plain model? What ``check`` tests with the model in eval."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer, parameter_ids
from batchformer.plug.batches import replace_sample
from batchformer.plug.classifier import output_tensors
from batchformer.plug.evidence import Evidence
from batchformer.plug.example import Batch
from batchformer.plug.export import same_bits
from batchformer.plug.findings import EVAL, Finding
from batchformer.plug.insertion import OURS
from batchformer.plug.observe import gradients, moved, parameter_names, reachable
from batchformer.plug.outputs import InEval, Layout, as_rows, find_layout, named_outputs
from batchformer.plug.place_tests import AttentionRecord, record_attention
from batchformer.plug.preserve import ModelState, in_eval, seed_all, temporary_hooks

DEPENDS_ON_ENCODER = Finding(
    EVAL,
    False,
    "the outputs depend on the encoder",
    "the encoder must be the identity in eval: skip it if not self.training. Call BatchFormer's "
    "forward(), not mix(), and make sure that model.eval() reaches it",
)


class EvalPass(NamedTuple):
    """What passes in eval showed."""

    finding: Finding  # whether eval is the plain model
    layout: Layout  # where the outputs have their rows
    shapes: dict[str, InEval]  # the shapes of the outputs, by name
    attention: AttentionRecord  # what attends in eval
    # The outputs for the batch, if norms had the statistics of the training passes
    outputs: list[Tensor] | None = None


def run_in_eval(model: nn.Module, batch: Batch, encoders: list[BatchFormer]) -> EvalPass:
    """Run passes in eval of a model that mixes samples in its own code."""
    n, inside = batch.rows, parameter_ids(encoders)
    _require_gradients(model, inside)
    names: list[str] = []
    state = ModelState(model)

    def run(each: Batch) -> list[Tensor]:
        state.restore()
        seed_all(model, 0)
        named = named_outputs(each.run(model))
        names[:] = [name for name, _ in named]
        return [tensor for _, tensor in named]

    def moving(other: list[Tensor]) -> Tensor:
        now = as_rows(other, n, layout)
        return moved([rows[i] for i in judged], [now[i] for i in judged])

    with in_eval(model), torch.enable_grad():
        try:
            few = run(batch.head(1))
        except Exception:  # the model may squeeze the axis of one sample
            few = []
        with record_attention(model) as attention:  # of one pass, to compare with one in training
            many = run(batch)
        after = run(replace_sample(batch, 0))
        layout = find_layout(few, many, (1, n))
        rows = as_rows(many, n, layout)
        judged = [i for i, t in enumerate(rows) if len(t) == n] or [0]
        moves = moving(after)[1:] if rows else torch.zeros(0, device="cpu")
        unsteady = bool(moves.any()) and bool(moving(run(batch)).any())
    count, others = len(rows[0]) if rows else 0, int(moves.sum())
    if unsteady:
        finding = Finding(EVAL, None, "the outputs change from pass to pass")
    elif inside & reachable(many).keys():
        finding = DEPENDS_ON_ENCODER
    else:
        text = f"{count} rows for {n} samples; replacing one sample moves {others} others"
        remedy = "a prediction depends on other samples: BatchFormer must be the identity in eval"
        if not batch.axis:
            remedy += "; if axis 1 of the inputs has the samples, pass input_axis=1"
        finding = Finding(EVAL, count == n and not others, text, remedy)
    return EvalPass(finding, layout, _shapes(names, many, layout), attention)


def _require_gradients(model: nn.Module, inside: Container[int]) -> None:
    """Let only the parameters with these ids require gradients."""
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in inside)


def _shapes(names: list[str], outputs: list[Tensor], layout: Layout) -> dict[str, InEval]:
    if not layout:
        return {name: InEval(t.shape, 1) for name, t in zip(names, outputs, strict=True)}
    return {
        name: InEval(tensor.shape, place.each)
        for name, tensor, place in zip(names, outputs, layout, strict=True)
        if place is not None
    }


def run_attached_in_eval(model: nn.Module, batch: Batch) -> EvalPass:
    """Run passes in eval of an attached model, and compare its changed modules with plain ones."""
    with in_eval(model), torch.no_grad(), _own_forwards_compared(model) as differ:
        with record_attention(model) as attention:
            named = named_outputs(batch.run(model))
        few = [tensor for _, tensor in named_outputs(batch.head(1).run(model))]
    names, many = [name for name, _ in named], [tensor for _, tensor in named]
    text = f"outputs of {', '.join(differ)} differ" if differ else "equal to the bit"
    remedy = "something besides attach changes eval outputs: is BatchFormer in training mode there?"
    finding = Finding(EVAL, not differ, f"batches of 1 and {batch.rows}: {text}", remedy)
    layout = find_layout(few, many, (1, batch.rows))
    return EvalPass(finding, layout, _shapes(names, many, layout), attention, many)


@contextmanager
def _own_forwards_compared(model: nn.Module) -> Iterator[list[str]]:
    """Compare every changed module with what its own class computes from the same input.

    All other modules are those of the plain model, so if these outputs are equal, all are.
    """
    differ: list[str] = []
    inputs: dict[int, Any] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs[id(module)] = args[0].clone() if args and isinstance(args[0], Tensor) else None

    def compare(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            x = inputs.pop(id(module), None)
            if x is None:
                return
            if same_bits(x, args[0]):  # a copy has other strides, and perhaps other last bits
                x = args[0]
            own = module._own_class.forward(module, x, *args[1:], **kwargs)
            pair = output_tensors(output), output_tensors(own)
            if len(pair[0]) != len(pair[1]) or not all(map(same_bits, *pair)):
                differ.append(name)

        return hook

    changed = [(name, m) for name, m in model.named_modules() if isinstance(m, OURS)]
    handles = [m.register_forward_pre_hook(keep, with_kwargs=True) for _, m in changed]
    handles += [  # before the user's hooks, which act in both models
        m.register_forward_hook(compare(name), with_kwargs=True, prepend=True)
        for name, m in changed
    ]
    with temporary_hooks(handles):
        yield differ


def about_eval(seen: Evidence, plain: EvalPass) -> Finding:
    """The finding of the passes in eval, or a failure that a comparison with training shows."""
    found = plain.finding
    if found.passed:
        found = _other_layers_in_eval(seen, plain) or found
    if found.passed and not seen.used and seen.own_weights:
        found = _depends_on_weights(seen) or found
    return found


def _depends_on_weights(seen: Evidence) -> Finding | None:
    """A failure if eval outputs depend on the weights that act on mixed rows only in training."""
    model, batch = seen.experiment.model, seen.experiment.batch
    inside = {id(p): name for name, p in seen.own_weights}
    _require_gradients(model, inside.keys())
    with in_eval(model), torch.enable_grad():
        outputs = output_tensors(batch.run(model))
        used = inside.keys() & reachable(outputs).keys()
        if not any(gradients(outputs, [p for _, p in seen.own_weights if id(p) in used])):
            return None  # eval may compute mixed rows and drop them
    if used == inside.keys():
        return DEPENDS_ON_ENCODER
    name = next(name for key, name in inside.items() if key in used)
    text = f"{name} acts in eval, and in training it has gradient from mixed rows alone"
    remedy = (
        "if it is a layer of the network, let plain rows train it too: do not detach them; if it "
        "is a part of the encoder, skip it in eval"
    )
    return Finding(EVAL, False, text, remedy)


# ---- Does eval use the same layers as the plain rows of training?


def _other_layers_in_eval(seen: Evidence, plain_pass: EvalPass) -> Finding | None:
    """A failure if eval and training do not share all weights; None if they cannot be compared.

    If values differ, weights decide: a model may scale its outputs in eval, or return
    probabilities. Norms have the statistics of the training passes meanwhile.
    """
    unknown = not seen.doubled or seen.order is None or seen.no_gradients is not None
    if unknown or seen.unsteady or seen.base.noisy:
        return None
    plain = seen.plain_rows(seen.base)
    model, batch = seen.experiment.model, seen.experiment.batch
    outputs = plain_pass.outputs
    with in_eval(model):
        if outputs is None:
            with torch.no_grad():
                outputs = [tensor for _, tensor in named_outputs(batch.run(model))]
        if _has_equal(as_rows(outputs, batch.rows, plain_pass.layout), plain[0]):
            return None
        with torch.enable_grad():
            used = reachable([tensor for _, tensor in named_outputs(batch.run(model))])
    again = seen.experiment.run()  # weights may have been moved since the first pass
    names = parameter_names(model)
    trained = reachable(again.outputs)
    shared = names.keys() & used.keys() & trained.keys()
    matrices = {key for key, (p, _) in used.items() if p.ndim >= 2 and key in names}
    if not matrices & shared:  # another network altogether: an average of the weights, a teacher
        return None
    for key in used:
        if key in matrices - shared - seen.frozen:  # a teacher is frozen
            return _other_layers(f"eval uses {names[key]}, which training does not")
    if seen.unshared is not None:
        return None
    alone = _before_classifier(seen.plain_rows(again)[0], names, shared)
    if alone is None:
        return None
    return _other_layers(f"training uses {names[alone]}, which eval does not")


def _other_layers(description: str) -> Finding:
    remedy = "use the layers of the plain rows in eval, all of them: leave out only the encoder"
    return Finding(EVAL, False, description, remedy)


def _has_equal(outputs: Sequence[Tensor], plain: Tensor) -> bool:
    """Whether one of the outputs, (N, features) each, equals the plain rows."""
    tolerance = max(1e-3, 4 * torch.finfo(plain.dtype).eps)
    expected = plain.detach().double()
    scale = max(float(expected.abs().max()), 1e-12)
    return any(
        rows.shape == plain.shape
        and float((rows.double() - expected).abs().max()) <= tolerance * scale
        for rows in outputs
    )


def _before_classifier(plain: Tensor, names: dict[int, str], shared: set[int]) -> int | None:
    """The id of a weight that acts on plain rows before the classifier and is not shared.

    A layer after the classifier, such as a learned correction of logits, may be left out in eval
    on purpose.
    """
    found = reachable([plain])
    last = next((d for key, (p, d) in found.items() if p.ndim >= 2 and key in shared), None)
    if last is None:
        return None
    suspects = [
        (key, p)
        for key, (p, distance) in found.items()
        if key in names and key not in shared and distance > last and p.numel() > 1
    ]
    suspects.sort(key=lambda suspect: -suspect[1].ndim)  # a matrix is a layer's best name
    acting = gradients([plain], [p for _, p in suspects])
    return next((key for (key, _), acts in zip(suspects, acting, strict=True) if acts), None)
