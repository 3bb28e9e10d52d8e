"""Is it acting? Experiments on a model's outputs, in training and in eval."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.nn.encoder import bypassed
from batchformer.nn.module import BatchFormer, without_exchange
from batchformer.plug.classifier import output_tensors
from batchformer.plug.eval_layers import other_layers_in_eval
from batchformer.plug.evidence import Seen, look
from batchformer.plug.example import Batch
from batchformer.plug.export import same_bits
from batchformer.plug.findings import (
    CALLED,
    EVAL,
    MEMBER,
    ON,
    THERE,
    CheckResult,
    Finding,
    about_life,
    about_streams,
    about_training,
)
from batchformer.plug.insertion import RECORD, Attachment, PerStream, WithBatchFormer, unwrap
from batchformer.plug.noise import (
    closed_gates,
    gates_open,
    held_noise,
    not_compiled,
    seed,
    zeros_filled,
)
from batchformer.plug.observe import (
    Experiment,
    fill_up,
    gradients,
    moved,
    probe_batch,
    reachable,
    replaced,
)
from batchformer.plug.outputs import InEval, Layout, as_rows, find_layout, named_outputs
from batchformer.plug.preserve import Buffers, own_generators, preserve_state

OTHER_LAYERS = "eval takes the layers of the plain rows, all of them: leave out the encoder alone"

#: The mixins that attach puts in front of a module's class.
OURS = (WithBatchFormer, PerStream)


def check(
    model: nn.Module,
    batch: Any,
    optimizer: Optimizer | None = None,
    *,
    mixed_only: bool = False,
    input_axis: int | None = None,
) -> CheckResult:
    """Prove by experiment that BatchFormer acts in training, is trained, and is absent in eval.

    Works on models prepared by ``attach``, on models that call :class:`BatchFormer` themselves,
    and, from the outside, on any other attempt at the idea. One of a few samples is replaced by a
    copy of another, and the rows of the *outputs* say who depends on whom. Dropout and batch
    statistics are held fixed meanwhile, so only attention can carry the change to other samples.
    The model is judged in the mode it is in, or, if it is in eval, after ``model.train()``. It is
    left as it was, bit for bit. No other rank is waited for: with ``exchange=True`` the samples at
    hand attend among themselves.

    Args:
        model: the model, wrapped or not.
        batch: at least two different samples: inputs as the model takes them; an ``(x, y)`` pair
            or labels in a dict are understood.
        optimizer: if given, is asked whether it holds every BatchFormer parameter, at a rate above
            zero.
        mixed_only: the model's own code trains on the mixed stream alone, on purpose; ``attach``
            has noted it for models that it prepared.
        input_axis: the axis of the samples in the inputs; 1 for ``(L, N, ...)`` inputs. By default
            the one that ``attach`` was given, or 0.

    Raises:
        ValueError: the batch cannot show anything, or the model is wrapped in ``DataParallel``.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> check(model, torch.randn(5, 8)).passed
    True
    """
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "check(): nn.DataParallel is not supported: its replicas share the encoder of one "
            "device. Start one process for each GPU with torchrun, wrap the model in "
            "DistributedDataParallel, and check that."
        )
    if input_axis is not None and input_axis < 0:
        raise ValueError(f"check(): input_axis is {input_axis}; axes are counted from 0.")
    inner = unwrap(model)
    # A wrapper that came after attach (PEFT) has the record on the model inside it.
    holder = next((m for m in inner.modules() if RECORD in m.__dict__), inner)
    record: Attachment | None = holder.__dict__.get(RECORD)
    encoders = [m for m in inner.modules() if isinstance(m, BatchFormer)]
    if record is not None:
        replaced_since = _replaced_since(holder, record, encoders)
        if replaced_since is not None:
            return CheckResult((replaced_since,))
        mixed_only |= record.streams == "mixed_only"
    frozen = {id(p) for p in inner.parameters() if not p.requires_grad}
    with ExitStack() as stack:
        contexts = (torch.inference_mode(False), torch.enable_grad())
        for context in (*contexts, preserve_state(inner), not_compiled(inner)):
            stack.enter_context(context)
        stack.enter_context(without_exchange(inner))
        if input_axis is None:
            input_axis = record.input_axis if record else 0
        few = fill_up(inner, probe_batch(inner, batch, input_axis))
        modes = [(m, m.training) for m in inner.modules()]
        in_eval, layout, shapes = _in_eval(inner, few, encoders, attached=record is not None)
        inner.train()  # drops what some modules cache in eval
        for module, mode in modes:
            module.training = mode
        on = _switched_on(inner, encoders)
        for parameter in inner.parameters():  # a frozen model has no graph to follow
            if parameter.is_floating_point():
                parameter.requires_grad_(True)
        zeros = [f"{name} is zero" for name in stack.enter_context(zeros_filled(inner))]
        stack.enter_context(held_noise(inner, few))
        experiment = Experiment(inner, few, encoders, layout, shapes)
        seen, opened = _with_gates_open(look(experiment, frozen), frozen, optimizer)
        zeros += opened
        if not seen.used and not seen.doubled and not seen.met.any():
            return CheckResult((_none_found(encoders),))
        there = f"attached before {', '.join(record.places)}" if record else ""
        in_code = f"{len(seen.used)} in the model's own code"
        there = there or (in_code if seen.used else "no BatchFormer module: judged from outside")
        findings = [Finding(THERE, True, there), *on, *_never_called(inner)]
        findings += about_streams(seen, mixed_only)
        findings += about_training(seen, frozen, zeros)
        measured, alive = about_life(seen, zeros)
        findings += alive
        if in_eval.passed:
            told = other_layers_in_eval(inner, seen, layout, frozen)
            in_eval = in_eval if told is None else Finding(EVAL, False, told, OTHER_LAYERS)
        if in_eval.passed and not seen.used and seen.own_weights:
            in_eval = _eval_without(inner, few, seen.own_weights) or in_eval
        findings.append(in_eval)
    if optimizer is not None and (seen.used or seen.own_weights):
        findings.append(_membership(seen, optimizer))
    return CheckResult(tuple(findings), measured)


def _with_gates_open(
    seen: Seen, frozen: set[int], optimizer: Optimizer | None
) -> tuple[Seen, list[str]]:
    """What the passes show once gates that start at zero are open, if that shows more.

    A gate must be a weight that training opens: not frozen, in the optimizer if there is one, and
    with a gradient while it is closed. Gives what was seen and words about the gates.
    """
    if not seen.judged or (seen.attends and all(seen.reached)):
        return seen, []
    experiment = seen.experiment
    trained = {id(p) for p in experiment.model.parameters()} - frozen
    if optimizer is not None:
        trained &= {id(p) for group in optimizer.param_groups for p in group["params"]}
    gates = closed_gates(experiment.model, trained)
    if seen.no_gradients is None and gates:
        # A new pass: weights were moved since the first, so its graph is of no use any more.
        reached = gradients(experiment.run().rows, [gate for _, gate in gates])
        gates = [gate for gate, ok in zip(gates, reached, strict=True) if ok]
    if not gates:
        return seen, []
    words = [f"{name} is {'nearly ' if gate.any() else ''}zero" for name, gate in gates]
    with gates_open(gate for _, gate in gates):
        again = look(experiment, frozen)
    shows = [(s.attends, int(s.met.sum()), sum(s.reached)) for s in (seen, again)]
    return (again, words) if shows[1] > shows[0] else (seen, [])


# Is it there, and on?


def _replaced_since(
    model: nn.Module, record: Attachment, encoders: list[BatchFormer]
) -> Finding | None:
    named = dict(model.named_modules())
    gone = [
        name
        for name in record.changed
        if name not in named or not any(isinstance(m, OURS) for m in named[name].modules())
    ]
    if not gone and encoders:
        return None
    return Finding(
        THERE,
        False,
        f"attached before {', '.join(record.places)}, but {', '.join(gone)} replaced since",
        "reset_classifier, a new head, or converted norms removed it: detach(model), then "
        "attach(model) again",
    )


def _none_found(encoders: list[BatchFormer]) -> Finding:
    if encoders:
        return Finding(
            THERE,
            False,
            f"{len(encoders)} in the model, but no training pass calls it",
            "call it in forward: x = two_streams(x, self.batchformer), before the classifier",
        )
    return Finding(
        THERE,
        False,
        "none found: N rows for N samples, and no sample changes another's row",
        "call attach(model)",
    )


def _switched_on(model: nn.Module, encoders: list[BatchFormer]) -> list[Finding]:
    """Whether the encoders are on in the modes that modules are in; switches them on."""
    if not encoders:
        if not model.training:
            model.train()
        return []
    now = model.training or any(encoder.training for encoder in encoders)
    places = [m._place for m in model.modules() if isinstance(m, WithBatchFormer)]
    owners = [place.encoder for place in places if place.role != "pass"]
    off: list[nn.Module] = [m for m in owners if not m.training]
    if not owners and not any(encoder.training for encoder in encoders):
        off = [*encoders]
    if not now or off:
        model.train()
    if now and off:
        return [
            Finding(
                ON,
                False,
                "the model is training, but its BatchFormer is in eval: the identity",
                "call model.train(), and eval() on no part that holds BatchFormer",
            )
        ]
    return [Finding(ON, True, "in training" if now else "in eval now; judged after model.train()")]


def _never_called(model: nn.Module) -> list[Finding]:
    """A failure where a person changed a part of the encoder that no pass calls."""
    names = bypassed(model)
    if not names:
        return []
    return [
        Finding(
            CALLED,
            False,
            f"{', '.join(names)}: replaced or hooked, but no pass calls it",
            "hook the encoder layer itself; wrap linear1, linear2 or self_attn.out_proj, which are "
            "called once they are wrapped",
        )
    ]


# Eval.


def _in_eval(
    model: nn.Module, batch: Batch, encoders: list[BatchFormer], *, attached: bool
) -> tuple[Finding, Layout, dict[str, InEval]]:
    """The finding on eval, where the outputs have their rows, and their shapes by name."""
    model.eval()
    if attached:
        return _compared_with_plain(model, batch)
    inside = {id(p) for encoder in encoders for p in encoder.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in inside)
    names: list[str] = []

    buffers, generators = Buffers(model), own_generators(model)

    def run(each: Batch) -> list[Tensor]:
        buffers.restore()
        seed(0, generators)
        named = named_outputs(each.run(model))
        names[:] = [name for name, _ in named]
        return [tensor for _, tensor in named]

    with torch.enable_grad():
        try:
            few = run(batch.head(1))
        except Exception:  # the axis of one sample squeezed away, for example
            few = []
        many, after = run(batch), run(replaced(batch, 0))
        n = batch.rows
        layout = find_layout(few, many, (1, n))
        shapes = _shapes(names, many, layout)
        rows = as_rows(many, n, layout)
        judged = [i for i, t in enumerate(rows) if len(t) == n] or [0]

        def moving(other: list[Tensor]) -> Tensor:
            now = as_rows(other, n, layout)
            return moved([rows[i] for i in judged], [now[i] for i in judged])

        moves = moving(after)[1:] if rows else torch.zeros(0)
        if moves.any() and moving(run(batch)).any():
            return Finding(EVAL, None, "the outputs change from pass to pass"), layout, shapes
    if inside & reachable(many).keys():
        return _depends_on_encoder(), layout, shapes
    count, others = len(rows[0]) if rows else 0, int(moves.sum())
    finding = Finding(
        EVAL,
        count == n and not others,
        f"{count} rows for {n} samples; replacing one sample moves {others} others",
        "predictions depend on batch-mates: BatchFormer must be the identity in eval"
        + ("" if batch.axis else "; if axis 1 of the inputs has the samples, pass input_axis=1"),
    )
    return finding, layout, shapes


def _shapes(names: list[str], outputs: list[Tensor], layout: Layout) -> dict[str, InEval]:
    if not layout:
        return {name: InEval(t.shape, 1) for name, t in zip(names, outputs, strict=True)}
    return {
        name: InEval(tensor.shape, place.each)
        for name, tensor, place in zip(names, outputs, layout, strict=True)
        if place is not None
    }


def _compared_with_plain(
    model: nn.Module, batch: Batch
) -> tuple[Finding, Layout, dict[str, InEval]]:
    with torch.no_grad(), _own_forwards_compared(model) as differ:
        named = named_outputs(batch.run(model))
        few = [tensor for _, tensor in named_outputs(batch.head(1).run(model))]
    names, many = [name for name, _ in named], [tensor for _, tensor in named]
    told = f"outputs of {', '.join(differ)} differ" if differ else "equal to the bit"
    finding = Finding(
        EVAL,
        not differ,
        f"batches of 1 and {batch.rows}: {told}",
        "something besides attach changes eval outputs: is BatchFormer put into training there?",
    )
    layout = find_layout(few, many, (1, batch.rows))
    return finding, layout, _shapes(names, many, layout)


def _depends_on_encoder() -> Finding:
    return Finding(
        EVAL,
        False,
        "the outputs depend on the encoder",
        "the encoder must be the identity in eval: leave it out where not self.training; of "
        "BatchFormer call forward(), not mix(), and let model.eval() reach it",
    )


@contextmanager
def _own_forwards_compared(model: nn.Module) -> Iterator[list[str]]:
    """Compare every changed module with what its own class computes from the same input.

    All other modules are the plain model's own, so equality here is equality of the outputs.
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
            own = module._own_class.forward(module, x, *args[1:], **kwargs)
            pair = output_tensors(output), output_tensors(own)
            if len(pair[0]) != len(pair[1]) or not all(map(same_bits, *pair)):
                differ.append(name)

        return hook

    swapped = [(name, m) for name, m in model.named_modules() if isinstance(m, OURS)]
    handles = [m.register_forward_pre_hook(keep, with_kwargs=True) for _, m in swapped]
    handles += [  # before hooks of the user's, which see both models' outputs
        m.register_forward_hook(compare(name), with_kwargs=True, prepend=True)
        for name, m in swapped
    ]
    try:
        yield differ
    finally:
        for handle in handles:
            handle.remove()


def _eval_without(
    model: nn.Module, batch: Batch, weights: list[tuple[str, Tensor]]
) -> Finding | None:
    """A failure if eval outputs depend on weights that act on mixed rows alone in training."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    inside = {id(p) for _, p in weights}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in inside)
    with torch.enable_grad():
        encoded = bool(inside & reachable(output_tensors(batch.run(model))).keys())
    for module, mode in modes:
        module.training = mode
    return _depends_on_encoder() if encoded else None


def _membership(seen: Seen, optimizer: Optimizer) -> Finding:
    """Whether the optimizer holds the encoder's weights, at a learning rate above zero.

    A rate of zero is a failure if it will stay zero. It is not judged where a schedule may raise
    it: the rate of every group is zero now, or a scheduler has noted an ``initial_lr`` above zero.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    total, inside = len(seen.own_weights), [p for _, p in seen.own_weights if id(p) in groups]
    told, remedy = (
        f"{len(inside)} of {total} parameters",
        "build the optimizer after attach, e.g. from param_groups(model, lr), or pass optimizer=",
    )
    still = [groups[id(p)] for p in inside if not float(groups[id(p)]["lr"])]
    if len(inside) < total or not still:
        return Finding(MEMBER, len(inside) == total, told, remedy)
    told = f"{told}, {len(still)} of them at a rate of 0"
    all_still = not any(float(group["lr"]) for group in optimizer.param_groups)
    if all_still or all(float(group.get("initial_lr", 0.0)) for group in still):
        return Finding(MEMBER, None, f"{told} now (a warm-up?)")
    return Finding(
        MEMBER,
        False,
        told,
        "give the encoder a learning rate: param_groups(model, lr, lr_factor=1.0)",
    )
