"""Is it acting? Perturb one sample and see who moves, in training and in eval."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from batchformer.attach import RECORD, Attachment, detach, same_bits
from batchformer.heads import output_tensors
from batchformer.module import BatchFormer, without_exchange
from batchformer.observe import (
    Features,
    attention_alone,
    heard_by,
    in_use,
    moved,
    moved_rows,
    observe,
    reached_by,
    rows_of,
    with_copy,
)
from batchformer.probe import Batch, fit_batch
from batchformer.snapshot import untouched
from batchformer.swap import Swapped
from batchformer.wrappers import unwrap

UNIT_NOISE: tuple[Features, ...] = ("unit_and_noise", "unit_and_loud_noise")


@dataclass(frozen=True)
class Finding:
    """One question, its answer, and what to do if the answer is no."""

    question: str
    passed: bool
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The findings of :func:`check`; true if all passed, a table when printed."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        width = max(len(finding.question) for finding in self.findings)
        rows = []
        for finding in self.findings:
            mark = "ok  " if finding.passed else "FAIL"
            rows.append(f"{mark}  {finding.question:<{width}}  {finding.seen}")
            if not finding.passed:
                rows.append(f"{'':6}{'':{width}}  -> {finding.remedy}")
        failed = len(self.failures)
        rows.append(
            "BatchFormer is acting." if not failed else f"{failed} of {len(self.findings)} failed."
        )
        return "\n".join(rows)


def check(
    model: nn.Module,
    batch: Any,
    optimizer: Optimizer | None = None,
    *,
    mixed_only: bool = False,
) -> CheckResult:
    """Report whether BatchFormer acts in training, is absent in eval, and is being trained.

    Works on models prepared by ``attach``, on models that call :class:`BatchFormer` themselves,
    and, from the outside, on any other attempt at the idea. One sample is replaced by a copy of
    another; BatchNorm and stochastic layers are in eval meanwhile, so only attention can carry the
    change to other samples. The model is left as it was, bit for bit. No other rank is
    waited for: with ``exchange=True`` the samples at hand attend among themselves.

    Args:
        model: the model, wrapped or not.
        batch: at least two different samples: inputs as the model takes them; an ``(x, y)`` pair
            or labels in a dict are understood.
        optimizer: if given, is asked whether it holds every BatchFormer parameter.
        mixed_only: the model's own code trains on the mixed stream alone, on purpose; ``attach``
            has noted it for models that it prepared.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> check(model, torch.randn(5, 8)).passed
    True
    """
    inner = unwrap(model)
    # A wrapper that came after attach (PEFT) has the record on the model inside it.
    holder = next((m for m in inner.modules() if RECORD in m.__dict__), inner)
    record: Attachment | None = holder.__dict__.get(RECORD)
    modules = [m for m in inner.modules() if isinstance(m, BatchFormer)]
    findings = [_presence(holder, record, modules)]
    if record is not None and not modules:
        return CheckResult(tuple(findings))
    with untouched(inner), without_exchange(inner):
        calls = fit_batch(inner, batch, record.input_axis if record else 0)
        if calls.rows < 2:
            raise ValueError("check() needs a batch of at least 2 samples.")
        modules = in_use(inner, modules, calls, record is not None)
        mixed_only |= record is not None and record.streams == "mixed_only"
        control = bool(modules) and all(m.attend == "self" for m in modules)
        findings += _in_training(inner, modules, calls, record is not None, mixed_only, control)
        findings += _in_eval(inner, calls, attached=record is not None)
        if modules:
            findings.append(_gradients(inner, modules, calls, record is not None))
    if optimizer is not None and modules:
        findings.append(_membership(modules, optimizer))
    return CheckResult(tuple(findings))


def _presence(model: nn.Module, record: Attachment | None, modules: list[BatchFormer]) -> Finding:
    question = "is it there?"
    if record is None:
        seen = f"{len(modules)} in the model's own code" if modules else "judged from outside"
        return Finding(question, True, seen)
    named = dict(model.named_modules())
    gone = [
        name
        for name in record.changed
        if name not in named or not any(isinstance(m, Swapped) for m in named[name].modules())
    ]
    if gone:
        return Finding(
            question,
            False,
            f"attached before {', '.join(record.places)}, but {', '.join(gone)} replaced since",
            "reset_classifier, a new head, or converted norms removed it: detach(model), then "
            "attach(model) again",
        )
    return Finding(question, True, f"attached before {', '.join(record.places)}")


def _in_training(
    model: nn.Module,
    modules: list[BatchFormer],
    batch: Batch,
    attached: bool,
    mixed_only: bool,
    control: bool,
) -> Iterator[Finding]:
    with attention_alone(model, modules, attached):
        before, rows = observe(model, modules, batch)
        after, _ = observe(model, modules, with_copy(batch))
        n, met = batch.rows, moved(before.mixed, after.mixed)
        seen = f"replacing one sample moves {int(met.sum())} of {n - 1} others in the mixed stream"
        if not met.all() and modules:
            # An untrained network may map all samples to almost the same features, or to huge ones
            # that have one sample for all; and one among many may be lost in rounding.
            steady, _ = observe(model, modules, batch, features="unit")
            for noise in UNIT_NOISE:
                noisy, _ = observe(model, modules, batch, features=noise)
                met |= moved(steady.mixed, noisy.mixed)
            seen += f"; with features of unit scale and noise for one, {int(met.sum())}"
    doubled = rows == 2 * n
    yield Finding(
        "two streams in training?",
        doubled or (mixed_only and rows == n),
        f"{rows} rows for {n} samples" + (" (mixed_only, as asked)" if mixed_only else ""),
        "train one classifier on plain AND mixed rows: attach(model) or two_streams(x, module)",
    )
    yield Finding(
        "do samples meet?",
        not met.any() if control else bool(met.all()),
        seen + (" (attend='self', the control)" if control else ""),
        "attention runs over an axis without the samples; the sequence axis must be the batch",
    )
    if before.plain is not None and after.plain is not None:
        others = moved_rows(before.plain, after.plain)
        yield Finding(
            "do plain rows stay?",
            others == 0,
            f"replacing one sample moves {others} of {n - 1} others in the plain stream",
            "the model mixes samples elsewhere (not BatchNorm, which is in eval here): look for "
            "batch statistics, mixup inside the model, or attention over the wrong axis",
        )


def _in_eval(model: nn.Module, batch: Batch, *, attached: bool) -> Iterator[Finding]:
    model.eval()
    question = "is eval the plain model?"
    with torch.no_grad():
        if attached:
            model.train()  # tensors kept for eval, which may not be copied, are dropped here
            plain = detach(copy.deepcopy(model)).eval()
            model.eval()
            sizes = sorted({*range(1, min(batch.rows, 4) + 1), batch.rows})
            parts = [batch.head(size) for size in sizes]
            equal = [
                all(map(same_bits, output_tensors(p.run(model)), output_tensors(p.run(plain))))
                for p in parts
            ]
            bad = [size for size, same in zip(sizes, equal, strict=True) if not same]
            seen = f"batches of {', '.join(map(str, sizes))}: " + (
                f"outputs differ for {bad}" if bad else "equal to the bit"
            )
            yield Finding(question, not bad, seen, "something besides attach changes eval outputs")
            return
        before = rows_of(batch.run(model), batch.rows)
        after = rows_of(with_copy(batch).run(model), batch.rows)
    rows, n = before.shape[0], batch.rows
    others = moved_rows(before, after) if rows == n else 0
    yield Finding(
        question,
        rows == n and others == 0,
        f"{rows} rows for {n} samples; replacing one sample moves {others} others",
        "predictions depend on batch-mates: BatchFormer must be the identity in eval",
    )


def _gradients(
    model: nn.Module, modules: list[BatchFormer], batch: Batch, attached: bool
) -> Finding:
    named = [(n, p) for m in modules for n, p in m.named_parameters()]
    frozen = [name for name, p in named if not p.requires_grad]
    for _, parameter in named:
        parameter.requires_grad_(True)
    with attention_alone(model, modules, attached), torch.enable_grad(), heard_by(modules) as heard:
        outputs = output_tensors(batch.run(model))
        reached = reached_by(outputs, [p for _, p in named])
        note = ""
        if not any(reached):
            # A classifier initialised to zero passes no gradient before its own first step.
            reached = reached_by([mixed for _, mixed in heard], [p for _, p in named])
            note = " (the classifier's weights are zero: it begins after the first step)"
    dead = [name for (name, _), alive in zip(named, reached, strict=True) if not alive]
    if frozen:
        return Finding(
            "does it learn?",
            False,
            f"{len(frozen)} of {len(named)} parameters are frozen",
            "call requires_grad_(True) on them, unless a frozen control is what you want",
        )
    return Finding(
        "does it learn?",
        not dead,
        f"{len(named) - len(dead)} of {len(named)} parameters receive gradient{note}",
        f"no gradient reaches {', '.join(dead[:4])}: are the mixed rows in the loss?",
    )


def _membership(modules: list[BatchFormer], optimizer: Optimizer) -> Finding:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    mine = [p for m in modules for p in m.parameters()]
    inside = sum(id(p) in held for p in mine)
    return Finding(
        "is it in the optimizer?",
        inside == len(mine),
        f"{inside} of {len(mine)} parameters",
        "build the optimizer after attach, e.g. from param_groups(model, lr), or pass optimizer=",
    )
