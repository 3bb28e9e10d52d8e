"""Samples of a user's loader: images, texts or rows of a table, and the words shown for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.figures.canvas import shortened

Inputs = Tensor | dict[str, Tensor]
Captions = Sequence[str] | Callable[[Any], Sequence[str]]

LABELS = ("labels", "label")
#: Letters of a caption and values of a table's row that are shown, at most.
MOST_LETTERS, MOST_VALUES = 300, 4


@dataclass(frozen=True, eq=False)
class Samples:
    """M samples as the loader gave them, on the CPU."""

    inputs: Inputs  # what the model is called with: a tensor (M, ...), or tensors (M, ...) by name
    labels: Tensor  # (M,) int64
    # M texts; None for images (M, channels, H, W), which are shown themselves
    captions: tuple[str, ...] | None
    keyword: str | None = None  # what the model calls a tensor that the loader gave by name

    def at(self, rows: Tensor | slice, device: torch.device) -> Inputs:
        """The inputs of some samples."""
        if isinstance(self.inputs, dict):
            return {name: part[rows].to(device) for name, part in self.inputs.items()}
        return self.inputs[rows].to(device)

    @property
    def differentiable(self) -> bool:
        """Whether a loss has a gradient on the inputs: token ids have none."""
        return isinstance(self.inputs, Tensor) and self.inputs.is_floating_point()


def call(model: nn.Module, inputs: Inputs, keyword: str | None = None) -> Any:
    """The model's outputs; inputs by name are keyword arguments.

    Inputs are copied, so that a model that normalises its input in place changes no sample.
    """
    if isinstance(inputs, dict):
        return model(**{name: part.clone() for name, part in inputs.items()})
    return model(inputs.clone()) if keyword is None else model(**{keyword: inputs.clone()})


def collect(
    loader: Iterable[Any],
    most: int,
    captions: Captions | None = None,
    columns: Sequence[str] | None = None,
) -> Samples:
    """The first samples of a loader, at most ``most``, with their captions."""
    if most < 2:
        raise ValueError(f"look_at() needs two or more samples, but most= is {most}.")
    inputs: list[Inputs] = []
    labels: list[Tensor] = []
    texts: list[str] = []
    held = 0
    for batch in loader:
        given, numbers, strings = _parts(batch)
        inputs.append(given)
        labels.append(numbers)
        source = batch if isinstance(batch, Mapping) else batch[0]
        texts += list(captions(source)) if callable(captions) else strings
        held += len(numbers)
        if held >= most:
            break
    if held < 2:
        raise ValueError(f"look_at() needs two or more samples, and the loader gives {held}.")
    joined, keyword = _joined(inputs, most), None
    if isinstance(joined, dict) and len(joined) == 1:  # such as pixel_values
        ((keyword, joined),) = joined.items()
    held = min(held, most)
    for part in joined.values() if isinstance(joined, dict) else (joined,):
        if len(part) != held:
            raise ValueError(
                f"look_at(): there are {held} labels for inputs of shape {tuple(part.shape)}. "
                "Samples must be on the first axis, also for a model that reads (L, N, ...): wrap "
                "it in a module that transposes."
            )
    if captions is not None and not callable(captions):
        texts = list(captions)
    picture = isinstance(joined, Tensor) and joined.ndim == 4
    if picture and (captions is not None or columns is not None):
        raise ValueError("look_at() shows images themselves: leave out captions= and columns=.")
    if texts and len(texts) < held:
        raise ValueError(f"look_at(): there are {len(texts)} captions for {held} samples.")
    if not texts and not picture:
        texts = _described(joined, held, columns)
    lines = (" ".join(str(text).split()) for text in texts[:held])
    shown = None if picture else tuple(shortened(line, MOST_LETTERS) for line in lines)
    return Samples(joined, torch.cat(labels)[:most], shown, keyword)


def _numbers_of_classes(labels: Any) -> Tensor:
    """Labels as int64. Refuse regression targets, which a cast would turn into classes."""
    try:
        given = torch.as_tensor(labels).detach().cpu()
    except (TypeError, ValueError):  # names of classes
        given = torch.tensor(torch.nan)
    whole = given.long()
    if not torch.equal(whole.to(given.dtype), given):
        raise ValueError(
            "look_at(): the labels of the loader, the second part of its batches, are not whole "
            "numbers. Use a loader that gives one class from 0 on for each sample. For a model of "
            "several inputs, let it give a dict of these with `labels`."
        )
    if not whole.ndim:
        raise ValueError(
            "look_at(): the loader gives single samples. Wrap the data set in a DataLoader, which "
            "gives batches."
        )
    return whole


def _parts(batch: Any) -> tuple[Inputs, Tensor, list[str]]:
    """The inputs, the labels and the strings, if any, of one batch."""
    given, labels = batch, None
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        given, labels = batch[0], batch[1]
    if labels is None or not isinstance(given, (Tensor, Mapping)):
        raise TypeError(
            f"look_at(): the loader gives {type(batch).__name__}. Use a loader that gives (images, "
            "labels) or (features, labels), or a dict of tensors that has `labels`."
        )
    numbers = _numbers_of_classes(labels)
    if isinstance(given, Tensor):
        return given.detach().cpu(), numbers, []
    tensors = {
        str(name): part.detach().cpu()
        for name, part in given.items()
        if name not in LABELS and isinstance(part, Tensor)
    }
    lists = (p for p in given.values() if isinstance(p, list) and len(p) == len(numbers))
    return tensors, numbers, next((p for p in lists if all(isinstance(s, str) for s in p)), [])


def _joined(parts: Sequence[Inputs], most: int) -> Inputs:
    first = parts[0]
    if isinstance(first, dict):
        padded = "attention_mask" in first
        return {
            name: _cat([part[name] for part in parts if isinstance(part, dict)], padded)[:most]
            for name in first
        }
    return _cat([part for part in parts if isinstance(part, Tensor)], False)[:most]


def _cat(parts: Sequence[Tensor], padded: bool) -> Tensor:
    """Concatenate all rows; with an attention mask, pad shorter batches with 0."""
    if len({part.shape[1:] for part in parts}) > 1:
        if not padded or any(part.ndim != 2 for part in parts):
            raise ValueError(
                "look_at(): batches have different shapes. Pad all samples to one length, or give "
                "a dict with an attention_mask."
            )
        longest = max(part.shape[1] for part in parts)
        parts = [F.pad(part, (0, longest - part.shape[1])) for part in parts]
    return torch.cat(list(parts))


def _described(inputs: Inputs, count: int, columns: Sequence[str] | None) -> list[str]:
    """Captions for samples without any: values of a table's row, token ids, or sample numbers."""
    if isinstance(inputs, dict):
        inputs = inputs.get("input_ids", next(iter(inputs.values())))
    if inputs.ndim != 2:
        return [f"sample {i + 1}" for i in range(count)]
    if not inputs.is_floating_point():
        return [" ".join(map(str, row.tolist())) for row in inputs]
    return table_captions(inputs, columns)


def table_captions(values: Tensor, columns: Sequence[str] | None = None) -> list[str]:
    """For each row of a table (M, F), the values that are farthest from their column's mean.

    Distances are in standard deviations of the column; the farthest value comes first.

    >>> table_captions(torch.tensor([[1.0, 5.0], [1.0, 9.0], [4.0, 6.0]]), ["age", "size"])
    ['size 5, age 1', 'size 9, age 1', 'age 4, size 6']
    """
    names = [f"column {i + 1}" for i in range(values.shape[1])] if columns is None else columns
    if len(names) != values.shape[1]:
        raise ValueError(
            f"look_at(): the samples have {values.shape[1]} columns, and columns= names "
            f"{len(names)}."
        )
    values = values.double()
    spread = values.std(0, correction=0)
    far = ((values - values.mean(0)) / spread.clamp_min(1e-12)).abs()
    order = far.argsort(dim=1, descending=True, stable=True)[:, :MOST_VALUES].tolist()
    return [
        ", ".join(f"{names[i]} {_number(row[i])}" for i in best)
        for best, row in zip(order, values.tolist(), strict=True)
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:.3g}"
