"""The result of ``check``: its questions, and the answers that the evidence gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchformer.plug.evidence import Evidence
from batchformer.plug.insertion import WithBatchFormer

THERE = "is it there?"
ON = "is it on?"
CALLED = "is every part of it called?"
STREAMS = "two streams in training?"
ATTEND = "do samples attend to each other?"
STAY = "do plain rows stay?"
FIRST = "plain rows first?"
EQUAL = "are equal samples treated equally?"
OWN = "is each mixed row that of its own sample?"
SHARED = "one shared classifier?"
LEARN = "does every encoder weight learn?"
TRAIN = "do both streams train the network?"
ALIVE = "is the encoder still alive?"
EVAL = "is eval the plain model?"
MEMBER = "is it in the optimizer?"

CONTROL = "samples attend only to themselves"
AFTER_CLASSIFIER = (
    "no layer with weights follows the encoder. Unless the classifier is in your loss, the encoder "
    "stands after the classifier: move it before, logits = head(two_streams(x, module))"
)


@dataclass(frozen=True)
class Finding:
    """One question, its answer, and what to do if the answer is no.

    ``passed`` is None if the question could not be judged; ``seen`` says why.
    """

    question: str
    passed: bool | None
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The findings of :func:`check`; true if BatchFormer is proven to act, a table when printed.

    It is true if nothing failed and samples were seen to attend to each other. If that could not
    be judged, it is false without failures: nothing is wrong, and nothing is proven. Other
    questions may stay open (``passed`` is None in a finding). ``influence`` is how far one sample
    can change another's loss, in nats; None if not measured.
    """

    findings: tuple[Finding, ...]
    influence: float | None = None

    @property
    def passed(self) -> bool:
        return not self.failures and not self._attention_open

    @property
    def _attention_open(self) -> bool:
        return any(f.question == ATTEND and f.passed is None for f in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.passed is False)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        width = max(len(finding.question) for finding in self.findings)
        rows = []
        for finding in self.findings:
            mark = {True: "ok  ", False: "FAIL", None: "?   "}[finding.passed]
            seen = finding.seen if finding.passed is not None else f"not judged: {finding.seen}"
            rows.append(f"{mark}  {finding.question:<{width}}  {seen}")
            if finding.passed is False:
                rows.append(f"{'':6}{'':{width}}  -> {finding.remedy}")
        failed, answers = len(self.failures), [finding.passed for finding in self.findings]
        last = f"{failed} of {len(answers)} failed" if failed else "BatchFormer is acting"
        if not failed and any(f.seen.startswith(CONTROL) for f in self.findings):
            last = f"{last} as the control: {CONTROL}"
        open_ones = [f for f in self.findings if f.passed is None]
        if not failed and self._attention_open:
            last = "Nothing failed, but it is not proven that BatchFormer is acting"
        elif not failed and any(f.seen == AFTER_CLASSIFIER for f in open_ones):
            last = "Nothing failed, but no classifier follows the encoder"
        rows.append(last + (f"; {answers.count(None)} not judged." if None in answers else "."))
        return "\n".join(rows)


def about_streams(seen: Evidence, mixed_only: bool) -> Iterator[Finding]:
    """Findings about the rows: two streams, attention, order, equal samples."""
    n, others = seen.samples, seen.samples - 1
    one = mixed_only and seen.rows == n
    rows = f"{seen.rows} rows for {n} samples" + (" (mixed_only, as asked)" if one else "")
    if seen.two_outputs:
        rows = f"two outputs of {n} rows for {n} samples"
    yield Finding(
        STREAMS,
        seen.doubled or one,
        rows,
        "train one classifier on plain AND mixed rows: attach(model) or two_streams(x, module)",
    )
    if not seen.judged:
        if seen.finite:
            yield Finding(ATTEND, None, "the rows are not those of the samples")
        else:
            yield Finding(
                ATTEND,
                False,
                "the outputs are not finite",
                "find the NaN or the infinity first: in the weights, the batch or the layers",
            )
        return
    met = int(seen.attending[1:].sum())
    noise = "the outputs change from pass to pass, with noise that cannot be held fixed"
    if seen.uneven:
        noise = "how many random numbers the model draws depends on the samples"
    text = f"replacing one sample moves {met} of {others} others in the mixed stream"
    if seen.replaced_all:
        text = f"{met} of {others} mixed rows depend on another sample"
    remedy = (
        "attention runs over an axis without the samples; the sequence axis must be the batch "
        "(nn.TransformerEncoderLayer: batch_first=False and x.unsqueeze(1))"
    )
    if seen.in_encoder:
        remedy = (
            "the encoder mixes the samples, but its rows do not all reach the outputs: "
            "x = two_streams(x, module), and the classifier reads x"
        )
    if seen.dropout is not None:
        remedy = f"{seen.dropout} has a dropout of 1, so nothing passes it: choose less, e.g. 0.5"
    remedy = seen.decayed or remedy
    passed: bool | None = met == 0 if seen.control else met == others
    if seen.unreached is not None:
        passed, text = (
            False,
            "{} of {} mixed rows do not depend on the first sample".format(*seen.unreached),
        )
        remedy = (
            "every sample must attend to the whole batch: call the encoder once, with all rows, "
            "not with groups of them, for batches of any size"
        )
    if passed and "attend" in seen.faults:
        passed, text = False, seen.faults["attend"]
    if passed and seen.idle is not None:
        passed, text = False, seen.idle
        remedy = (
            "at every place attention must run over all samples (nn.TransformerEncoderLayer: "
            "batch_first=False and x.unsqueeze(1)), without a mask that keeps them apart"
        )
    if passed and seen.negligible and seen.decayed is None:
        passed = False
        text = f"a sample moves other mixed rows by {seen.effect:.1g} of what it moves its own"
        remedy = (
            "mixed rows are hardly mixed: leave out the small constant that the encoder's rows are "
            "multiplied by, x = two_streams(x, module)"
        )
        if any(isinstance(module, WithBatchFormer) for module in seen.experiment.model.modules()):
            # No constant then: the network itself gives little weight to what passes the place.
            passed, text = None, f"{text}: paths around the place outweigh it in this network"
    if passed and seen.later is not None:
        passed, text = False, seen.later
        remedy = "mix the samples in every training step: no counter or flag may switch it off"
    if (seen.unsteady and passed and not seen.control) or seen.uneven:
        passed, text = None, noise
    elif seen.alike and not passed and seen.dropout is None:
        passed, text = None, "all samples have almost the same outputs (a deep, untrained network?)"
    elif seen.control:
        text = f"{CONTROL} (attend='self', the control): {text}"
    yield Finding(ATTEND, passed, text, remedy)
    if not seen.doubled:
        return
    moved_rows = 0 if seen.misplaced else int(seen.plain_moved[1:].sum())
    stays = not moved_rows and not seen.plain_encoded
    text = f"replacing one sample moves {moved_rows} of {others} others in the plain stream"
    remedy = (
        "the model mixes samples elsewhere (not in BatchNorm, which is held fixed here): look for "
        "batch statistics, mixup inside the model, or attention over the wrong axis"
    )
    if seen.plain_encoded:
        text = "the plain rows depend on the encoder too"
        remedy = (
            "half of the rows must be the features as they were: x = two_streams(x, module), and "
            "nothing after it may mix rows (mixup, batch statistics, another encoder)"
        )
    if stays and "stay" in seen.faults:
        stays, text = False, seen.faults["stay"]
    if (seen.unsteady or seen.uneven) and not stays:
        yield Finding(STAY, None, noise)
    else:
        yield Finding(STAY, stays, text, remedy)
    remedy = "targets are doubled as plain then mixed, each in the order of the samples"
    if seen.misplaced:
        yield Finding(FIRST, False, "the rows of a stream are not in the order of samples", remedy)
    elif "first" in seen.faults and seen.order in (None, "plain, mixed"):
        yield Finding(FIRST, False, seen.faults["first"], remedy)
    elif seen.two_outputs:
        yield Finding(FIRST, True, "each stream is an output of its own")
    elif seen.order is None:
        yield Finding(FIRST, None, "the two streams cannot be told apart")
    else:
        yield Finding(FIRST, seen.order == "plain, mixed", seen.order, remedy)
    if seen.same_mixed and seen.attending.any():  # pooled; if nothing arrives, that was said
        yield Finding(
            OWN,
            False,
            "all mixed rows are one and the same",
            "give each sample a mixed row in which its own features have a part: do not pool the "
            "encoder's rows over the batch",
        )
    if seen.equal is not None:
        equal = seen.equal and "equal" not in seen.faults
        text = "their mixed rows are equal" if equal else "their mixed rows differ"
        text = seen.faults.get("equal", text) if seen.equal else text
        remedy = (
            "a batch has no order: remove the positional encoding, causal mask or recurrence over "
            "samples"
        )
        yield Finding(EQUAL, equal, text, remedy)
    else:
        yield Finding(EQUAL, None, "each row draws its own random numbers")


def about_training(seen: Evidence, frozen: set[int], zeros: list[str]) -> Iterator[Finding]:
    """Findings about weights: a shared classifier, gradients for all."""
    if not seen.judged:
        return
    if seen.no_gradients is not None:
        yield Finding(LEARN, None, seen.no_gradients)
        return
    if seen.doubled and seen.order is not None:
        if seen.unshared is not None:
            yield Finding(
                SHARED,
                False,
                f"{seen.unshared} acts on one stream alone",
                "use the same classifier for both streams: head(two_streams(x, module)). Without "
                "it, accuracy falls from 50.9 to 42.4 in the paper",
            )
        elif not seen.followed:
            yield Finding(SHARED, None, AFTER_CLASSIFIER)
        else:
            yield Finding(SHARED, True, "its weights act on both streams")
    note = f" ({zeros[0]}: it begins after the first step)" if zeros else ""
    held = [name for name, p in seen.own_weights if id(p) in frozen]
    dead = [name for (name, _), ok in zip(seen.own_weights, seen.reached, strict=True) if not ok]
    total = len(seen.own_weights)
    if held:
        yield Finding(
            LEARN,
            False,
            f"{len(held)} of {total} parameters are frozen",
            "call requires_grad_(True) on them, unless you want a frozen control",
        )
    elif seen.used:
        yield Finding(
            LEARN,
            not dead,
            f"{total - len(dead)} of {total} parameters receive gradient{note}",
            f"no gradient reaches {', '.join(dead[:4])}: are the mixed rows in the outputs, and "
            "not detached or rounded?",
        )
    elif seen.cut_off is not None:
        yield Finding(
            LEARN,
            False,
            f"{seen.cut_off} acts on the mixed rows and receives no gradient of them",
            "between the encoder and the outputs, remove the detach(), no_grad(), round() or "
            "whatever else stops the gradient",
        )
    elif seen.stray or (seen.order is not None and seen.attending.any() and not total):
        yield Finding(
            LEARN,
            False,
            "the encoder's weights are not among model.parameters()",
            "build the encoder once, in __init__, as a submodule: one that is built in forward, or "
            "kept in a list, is not trained",
        )
    elif seen.doubled and total:
        yield Finding(LEARN, True, f"{total} parameters of the mixed stream have gradient{note}")
    else:
        yield Finding(LEARN, None, "the encoder's weights cannot be text from the others")
    if seen.doubled and seen.order is not None:
        text = "gradients of both reach the same weights"
        for stream, name in (("plain", seen.plain_untrained), ("mixed", seen.untrained)):
            if name is not None:
                text = f"{stream} rows give {name} no gradient"
        yield Finding(
            TRAIN,
            seen.untrained is None and seen.plain_untrained is None,
            text,
            "remove the detach() or no_grad() around a stream",
        )


def about_life(
    seen: Evidence, zeros: list[str], explained: bool
) -> tuple[float | None, list[Finding]]:
    """The influence, if it was measured, and the finding about it.

    Args:
        explained: something failed already, so no influence at all is no fault of its own.
    """
    if not seen.base.calls or seen.control or not seen.judged or seen.no_gradients is not None:
        return None, []
    measured = None if zeros else seen.influence
    if measured is None:
        reason = zeros[0] if zeros else "the outputs have no rows of samples"
        return None, [Finding(ALIVE, None, reason)]
    text = f"one sample can change another's loss by {measured:.2g} nats"
    if not measured and explained and seen.decayed is None:
        return measured, [Finding(ALIVE, None, f"{text}, as something failed before")]
    if not measured:
        remedy = "no sample reaches the loss of another: is everything dropped, or detached?"
        return measured, [Finding(ALIVE, False, text, seen.decayed or remedy)]
    return measured, [Finding(ALIVE, seen.decayed is None, text, seen.decayed or "")]
