"""``check``: does BatchFormer act? Experiments on a model's outputs, in training and in eval.

This file says which experiments run, and in which order. Each is in the file of its question, with
the sentence that reports it: ``attention_tests`` (do samples attend to each other?), with
``place_tests`` for each place of several; ``stream_tests`` (two streams, in order?);
``weight_tests`` (one shared classifier, and does every weight learn?); ``eval_tests`` (is eval the
plain model?); ``alive`` (is the encoder still alive?).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.nn.arguments import a_model, an_optimizer, switches, whole_numbers
from batchformer.nn.encoder import bypassed
from batchformer.nn.module import BatchFormer, encoders_of, parameter_ids
from batchformer.plug import attention_tests, eval_tests, place_tests, stream_tests, weight_tests
from batchformer.plug.alive import about_life, decay_warning, influence_as_it_is, influence_of
from batchformer.plug.batches import few_samples, fill_up, replaced_index
from batchformer.plug.classifier import find_and_trace
from batchformer.plug.evidence import Evidence
from batchformer.plug.example import Batch, remembered_example
from batchformer.plug.findings import CALLED, MEMBER, ON, THERE, CheckResult, Finding
from batchformer.plug.insertion import (
    OURS,
    Attachment,
    WithBatchFormer,
    find_record,
    is_sharded,
    unwrap,
)
from batchformer.plug.noise import (
    closed_gates,
    drops_everything,
    gates_open,
    isolated,
    without_noise,
    zero_matrices,
)
from batchformer.plug.observe import Experiment, gradients, has_reentrant_checkpoint, reachable


def check(
    model: nn.Module,
    batch: Any = None,
    optimizer: Optimizer | None = None,
    *,
    mixed_only: bool = False,
    input_axis: int | None = None,
) -> CheckResult:
    """Prove by experiment that BatchFormer acts in training, is trained, and is absent in eval.

    It works on models prepared by ``attach``, on models that call :class:`BatchFormer` themselves,
    and, from the outside, on any other implementation of the idea. One of a few samples is replaced
    by a copy of another, and the rows of the *outputs* show which samples depend on which. Dropout
    and batch statistics are fixed meanwhile, so only attention can carry the change to other
    samples. The model is judged in its current mode, or, if it is in eval, after ``model.train()``.
    It is left as it was, bit for bit. ``check`` does not wait for other ranks: with
    ``exchange=True`` the samples of this rank attend to one another.

    Args:
        model: the model, wrapped or not.
        batch: inputs as the model accepts them, with at least two different samples. An ``(x, y)``
            pair and labels in a dict are understood. By default it is the example that ``attach``
            was given, or guessed; your own data proves more.
        optimizer: if given, ``check`` tests whether it has every BatchFormer parameter, with a
            learning rate above zero.
        mixed_only: the model's own code trains on the mixed stream alone, on purpose. Models
            prepared by ``attach`` need not say this.
        input_axis: the axis of the samples in the inputs; 1 for ``(L, N, ...)`` inputs. By default
            the one that ``attach`` was given, or 0.

    Raises:
        ValueError: the batch cannot show anything, or the model is in ``DataParallel`` or sharded.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> check(model).passed
    True
    """
    a_model("check()", model)
    an_optimizer("check()", optimizer)
    switches("check()", mixed_only=mixed_only)
    if input_axis is not None:
        whole_numbers("check()", 0, input_axis=input_axis)
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "check(): nn.DataParallel is not supported: its replicas share the encoder of one "
            "device. Start one process for each GPU with torchrun, wrap the model in "
            "DistributedDataParallel, and check that."
        )
    if is_sharded(model) or any(hasattr(p, "placements") for p in model.parameters()):  # DTensor
        raise ValueError(
            "check(): the parameters are sharded (FSDP, tensor parallelism), and check needs whole "
            "ones. Check the model before it is sharded."
        )
    inner = unwrap(model)
    holder, record = find_record(inner)
    encoders = encoders_of(inner)
    if record is not None:
        replaced_since = _replaced_since(holder, record, encoders)
        if replaced_since is not None:
            return CheckResult((replaced_since,))
        mixed_only |= record.streams == "mixed_only"
    frozen = {id(p) for p in inner.parameters() if not p.requires_grad}
    with isolated(inner):
        if input_axis is None:
            input_axis = record.input_axis if record else 0
        if batch is None:
            batch = remembered_example(holder, inner)
        guessed = batch is None
        if batch is None:
            batch = _guess(inner, input_axis)
        few = fill_up(inner, few_samples(inner, batch, input_axis))
        own_code = None if record else eval_tests.run_in_eval(inner, few, encoders)
        on = _switched_on(inner, encoders)
        for parameter in inner.parameters():  # a frozen model would have no graph to follow
            if parameter.is_floating_point():
                parameter.requires_grad_(True)
        zeros = zero_matrices(inner)
        as_it_is = influence_as_it_is(inner, few, encoders) if zeros else None
        with gates_open(matrix for _, matrix in zeros), without_noise(inner, few):
            # The norms of an attached model now have the statistics of training in eval too, so one
            # pass shows both whether eval is plain, and whether it equals the plain rows of
            # training.
            plain = own_code or eval_tests.run_attached_in_eval(inner, few)
            experiment = Experiment(inner, few, encoders, plain.layout, plain.shapes)
            seen = _with_gates_open(
                gather_evidence(experiment, frozen, plain.attention), plain.attention, optimizer
            )
            if as_it_is:  # these zeros (a bias table, LoRA) do not hide one sample from another
                seen.influence, seen.decayed = as_it_is, decay_warning(seen.used, as_it_is)
            else:  # a weight that no pass here uses, such as a token for masked patches, hides none
                acting = reachable(seen.base.outputs).keys()
                # The classifier, which comes last and hides most, is named first.
                names = [name for name, matrix in reversed(zeros) if id(matrix) in acting]
                seen.zeros = [f"{name} is zero" for name in names] + seen.zeros
            if not seen.used and not seen.doubled and not seen.attending.any():
                return CheckResult((_none_found(encoders),))
            findings = [_found(seen, record), *on, *_never_called(inner)]
            findings += [
                stream_tests.about_streams(seen, mixed_only),
                attention_tests.about_attention(seen),
            ]
            findings += [*stream_tests.about_rows(seen), *weight_tests.about_weights(seen)]
            explained = any(f.passed is False for f in findings)
            if not (explained or guessed):  # a guessed batch says nothing about sizes
                findings += stream_tests.about_size(seen)
            alive = about_life(seen, explained)
            findings += [] if alive is None else [alive]
            findings.append(eval_tests.about_eval(seen, plain))
    if optimizer is not None and (seen.used or seen.own_weights):
        findings.append(_membership(seen, optimizer))
    measured = alive is not None and not seen.zeros
    return CheckResult(tuple(findings), seen.influence if measured else None)


def gather_evidence(
    experiment: Experiment, frozen: set[int], in_eval: place_tests.AttentionRecord
) -> Evidence:
    """Run the experiments in training: which rows depend on which samples and weights.

    Args:
        frozen: ids of the parameters that the user has frozen.
        in_eval: what attends in eval.
    """
    model, n = experiment.model, experiment.batch.rows
    with place_tests.record_attention(model) as attention:
        base = experiment.run_recorded()
    after = experiment.run_recorded(replaced_index(n, 0))
    with place_tests.record_attention(model) as more_attention:
        larger = attention_tests.larger_batch(experiment)
    if larger is not None:
        experiment.learn_layout(base, larger[1], len(larger[0]))
        experiment.find_rows(after, n)
        experiment.find_rows(larger[1], len(larger[0]))
    seen = Evidence(experiment, base, after, frozen)
    seen.finite = all(bool(t.detach().isfinite().all()) for t in base.rows)
    training = ((name, m) for name, m in model.named_modules() if m.training)
    seen.dropout = next((name for name, m in training if drops_everything(m)), None)
    leaves = reachable(base.outputs)
    seen.used = _used(seen, leaves)
    seen.in_encoder = attention_tests.moves_encoder_rows(seen)
    # Which outputs are judged?
    pick = stream_tests.find_views(seen)
    seen.judged = pick is not None and seen.finite
    if pick is None:
        return seen
    seen.pick, seen.two_outputs = pick, pick.paired
    seen.doubled = seen.two_outputs or seen.rows == 2 * n
    seen.idle = place_tests.idle_place(attention, in_eval)
    if larger is not None and seen.idle is None:
        seen.idle = place_tests.place_in_groups(
            attention, more_attention, in_eval, (n, len(larger[0]))
        )
    encoder = [p for e in seen.used for p in e.parameters()]
    unseen = [e for e in seen.used if not any(id(p) in leaves for p in e.parameters())]
    if unseen and has_reentrant_checkpoint(base.outputs):
        seen.no_gradients, encoder = "the encoder is in a checkpoint with use_reentrant=True", []
    if seen.doubled and seen.finite and len(pick.views) > 1 and not seen.noisy:
        stream_tests.leave_out_faulty(seen, encoder)
    # What do their rows depend on?
    attention_tests.observe_shifts(seen)
    stream_tests.find_streams(seen, encoder)
    for before, now in seen.passes:
        attention_tests.add_effect(seen, before, now)
    stream_tests.compare_equal_samples(seen)
    stream_tests.find_same_mixed(seen)
    if not (seen.equal and seen.attending[1:].all() and not seen.plain_moved[1:].any()):
        # Only rows without noise of their own are equal for equal samples.
        seen.unsteady = bool(seen.moved(base, experiment.run()).any())
        seen.equal = None if seen.unsteady else seen.equal
    if not seen.attending[1:].all() and not seen.control and not seen.unsteady:
        attention_tests.look_elsewhere(seen)
    quiet = not (seen.control or seen.unsteady or seen.noisy)
    by_passes = not seen.replaced_all and seen.depends is None and seen.equal is not False
    if quiet and by_passes and larger is not None:
        seen.unreached = attention_tests.unreached_rows(seen, *larger)
    if quiet and seen.comparable:
        attention_tests.look_later(seen)
        if seen.idle is None and not seen.unsteady:
            attention_tests.look_at_places(seen, place_tests.places_of(attention, in_eval))
    if seen.no_gradients is not None:
        return seen
    # Which weights act on them, and learn?
    if base.calls:
        seen.influence = influence_of(base, n)
        if seen.influence is not None and not seen.control:
            seen.decayed = decay_warning(seen.used, seen.influence)
    try:
        apart = weight_tests.find_stream_specific(seen)
        weight_tests.follow_gradients(seen, leaves)
        if seen.doubled and not seen.unsteady and not seen.noisy:
            stream_tests.judge_further(seen)
            seen.followed = seen.followed and weight_tests.is_followed(seen)
            if seen.followed and seen.untrained is None and seen.plain_untrained is None:
                seen.unshared = seen.unshared or apart
    except RuntimeError as error:  # a checkpoint elsewhere in the model
        seen.no_gradients = str(error).splitlines()[0]
    return seen


def _used(seen: Evidence, leaves: dict[int, tuple[Tensor, int]]) -> list[BatchFormer]:
    """The encoders, without frozen ones that no pass calls: copies that a wrapper keeps (PEFT)."""
    encoders = {e: parameter_ids([e]) for e in seen.experiment.encoders}
    called = {e for e, _, _ in seen.base.calls}
    called |= {e for e, own in encoders.items() if own & leaves.keys()}
    return [e for e, own in encoders.items() if called and (e in called or not own <= seen.frozen)]


def _guess(model: nn.Module, axis: int) -> Batch:
    failure: ValueError | None = None
    try:
        batch = find_and_trace(model, None, axis)[0]
        if batch.axis == axis:
            return batch
    except ValueError as error:
        failure = error
    raise ValueError(
        f"check(): no batch was given, and none could be guessed for {type(model).__name__}. Pass "
        "one, as your loop does: check(model, x)."
    ) from failure


def _with_gates_open(
    seen: Evidence, in_eval: place_tests.AttentionRecord, optimizer: Optimizer | None
) -> Evidence:
    """Open gates that start at zero, gather the evidence again, and return it if it shows more.

    It then names each gate. A gate must be a weight that training opens: it is not frozen, it is in
    the optimizer if there is one, and it has a gradient while it is closed.
    """
    if not seen.judged or (seen.attends and all(seen.receives_gradient)):
        return seen
    experiment = seen.experiment
    trained = parameter_ids([experiment.model]) - seen.frozen
    if optimizer is not None:
        trained &= {id(p) for group in optimizer.param_groups for p in group["params"]}
    gates = closed_gates(experiment.model, trained)
    if seen.no_gradients is None and gates:
        # A new pass: weights have been moved since the first, so its graph is invalid.
        reached = gradients(experiment.run().rows, [gate for _, gate in gates])
        gates = [gate for gate, ok in zip(gates, reached, strict=True) if ok]
    if not gates:
        return seen
    words = [f"{name} is {'nearly ' if gate.any() else ''}zero" for name, gate in gates]
    with gates_open(gate for _, gate in gates):
        again = gather_evidence(experiment, seen.frozen, in_eval)
    again.zeros = words
    shows = [(s.attends, int(s.attending.sum()), sum(s.receives_gradient)) for s in (seen, again)]
    return again if shows[1] > shows[0] else seen


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
    what = f"{', '.join(gone)} replaced" if gone else "its encoder removed"
    text = f"attached before {', '.join(record.places)}, but {what} since"
    removed = "reset_classifier, a new head, or converted norms removed it"
    return Finding(THERE, False, text, f"{removed}: detach(model), then attach(model) again")


def _found(seen: Evidence, record: Attachment | None) -> Finding:
    if record is not None:
        return Finding(THERE, True, f"attached before {', '.join(record.places)}")
    if seen.used:
        return Finding(THERE, True, f"{len(seen.used)} in the model's own code")
    return Finding(THERE, True, "no BatchFormer module: judged from outside")


def _none_found(encoders: list[BatchFormer]) -> Finding:
    if encoders:
        text = f"{len(encoders)} in the model, but no training pass calls it"
        remedy = "call it in forward: x = two_streams(x, self.batchformer), before the classifier"
        return Finding(THERE, False, text, remedy)
    text = "none found: N rows for N samples, and no sample changes another's row"
    return Finding(THERE, False, text, "call attach(model)")


def _switched_on(model: nn.Module, encoders: list[BatchFormer]) -> list[Finding]:
    """Whether the encoders are on in the current modes; switches them on."""
    if not encoders:
        if not model.training:
            model.train()
        return []
    now = model.training or any(encoder.training for encoder in encoders)
    places = [m._place for m in model.modules() if isinstance(m, WithBatchFormer)]
    owners = [place.encoder for place in places if place.role != "pass"]

    def in_eval() -> list[BatchFormer]:
        if owners:
            return [encoder for encoder in owners if not encoder.training]
        return [] if any(encoder.training for encoder in encoders) else encoders

    off = in_eval()
    if not now or off:
        model.train()
    kept = in_eval()
    for encoder in kept:
        encoder.train()
    if kept:
        text = "the model's own train() leaves its BatchFormer in eval: the identity"
        remedy = (
            "let train() call eval() on no part that holds BatchFormer, or choose another place"
        )
        return [Finding(ON, False, text, remedy)]
    if now and off:
        text = "the model is training, but its BatchFormer is in eval: the identity"
        remedy = "call model.train(), and eval() on no part that holds BatchFormer"
        return [Finding(ON, False, text, remedy)]
    return [Finding(ON, True, "in training" if now else "in eval now; judged after model.train()")]


def _never_called(model: nn.Module) -> list[Finding]:
    """A failure if the user changed a part of the encoder that no pass calls."""
    names = bypassed(model)
    if not names:
        return []
    text = f"{', '.join(names)}: replaced or hooked, but no pass calls it"
    remedy = (
        "hook the encoder layer itself; wrap linear1, linear2 or self_attn.out_proj, which are "
        "called once they are wrapped"
    )
    return [Finding(CALLED, False, text, remedy)]


def _membership(seen: Evidence, optimizer: Optimizer) -> Finding:
    """Whether the optimizer has the encoder's weights, with a learning rate above zero.

    A rate of zero is a failure if it stays zero. It is not judged if a schedule may raise it: the
    rate of every group is zero now, or a scheduler has set an ``initial_lr`` above zero.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    total, inside = len(seen.own_weights), [p for _, p in seen.own_weights if id(p) in groups]
    text = f"{len(inside)} of {total} parameters"
    after = "build the optimizer after attach, e.g. from param_groups(model, lr)"
    # A rate of None, in an optimizer that sets its rates by itself, is not zero.
    still = [groups[id(p)] for p in inside if groups[id(p)].get("lr") == 0]
    if len(inside) < total or not still:
        return Finding(MEMBER, len(inside) == total, text, f"{after}, or pass optimizer=")
    text = f"{text}, {len(still)} of them at a rate of 0"
    all_still = all(group.get("lr") == 0 for group in optimizer.param_groups)
    if all_still or all(float(group.get("initial_lr", 0.0)) for group in still):
        return Finding(MEMBER, None, f"{text} now (a warm-up?)")
    remedy = "give the encoder a learning rate: param_groups(model, lr, lr_factor=1.0)"
    return Finding(MEMBER, False, text, remedy)
