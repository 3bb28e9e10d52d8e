"""Does the encoder still act? ``influence``: how far one sample can change another's loss.

Weight decay can shrink an attached encoder to nothing. Mixed rows then no longer depend on other
samples, and the loss does not show it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.nn.arguments import a_model
from batchformer.nn.module import BatchFormer, encoders_of
from batchformer.plug.batches import few_samples
from batchformer.plug.evidence import Evidence
from batchformer.plug.example import Batch
from batchformer.plug.findings import ALIVE, NEXT_TO_NOTHING, Finding
from batchformer.plug.insertion import find_record, unwrap
from batchformer.plug.noise import isolated, without_noise
from batchformer.plug.observe import Experiment, Pass
from batchformer.plug.preserve import preserve_state
from batchformer.torch_private import gradients_of

#: Relative to the size at initialisation. Below this (1/e), weight decay has shrunk a weight.
SHRUNK = 0.37

#: The name under which the adapters log :func:`influence`.
LOGGED_AS = "batchformer_influence"

DECAYED = (
    "weight decay has shrunk the encoder to nothing: one sample changes another's loss by "
    "{influence:.1g} nats at most, and its attention weights have {left:.1%} of their initial "
    "size. Give it its own weight decay: param_groups(model, lr, module_weight_decay=0.0)"
)


def influence(model: nn.Module, batch: Any) -> float:
    """How far one sample can change the loss of another, in nats; the mean over pairs.

    For use in a training loop. It is the laboratory's measure, on a few samples of the batch: the
    gradient of the loss of sample i with respect to the feature of sample j, times the distance
    between two features. The logits are the mean of both streams. No labels are needed: each
    sample is assigned the class that the model finds least likely, so a small training loss does
    not look like a dead encoder. If all outputs of a sample move together (one output, ordinal
    regression), it is the change of the output itself. The model is left as it was.

    Args:
        model: wrapped or not, with BatchFormer in it.
        batch: as for :func:`batchformer.check`.

    Raises:
        ValueError: no BatchFormer is called in a training pass.
    """
    a_model("influence()", model)
    inner = unwrap(model)
    encoders = encoders_of(inner)
    _, record = find_record(inner)
    with isolated(inner):
        axis = record.input_axis if record else 0
        few = few_samples(inner, batch, axis, "influence()")
        if not any(encoder.training for encoder in encoders):
            inner.train()
        with without_noise(inner, few):
            seen = Experiment(inner, few, encoders).run()
            if not seen.calls:
                raise ValueError(
                    "influence(): no BatchFormer is called in training. Call attach(model) first."
                )
            measured = influence_of(seen, few.rows)
    if measured is None:
        raise ValueError("influence(): the model gives neither N nor 2N rows for N samples.")
    return measured


def influence_as_it_is(model: nn.Module, batch: Batch, encoders: list[BatchFormer]) -> float | None:
    """:func:`influence` on a few samples, for ``check``; None if it cannot be measured."""
    try:
        with preserve_state(model), without_noise(model, batch):
            seen = Experiment(model, batch, encoders).run()
            return influence_of(seen, batch.rows) if seen.calls else None
    except RuntimeError:  # a checkpoint through which no gradient can be taken
        return None


def influence_of(seen: Pass, samples: int) -> float | None:
    """:func:`influence` in an observed pass; None if its outputs have no rows.

    Of several outputs, the first in which samples influence one another counts.
    """
    axis = seen.calls[0][0].batch_axis
    outputs = [_joint(t, samples, axis) for t in seen.outputs if t.requires_grad]
    found = [_influence_on(logits, seen, axis) for logits in outputs if logits is not None]
    return next((size for size in found if size), 0.0) if found else None


def _influence_on(logits: Tensor, seen: Pass, axis: int) -> float:
    size = _influence_by(_loss, logits, seen, axis)
    if size < NEXT_TO_NOTHING:
        # The thresholds of an ordinal regression move all outputs of a sample together, which a
        # softmax does not notice.
        together = _influence_by(_change, logits, seen, axis)
        if size <= 8 * torch.finfo(logits.dtype).eps * together:  # rounding
            return together
    return size


def _influence_by(loss: Callable[[Tensor], Tensor], logits: Tensor, seen: Pass, axis: int) -> float:
    _, x, _ = seen.calls[0]
    features = x.detach().movedim(axis, 0).flatten(1).double()
    apart = (2 * (features - features.mean(0)).square().sum(1).mean()).sqrt()
    lengths = []
    for row in range(len(logits)):
        (gradient,) = gradients_of(loss(logits[row]), [x])
        if gradient is None:
            return 0.0
        length = gradient.movedim(axis, 0).flatten(1).double().norm(dim=1)
        lengths.append(torch.cat((length[:row], length[row + 1 :])))
    return float(torch.stack(lengths).mean() * apart)


def _joint(tensor: Tensor, samples: int, axis: int) -> Tensor | None:
    """Logits (N, ...): the mean of both streams, if there are two; None without rows of samples."""
    sizes = tensor.shape[:2]
    order = [a for a in (0, axis, 1) if a < len(sizes)]
    for rows in (2 * samples, samples):
        for found in order:
            if sizes[found] == rows:
                parts = tensor.movedim(found, 0)
                return parts if rows == samples else torch.stack(parts.chunk(2)).mean(0)
    return None


def _loss(logits: Tensor) -> Tensor:
    """Cross-entropy of one sample, (K,), (L, K) or (K, H, W), for its least likely classes."""
    if logits.ndim > 2:
        logits = logits.movedim(0, -1)
    if logits.ndim == 0 or logits.shape[-1] < 2:
        return _change(logits)
    logits = _wide(logits)
    rows = logits.reshape(-1, logits.shape[-1])
    return F.cross_entropy(rows, rows.argmin(1))


def _change(logits: Tensor) -> Tensor:
    """The output itself as the loss: for one number per sample, or several that move together."""
    return _wide(logits).mean()


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def weight_left(encoders: Iterable[BatchFormer]) -> float:
    """The smallest size of an attention matrix, relative to that in a new encoder."""
    left = []
    for encoder in encoders:
        for layer in encoder.layers:
            attention: Any = layer.self_attn
            width = attention.embed_dim  # that of a bottleneck, if there is one
            # torch initialises the first by Xavier, the second uniformly within 1 / sqrt(C).
            for weight, initial in (
                (attention.in_proj_weight, (2 / (4 * width)) ** 0.5),
                (getattr(attention.out_proj, "weight", None), (1 / (3 * width)) ** 0.5),
            ):
                if isinstance(weight, Tensor):  # a wrapper of the layer may have none
                    size = weight.detach().float().square().mean().sqrt()
                    left.append(float(size) / initial)
    return min(left, default=1.0)


def decay_warning(encoders: Iterable[BatchFormer], measured: float) -> str | None:
    """The warning to show if weight decay has shrunk the encoders to nothing, else None."""
    left = weight_left(encoders)
    if measured >= NEXT_TO_NOTHING or left >= SHRUNK:
        return None
    return DECAYED.format(influence=measured, left=left)


def about_life(seen: Evidence, explained: bool) -> Finding | None:
    """Whether the encoder is alive; None if there is nothing to measure.

    Args:
        explained: an earlier failure explains why there is no influence at all.
    """
    if not seen.base.calls or seen.control or not seen.judged or seen.no_gradients is not None:
        return None
    if seen.zeros or seen.influence is None:
        reason = seen.zeros[0] if seen.zeros else "the outputs have no rows of samples"
        return Finding(ALIVE, None, reason)
    text = f"one sample can change another's loss by {seen.influence:.2g} nats"
    if seen.influence:
        return Finding(ALIVE, seen.decayed is None, text, seen.decayed or "")
    if explained and seen.decayed is None:
        return Finding(ALIVE, None, f"{text}, as something failed before")
    # No pass tells samples apart, though the features are not zero, as they would be if dropped.
    alike = seen.depends is not None or (seen.alike and bool(seen.base.calls[0][1].any()))
    if alike and seen.decayed is None:
        return Finding(ALIVE, None, f"{text}, as all samples have the same features")
    remedy = "no sample reaches the loss of another: is everything dropped, or detached?"
    return Finding(ALIVE, False, text, seen.decayed or remedy)


def watched_influence(model: nn.Module, batch: Any) -> float | None:
    """:func:`influence` for the adapters: warns if weight decay has shrunk the encoder to nothing.

    None if this batch cannot show it (one sample, or equal ones), or if no gradient can be taken (a
    checkpoint with ``use_reentrant=True``): logging must not stop a training.
    """
    try:
        measured = influence(model, batch)
    except (TypeError, ValueError, RuntimeError):
        return None
    reason = decay_warning(encoders_of(model), measured)
    if reason is not None:
        warnings.warn(f"BatchFormer: {reason}", stacklevel=3)
    return measured
