"""The batches of ``check``'s experiments: samples that differ, one replaced, or repeated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from batchformer.nn.streams import leaves
from batchformer.plug.classifier import output_tensors
from batchformer.plug.example import Batch, SampleList, as_batch, fit_batch, run_without_values
from batchformer.plug.preserve import preserve_state

#: Samples that an experiment needs; more would only take longer.
FEW = 4

#: From this many pixels a side on, half the resolution shows as much.
LARGE = 128


def few_samples(model: nn.Module, example: Any, axis: int, where: str = "check()") -> Batch:
    """A few samples of the example, as the model accepts them.

    The first differs from the one that :func:`replace_sample` puts in its place. Errors begin with
    ``where``.

    Raises:
        TypeError: the samples are packed, or in a list and the model returns no row for each.
        ValueError: there are fewer than two samples, all are equal, or the model needs all of them.
    """
    listed = _as_list_of_samples(model, example, where)
    given = listed or as_batch(example, axis)
    if given.rows < 2:
        raise ValueError(f"{where} needs at least 2 samples; this batch has {given.rows}.")
    given = listed or _without_tables(model, given)
    other = next((row for row in range(1, given.rows) if _differ(given, row)), None)
    if other is None:
        raise ValueError(
            f"{where} needs samples that differ, but those of this batch are equal in every tensor "
            "that has a row for each. Pass different ones. If samples share the others, as nodes "
            "of graphs do, check the part that computes the logits: check(model.head, features)."
        )
    rest = [row for row in range(1, given.rows) if row != other]
    chosen = [0, *rest[: FEW - 2]]
    chosen.insert(-1 if len(chosen) > 1 else 1, other)  # second to last, or last of two
    few = select_samples(given, chosen)
    if listed:
        return few
    call: Any = few.kwargs if few.kwargs else few.args
    try:
        fitted = fit_batch(model, call, axis)
    except Exception as error:
        try:
            fit_batch(model, example, axis)
        except Exception:
            raise error from None
        raise ValueError(
            f"{where}: the model accepts this batch of {given.rows}, but not {few.rows} of its "
            f"samples: {error}. Rows that belong together, as the nodes of a graph, cannot be "
            f"taken apart. Check the part that computes the logits, with that part's inputs: "
            f"check(model.head, features)."
        ) from error
    # If only the first argument was kept, and it is a tuple or dict, its parts have other paths.
    if few.kwargs or any(part is few.args[0] for part in fitted.args[:1]):
        fitted = fitted._replace(samples=few.samples)
    return _half_resolution(model, fitted)


def _without_tables(model: nn.Module, batch: Batch) -> Batch:
    """The batch, with tables told apart: tensors that only happen to have as many rows as samples.

    The model accepts such a table (prototypes, an adjacency matrix) whole beside fewer samples, and
    its last rows act on the outputs. Those of an attention mask do not: models of Hugging Face read
    only as many rows of it as there are samples.
    """
    rows = next((few for few in range(2, batch.rows) if batch.rows % few), 0)
    parts = leaves((batch.args, batch.kwargs))
    paths = [path for path, part in parts if batch.has_samples(path, part)]
    if not rows or len(paths) < 2 or batch.samples is not None:
        return batch

    def with_samples(paths: frozenset[str]) -> Batch:
        return batch.mapped(lambda part: part, list)._replace(samples=paths)

    def is_accepted(paths: frozenset[str]) -> bool:
        try:
            few = with_samples(paths).head(rows)
            for mode in (False, True):  # labels may be read in training alone
                model.train(mode)
                outputs = run_without_values(model, few, lambda few: few.run(model))
                if any(batch.has_samples(path, part) for path, part in leaves(outputs)):
                    return False  # what was left whole has rows in the outputs
        except Exception:
            return False
        return not _same_outputs(model, few, batch.head(rows))

    samples = frozenset(paths)
    with preserve_state(model), torch.no_grad():
        for tables in (paths[1:], *([path] for path in paths[1:])):
            others = samples - {*tables}
            samples = others if is_accepted(others) else samples
    return batch if len(samples) == len(paths) else with_samples(samples)


def _same_outputs(model: nn.Module, batch: Batch, other: Batch) -> bool:
    """Whether the model accepts both batches in eval, with equal outputs."""
    model.eval()
    try:
        pairs = zip(*(output_tensors(b.run(model)) for b in (batch, other)), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)
    except Exception:
        return False


def _half_resolution(model: nn.Module, batch: Batch) -> Batch:
    """The batch with large images at half resolution, if the model accepts that."""

    def is_large(part: Any) -> bool:
        images = isinstance(part, Tensor) and part.ndim == 4 and part.is_floating_point()
        return images and min(part.shape[2:]) >= LARGE

    if not any(is_large(part) for _, part in leaves((batch.args, batch.kwargs))):
        return batch
    smaller = batch.mapped(
        lambda part: part[..., ::2, ::2] if is_large(part) else part, lambda part: part
    )
    if not _differ(smaller, source_of(0, smaller.rows)):
        return batch
    with preserve_state(model), torch.no_grad():
        try:
            for mode in (False, True):  # an auxiliary head in training may need a larger image
                model.train(mode)
                run_without_values(model, smaller.head(2), lambda few: few.run(model))
        except Exception:  # it accepts images of one size only
            return batch
    return smaller


def _as_list_of_samples(model: nn.Module, example: Any, where: str) -> Batch | None:
    """The example as one argument, a list of samples, if the model accepts it, as detectors do.

    A data loader's ``[x, y]`` and a list of features of several scales are lists as well. With
    those the model fails, or returns as many rows as their tensors have.
    """
    args = (example,) if isinstance(example, list) else example
    if type(args) is not tuple or not args or type(args[0]) is not list or len(args[0]) < 2:
        return None
    samples = args[0]
    if not all(isinstance(sample, Tensor) and sample.ndim for sample in samples):
        return None

    def counts(samples: list[Tensor]) -> set[int]:
        """Rows of the outputs in eval; empty if the model does not accept this."""
        try:
            outputs = output_tensors(model.eval()(samples, *args[1:]))
        except Exception:
            return set()
        return {t.shape[0] for t in outputs if t.ndim} or {0}

    with preserve_state(model), torch.no_grad():
        found, lengths = counts(samples), {len(sample) for sample in samples}
        if not found or (lengths <= found and 1 in counts([sample[:1] for sample in samples])):
            return None
    if len(samples) not in found:
        raise TypeError(
            f"{where}: the model takes a list of {len(samples)} samples, and gives no tensor with "
            "a row for each. Check the part that computes the logits, with that part's inputs."
        )
    return Batch((SampleList(samples), *args[1:]), {}, len(samples))


def repeated_index(samples: int, rows: int) -> list[int]:
    """The sample of each of ``rows`` rows, if the samples are repeated in turn.

    Two samples are repeated as 0, 0, 1, 1 and three as 0, 2, 1, 2, so that fewer samples than
    ``FEW`` also show exchanged rows.
    """
    order = {2: [0, 0, 1, 1], 3: [0, 2, 1, 2]}.get(samples, list(range(samples)))
    return [order[row % len(order)] for row in range(rows)]


def fill_up(model: nn.Module, batch: Batch) -> Batch:
    """The batch, filled up to ``FEW`` rows by repetition, if the model accepts more rows."""
    if batch.rows >= FEW:
        return batch
    larger = select_samples(batch, repeated_index(batch.rows, FEW))
    with preserve_state(model), torch.no_grad():
        model.eval()
        try:
            run_without_values(model, larger, lambda larger: larger.run(model))
        except Exception:  # it accepts batches of this size only
            return batch
    return larger


def select_samples(batch: Batch, index: list[int]) -> Batch:
    """A batch of these samples."""
    order = torch.tensor(index, device="cpu")
    return batch.mapped(
        lambda part: part.index_select(batch.axis, order.to(part.device)),
        lambda part: [part[row] for row in index],
    )


def same_samples(batch: Batch) -> Tensor:
    """Which samples are equal, (N, N)."""
    each = [select_samples(batch, [row]) for row in range(batch.rows)]
    return torch.tensor([[_same(a, b) for a in each] for b in each], device="cpu")


def source_of(sample: int, samples: int) -> int:
    """The sample to copy, two before: equal rows then reveal a reversed or shifted order.

    >>> source_of(0, 4), source_of(3, 4), source_of(0, 2)
    (2, 1, 1)
    """
    return (sample - min(2, samples - 1)) % samples


def _differ(batch: Batch, row: int) -> bool:
    """Whether the first sample differs from this one."""
    return not _same(batch, replace_sample(batch, 0, source=row))


def _same(batch: Batch, changed: Batch) -> bool:
    """Whether all tensors are equal."""
    pairs = zip(leaves(tuple(batch[:2])), leaves(tuple(changed[:2])), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs if isinstance(a, Tensor))


def replace_sample(batch: Batch, sample: int, source: int | None = None) -> Batch:
    """The batch with one sample replaced by a copy of ``source``, by default of `source_of`."""
    return select_samples(batch, replaced_index(batch.rows, sample, source))


def replaced_index(samples: int, sample: int, source: int | None = None) -> list[int]:
    index = list(range(samples))
    index[sample] = source_of(sample, samples) if source is None else source
    return index
