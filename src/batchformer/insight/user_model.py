"""look_at: measure how a user's model relates the samples of a batch, for figures and a page."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.classes import Classes
from batchformer.insight.images import stretched_thumbnails
from batchformer.insight.look import STEPS, look
from batchformer.insight.page.insight_page import TITLE, insight_page, write_insight_page
from batchformer.insight.record import FILE, InsightArrays, save
from batchformer.insight.relations import Relations
from batchformer.insight.samples import Captions, Inputs, Samples, call, collect
from batchformer.nn.arguments import a_model
from batchformer.plug.classifier import find_classifiers, output_tensors, trace
from batchformer.plug.example import find_batch
from batchformer.plug.insertion import WithBatchFormer, find_record, unwrap
from batchformer.plug.preserve import preserve_state, temporary_hooks

MOST = 1024  # samples that are looked at, at most: all of them are held in memory


@dataclass(frozen=True, eq=False)
class Insight:
    """What was seen of a model: arrays by the names of :mod:`batchformer.insight.record`."""

    arrays: InsightArrays

    def __repr__(self) -> str:
        attached = "with" if "attention" in self.arrays else "without"
        size = f"{len(self.arrays['classes'])} classes, {attached} BatchFormer"
        return f"Insight({size}; page('relations.html') draws it, arrays holds the numbers)"

    def _repr_html_(self) -> str:
        """What a notebook shows: the page, in a frame of its own."""
        page = html.escape(insight_page(self.arrays))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 50em; border: 0"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write the arrays to this file, or to `insight.npz` in this folder."""
        file = Path(path)
        file = file / FILE if file.is_dir() else file
        save(file, self.arrays)
        return file

    def page(self, path: str | Path, title: str | None = None) -> Path:
        """Write the figures and batches to look into as one self-contained page."""
        return write_insight_page(self.arrays, path, title or TITLE)


def look_at(
    model: nn.Module,
    loader: Iterable[Any],
    classes: Sequence[str] | Mapping[int, str] | None = None,
    *,
    captions: Captions | None = None,
    columns: Sequence[str] | None = None,
    train_counts: Sequence[int] | Tensor | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    most: int = MOST,
    layer: str | None = None,
    seed: int = 0,
) -> Insight:
    """Measure who attends to whom in a trained model, and whose loss acts on whose features.

    It works without BatchFormer too, but without figures of attention. The model is left as it was.
    Images (N, channels, H, W) are shown as thumbnails; their normalisation is not known, so
    thumbnails are stretched from the darkest to the brightest value of the images shown together.
    Other samples are shown by their captions.

    Args:
        model: a classifier. If BatchFormer is attached, it stands before the classification layer.
        loader: test samples, shuffled or not: (images, labels), (features, labels), or dicts of
            tensors with ``labels``, as Hugging Face gives them.
        classes: K names, or the names by number, as in Hugging Face's ``id2label``; by default
            numbers.
        captions: a text for each sample, in the order of the loader; or a function from a batch's
            inputs to its texts, such as ``lambda b: tokenizer.batch_decode(b["input_ids"])``. By
            default strings in the batch, else token ids, or the values of a table's row that are
            farthest from the mean of their column.
        columns: names of a table's columns, for these captions.
        train_counts: (K,) training samples of each class; by default the samples of the loader
            stand for them, and the page says so.
        loss: a function of logits (N, K) and labels (N,) that returns a scalar.
        most: the largest number of samples to take from the loader.
        layer: the layer for Grad-CAM on images. ``released`` is that of the paper's code; by
            default it is the last layer with feature maps. If none is found, there is no Grad-CAM.
        seed: the seed for the order of samples in batches.
    """
    a_model("look_at()", model)
    inner = unwrap(model)
    samples = collect(loader, most, captions, columns)
    labels = samples.labels
    if labels.ndim != 1 or int(labels.min()) < 0:
        raise ValueError(
            f"look_at(): the labels of the loader have shape {tuple(labels.shape)} and begin at "
            f"{int(labels.min())}. Use a loader that gives one class from 0 on for each sample."
        )
    device = next((p.device for p in inner.parameters()), torch.device("cpu"))
    relations = relations_of(inner, samples.at(slice(3), device), loss, samples.keyword)
    with preserve_state(inner), torch.no_grad():
        inner.eval()
        width = relations.classify(relations.features(samples.at(slice(2), device))).shape[1]
    if isinstance(classes, Mapping):
        classes = [classes[number] for number in sorted(classes)]
    names = tuple(map(str, range(width))) if classes is None else tuple(classes)
    if len(names) != width or int(labels.max()) >= width:
        raise ValueError(
            f"look_at(): the model has {width} outputs, there are {len(names)} names of classes, "
            f"and labels run to {int(labels.max())}. It needs one output and one name for each "
            "class."
        )
    counts = torch.bincount(labels, minlength=width)
    if train_counts is not None:
        counts = torch.as_tensor(train_counts).long()
    if counts.shape != (width,):
        raise ValueError(
            f"look_at(): the model has {width} classes, and train_counts= has the shape "
            f"{tuple(counts.shape)}. Give the number of training samples of each class."
        )
    shown = _Loaded(Classes.by_shots(names, counts), samples, device)
    arrays = look(
        relations,
        shown,
        network=inner,
        seed=seed,
        layer=layer,
        steps=STEPS if samples.differentiable else 0,
        captions=samples.captions,
    )
    if train_counts is None:
        arrays["counts_of_loader"] = np.array(True)
    return Insight(arrays)


def relations_of(
    model: nn.Module,
    example: Inputs,
    loss: Callable[[Tensor, Tensor], Tensor],
    keyword: str | None = None,
) -> Relations:
    """Find features, classifier and encoder of a model with one batch that it accepts.

    If there is a ``keyword``, a tensor is passed as that argument.

    Raises:
        ValueError: it has no single classifier, BatchFormer stands elsewhere, or outputs are NaN.
    """
    holder, record = find_record(model)  # a module inside, if the model was wrapped later
    named = dict(holder.named_modules())
    if record is None:
        batch = find_batch(model, example if keyword is None else {keyword: example})
        places: Sequence[str] = find_classifiers(model, trace(model, batch))
    else:
        places = record.places
    head = named[places[0]]
    encoder = head._place.encoder if isinstance(head, WithBatchFormer) else None
    axis = encoder.batch_axis if encoder is not None else 0

    def features(x: Inputs) -> Tensor:
        inputs: list[Tensor] = []
        hook = head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with temporary_hooks([hook]):
            call(model, x, keyword)
        return inputs[0].movedim(axis, 0)

    def classify(rows: Tensor) -> Tensor:
        logits: Tensor = head(rows.movedim(0, axis))
        return logits

    with preserve_state(model), torch.no_grad():
        model.eval()
        outputs = output_tensors(call(model, example, keyword))
        again = classify(features(example))
    if any(bool(output.isnan().any()) for output in outputs):
        raise ValueError(
            "look_at(): the model's outputs for the first samples are NaN. Look for NaN among its "
            "weights, if the training diverged, and among the samples."
        )
    alike = len(outputs) == 1 and outputs[0].shape == again.shape and again.ndim == 2
    if len(places) > 1 or not alike or not torch.allclose(outputs[0], again, atol=1e-4):
        where = "looks like the classifier" if record is None else "has BatchFormer before it"
        raise ValueError(
            f"look_at(): the model's outputs are not the logits (N, K) of {', '.join(places)}, "
            f"which {where}. look_at() needs a model that returns its classifier's outputs, "
            "without a softmax, and BatchFormer before the classifier or nowhere: attach(model) "
            "without at= puts it there. Of places inside a network, look_at_positions(model, "
            "images) shows which patches attend to which."
        )
    mixed_only = record is not None and record.streams == "mixed_only"
    return Relations(model, features, classify, loss, encoder, mixed_only)


@dataclass(frozen=True, eq=False)
class _Loaded:
    """Samples of a loader, for :func:`look`."""

    classes: Classes
    samples: Samples
    device: torch.device

    @property
    def labels(self) -> Tensor:
        return self.samples.labels

    def batches(self, rows: Tensor, size: int) -> Iterator[Inputs]:
        for part in torch.split(rows, size):
            yield self.samples.at(part, self.device)

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        images = self.samples.inputs
        assert isinstance(images, Tensor), "only images have thumbnails"
        return stretched_thumbnails(images[rows], side)
