"""A small batch that a model accepts: the user's example, or one guessed from the model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from batchformer.nn.streams import leaves, map_leaves
from batchformer.plug.preserve import in_eval, may_drop_values, preserve_state, shapes_only

T = TypeVar("T")
ROWS = 3
_IMAGE_SIDES = (64, 224, 32, 28, 96, 128, 48, 16, 8, 256, 299, 384)
_LENGTH = 8
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
PACKED = (
    "A PackedSequence cannot be split into samples. Pass the padded sequences and their lengths, "
    "and let forward pack them: pack_padded_sequence(x, lengths, enforce_sorted=False)."
)


class SampleList(list[Any]):
    """A list with one entry for each sample. Other lists have parts, such as features by scale."""


class Batch(NamedTuple):
    """The arguments of one call of a model, its number of samples and their axis."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    axis: int = 0
    # The paths of the tensors that have samples, if known. If so, the lists of samples, and no
    # other lists, are a SampleList
    samples: frozenset[str] | None = None

    def run(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)

    def head(self, rows: int) -> Batch:
        """The first samples only."""
        return self.mapped(lambda part: part.narrow(self.axis, 0, rows), lambda part: part[:rows])

    def mapped(
        self, tensor: Callable[[Tensor], Tensor], sequence: Callable[[list[Any]], list[Any]]
    ) -> Batch:
        """A batch with every tensor and list of samples changed, in nested arguments too.

        ``rows`` is counted again. What has samples is decided once: in a smaller batch, other axes
        and lists may be as long by chance.
        """
        counts: list[int] = []
        found: set[str] = set()

        def is_leaf(part: Any) -> bool:
            return self._is_sample_list(part) or _is_packed(part)

        def change(path: str, part: Any) -> Any:
            if _is_packed(part):
                raise TypeError(PACKED)
            if isinstance(part, list):
                items = SampleList(sequence(part))
                counts.append(len(items))
                return items
            if not self.has_samples(path, part):
                return part
            found.add(path)
            changed = tensor(part)
            counts.append(changed.shape[self.axis])
            return changed

        args, kwargs = map_leaves((self.args, self.kwargs), change, is_leaf=is_leaf)
        rows = counts[0] if counts else self.rows
        return Batch(args, kwargs, rows, self.axis, frozenset(found))

    def has_samples(self, path: str, part: Any) -> bool:
        """Whether this is a tensor with a row for each sample."""
        return self._has_rows(part) if self.samples is None else path in self.samples

    def _has_rows(self, part: Any) -> bool:
        return _has_axis(part, self.axis) and part.shape[self.axis] == self.rows

    def _is_sample_list(self, part: Any) -> bool:
        """Whether this is a list with an entry for each sample."""
        if isinstance(part, SampleList) or self.samples is not None:
            return isinstance(part, SampleList)
        if not isinstance(part, list) or len(part) != self.rows:
            return False
        tensors = [entry for entry in part if isinstance(entry, Tensor)]
        return not tensors or not all(map(self._has_rows, tensors))


def _has_axis(part: Any, axis: int) -> bool:
    return isinstance(part, Tensor) and part.ndim > axis


def _is_packed(part: Any) -> bool:
    return isinstance(part, PackedSequence)


def _rows(tree: Any, axis: int) -> int:
    for _, leaf in leaves(tree, is_leaf=_is_packed):
        if _is_packed(leaf):
            raise TypeError(PACKED)
        if _has_axis(leaf, axis):
            return int(leaf.shape[axis])
    raise TypeError(
        "The example batch contains no tensor with rows. Pass what the model is called with: a "
        "tensor, a tuple of arguments, or a dict of keyword arguments. An object of another kind, "
        "such as the NestedTensor of DETR, is not looked into: pass the tensors that the model "
        "takes in its place, images (N, 3, H, W)."
    )


def as_batch(example: Any, axis: int = 0) -> Batch:
    """The call that an example stands for: a tensor, a tuple of arguments or a dict of keywords."""
    if isinstance(example, Batch):
        return example
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example, Mapping):
        kwargs = {key: example[key] for key in example}
    else:
        several = isinstance(example, (tuple, list)) and not _is_packed(example)
        args = tuple(example) if several else (example,)
    return Batch(args, kwargs, _rows((args, kwargs), axis), axis)


def fit_batch(model: nn.Module, example: Any, axis: int = 0) -> Batch:
    """The example as this model accepts it: as it is, or without its labels."""
    given = as_batch(example, axis)
    if isinstance(example, Mapping):
        given = given._replace(kwargs=_without_labels(given.kwargs))
        if not _takes(model, **given.kwargs):
            raise TypeError(
                f"{type(model).__name__} takes no keyword arguments {', '.join(given.kwargs)}. If "
                f"it is called with the dict itself, put that into a tuple: (batch,)."
            )
        return given
    if len(given.args) < 2:
        return given
    with preserve_state(model), torch.no_grad():
        try:
            given.run(model.eval())
            if _takes_labels(model):  # for a loss, which in training would need them doubled
                given.run(model.train())
        except Exception:  # (x, y) of a data loader: the model may accept x alone
            alone = as_batch(given.args[0], axis)
            if _takes(model, *given.args):
                try:
                    alone.run(model)
                except Exception:
                    alone = given
            if alone is given:  # neither works: raise the first error
                raise
            return alone
    return given


def give_shapes(model: nn.Module, example: Any, axis: int) -> None:
    """Run the example once, so that lazy modules get their shapes, as from a first batch."""
    batch = as_batch(example, axis)
    batch = batch._replace(kwargs=_without_labels(batch.kwargs))
    if len(batch.args) > 1 and not _takes(model, *batch.args):
        batch = batch._replace(args=batch.args[:1])  # (x, y) of a data loader, see fit_batch
    with in_eval(model), torch.no_grad():
        batch.run(model)


def _takes(model: nn.Module, /, *args: Any, **kwargs: Any) -> bool:
    """Whether the signature of the model's forward, if it has one, accepts these arguments."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # TorchScript
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _takes_labels(model: nn.Module) -> bool:
    """Whether the second argument of the model is for labels, by its name."""
    try:
        names = [*inspect.signature(model.forward).parameters]
    except (TypeError, ValueError):  # TorchScript
        return False
    return len(names) > 1 and names[1] in ("label", "labels", "target", "targets", "y")


def _without_labels(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("label", "labels")}


def run_without_values(model: nn.Module, batch: Batch, run: Callable[[Batch], T]) -> T:
    """``run(batch)``, for a large model on torch's meta device if possible, which takes no time.

    Args:
        run: calls the model on the batch that it gets, and reads only shapes and the graph.
    """
    if may_drop_values(model):
        try:
            with shapes_only(model):
                args, kwargs = map_leaves((batch.args, batch.kwargs), _to_meta)
                return run(batch._replace(args=args, kwargs=kwargs))
        except Exception:  # the model rejects the batch or needs values: values decide
            pass
    return run(batch)


def _to_meta(_: str, part: Any) -> Any:
    return part.to("meta") if isinstance(part, Tensor) else part


def find_batch(model: nn.Module, example: Any = None, axis: int = 0) -> Batch:
    """A batch that the model accepts: the example if given, else a guessed one."""
    if example is not None:
        if any(isinstance(leaf, Tensor) and leaf.is_inference() for _, leaf in leaves(example)):
            example = copy.deepcopy(example)  # ordinary tensors, through which gradients pass
        batch = fit_batch(model, example, axis)
        if batch.rows < 2:
            raise ValueError(f"The example batch has {batch.rows} samples; pass at least 2.")
        return batch
    with preserve_state(model), torch.no_grad():
        model.eval()
        return guess(model, lambda batch: batch.run(model), axis)[0]


def guess(model: nn.Module, run: Callable[[Batch], T], axis: int = 0) -> tuple[Batch, T]:
    """The first guessed batch that the model accepts, and the result of ``run`` for it.

    Args:
        axis: the axis of the samples, if the user said that it is not the first.

    Raises:
        ValueError: no guess was accepted; the message asks for an example.
    """
    failure: Exception | None = None
    for batch in _guesses(model):
        try:
            if axis and axis != batch.axis:
                turned = partial(torch.transpose, dim0=batch.axis, dim1=axis)
                batch = batch.mapped(turned, list)._replace(rows=batch.rows, axis=axis)
            return batch, run_without_values(model, batch, run)
        except Exception as error:  # a guess may fail in any way the model can fail
            failure = failure or error
    reason = f" The first guess failed with: {failure}" if failure else ""
    raise ValueError(
        f"No guessed input was accepted by {type(model).__name__}. Pass example=, one small batch "
        f"as the model is called with it (a tensor, a tuple, or a dict of keywords).{reason}"
    )


#: Two samples of the example that ``attach`` was given, for ``export``. They are kept outside the
#: model, so that no state dict, pickle or copy of it contains them, and are freed with it.
_REMEMBERED: WeakKeyDictionary[nn.Module, Batch] = WeakKeyDictionary()


def remember_example(model: nn.Module, batch: Batch) -> None:
    """Keep two samples of a batch of tensors, unless these have no values (the meta device).

    They share no memory with the batch.
    """
    parts = [part for _, part in leaves((batch.args, batch.kwargs))]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    rest = [part for part in parts if not isinstance(part, Tensor)]
    of_samples = all(t.ndim > batch.axis and t.shape[batch.axis] == batch.rows for t in tensors)
    of_samples &= not any(t.is_meta for t in tensors)
    if of_samples and all(part is None or isinstance(part, (bool, int, float)) for part in rest):
        few = batch.head(2).mapped(lambda part: part.detach().cpu().clone(), list)
        _REMEMBERED[model] = few


def remembered_example(holder: nn.Module, model: nn.Module) -> Batch | None:
    """The samples of :func:`remember_example`, on the model's device and in its dtype.

    None if the model does not accept them: it may have changed, or need more than two samples.
    """
    batch = _REMEMBERED.get(holder)
    if batch is None:
        return None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)

    def moved(part: Tensor) -> Tensor:
        return part.to(device, dtype if part.is_floating_point() else None)

    batch = batch.mapped(moved, list)
    with preserve_state(model), torch.no_grad():
        try:
            batch.run(model.eval())
        except Exception:
            return None
    return batch


def forget_example(model: nn.Module) -> None:
    """Drop what :func:`remember_example` kept."""
    _REMEMBERED.pop(model, None)


def _guesses(model: nn.Module) -> Iterator[Batch]:
    parameters = list(model.parameters())
    floating = [p for p in parameters if p.is_floating_point()]
    device = parameters[0].device if parameters else torch.device("cpu")
    dtype = floating[0].dtype if floating else torch.float32
    # Its own generator: guessing must not advance the caller's random numbers.
    generator = torch.Generator().manual_seed(0)

    def floats(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cpu").to(device, dtype)

    def integers(high: int, *shape: int) -> Tensor:
        high = max(high, 1)
        return torch.randint(0, high, shape, generator=generator, device="cpu").to(device)

    # The same indices may reach every embedding, so they stay below the size of the smallest. An
    # index out of range would make a GPU unusable for this process.
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, EMBEDDINGS)]
    words = min(tables, default=1)
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is not None and isinstance(name, str):  # Hugging Face
        for tensor in _from_config(config, name, floats, integers):
            yield Batch((), {name: tensor}, ROWS)
    read = [m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    for declared, *size in _declared_images(model):
        # A model of grey images (timm's in_chans=1) still declares three channels.
        for channels in dict.fromkeys((declared, *read[:1])):
            yield Batch((floats(ROWS, channels, *size),), {}, ROWS)
    kinds: set[type] = set()
    for module in model.modules():
        if type(module) not in kinds:
            kinds.add(type(module))
            for tensor in _for_first_layer(module, floats, partial(integers, words)):
                # Recurrent and attention layers may expect (L, N, C). L differs from ROWS.
                axis = int(tensor.shape[0] != ROWS)
                yield Batch((tensor,), {}, ROWS, axis)


def _from_config(config: Any, name: str, floats: Any, integers: Any) -> Iterator[Tensor]:
    if name == "input_ids":
        yield integers(getattr(config, "vocab_size", 2), ROWS, _LENGTH)
    elif name == "pixel_values":
        side = getattr(config, "image_size", 224)
        height, width = (side, side) if isinstance(side, int) else tuple(side)
        yield floats(ROWS, getattr(config, "num_channels", 3), height, width)
    elif name == "input_values":
        yield floats(ROWS, 16000)


def _declared_images(model: nn.Module) -> Iterator[tuple[int, int, int]]:
    """Image sizes that models of timm, torchvision and others declare."""
    side = getattr(model, "image_size", None)
    if isinstance(side, int):
        yield 3, side, side
    declared = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    channels = declared.get("input_size", (3,))[0] if isinstance(declared, Mapping) else 3
    patches = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if isinstance(patches, (tuple, list)) and len(patches) == 2:
        yield channels, *patches
    if isinstance(declared, Mapping) and len(declared.get("input_size", ())) == 3:
        # Small images first: most networks accept any size, and small ones are fast.
        if not declared.get("fixed_input_size", False):
            yield channels, 64, 64
        yield tuple(declared["input_size"])


def _for_first_layer(module: nn.Module, floats: Any, indices: Any) -> Iterator[Tensor]:
    """Inputs that fit if this module is the first that reads them."""
    if isinstance(module, nn.Linear):
        yield floats(ROWS, module.in_features)
        yield floats(ROWS, _LENGTH, module.in_features)
    elif isinstance(module, nn.Conv1d):
        for length in (64, 128, 1024, 16000):
            yield floats(ROWS, module.in_channels, length)
    elif isinstance(module, nn.Conv2d):
        for side in _IMAGE_SIDES:
            yield floats(ROWS, module.in_channels, side, side)
    elif isinstance(module, nn.Conv3d):
        yield floats(ROWS, module.in_channels, 16, 64, 64)
    elif isinstance(module, EMBEDDINGS):
        yield indices(ROWS, _LENGTH)
    elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        width = module.input_size if isinstance(module, nn.RNNBase) else module.embed_dim
        shape = (ROWS, _LENGTH) if module.batch_first else (_LENGTH, ROWS)
        yield floats(*shape, width)
    elif isinstance(module, nn.BatchNorm1d):
        yield floats(ROWS, module.num_features)
