"""What a task is, and what tasks share: batches, labelled images, scores by shots, remarks."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from batchformer.insight.classes import Classes, shot_groups, third_groups
from batchformer.insight.images import LabelledImages, thumbnails
from batchformer.lab.config.data import DataConfig, LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import ExtendedFeed, Feed
from batchformer.lab.data.feeds.order import Order, Steps
from batchformer.lab.data.feeds.samplers import (
    ClassBalanced,
    ReversedClasses,
    Shuffle,
    sampler_named,
)
from batchformer.lab.data.feeds.sharding import all_rows, scored_rows
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData
from batchformer.lab.data.transforms.base import Compose
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.shots import LongTailedMetrics
from batchformer.nn.randomness import seed_for

if TYPE_CHECKING:
    from batchformer.lab.data.feeds.loader import FileFeed
    from batchformer.lab.data.files.image_files import ImageFiles
    from batchformer.lab.methods.training_images import Bank

#: With more classes the confusion matrix would be too large for a run folder.
MOST_CLASSES_WITH_CONFUSION = 1000
#: The k of the top-k accuracy.
HIGHEST = 5
#: Images that are read at a time to make thumbnails of them.
THUMBNAILS_AT_ONCE = 64

T = TypeVar("T")


class Task(Protocol):
    """Data, batches and scores of an experiment."""

    @property
    def num_classes(self) -> int: ...

    @property
    def method_options(self) -> dict[str, Any]:
        """What the task tells its methods about the data."""

    @property
    def unvalidated(self) -> str:
        """Why evaluations have no validation score to choose by; empty if they have one."""

    def seeded(self, seed: int) -> Task:
        """The task of a run with this seed; the same task if the seed draws no data."""

    def facts(self) -> dict[str, Any]:
        """What a reader should know about the data, the same for every seed."""

    def draws(self) -> dict[str, str]:
        """What this seed drew in the data, if anything."""

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Training batches."""

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """Scores in percent, the headline first, and what the figures need."""


def load(config: DataConfig, device: torch.device) -> Task:
    """Read the data; an error says what is missing and where it was looked for."""
    file, _, name = config.loader.partition(":")
    kind: Any = getattr(importlib.import_module(f"batchformer.lab.tasks.{file}"), name)
    task: Task = kind.load(config, device)
    return task


class FixedSplit:
    """A task whose data is the same for every seed, without validation data."""

    def seeded(self: T, seed: int) -> T:
        return self

    def draws(self) -> dict[str, str]:
        return {}

    @property
    def unvalidated(self) -> str:
        return "this task has no validation data"


def image_feed(
    part: ImageSplit | ImageFiles,
    view: Any,
    train: TrainConfig,
    seed: int,
    device: torch.device,
    *,
    second: Any = None,
    order: Order | None = None,
) -> Feed | FileFeed:
    """Augmented training batches of images in memory or in files.

    Args:
        view: a transform for images in memory; geometry and transform for image files.
        second: another view of the same images, ``view2``.
        order: which samples each step takes; None: every sample once an epoch, shuffled.
    """
    if order is None:
        order = Steps(Shuffle(len(part), seed), train.batch_size, train.drop_last)
    options: dict[str, Any] = {"second": second, "accumulate": train.accumulate}
    if isinstance(part, ImageSplit):
        return Feed(part, view, order, seed, device, **options)
    from batchformer.lab.data.feeds.loader import FileFeed  # late: only images in files need it

    options |= {"workers": train.workers, "on_damaged": train.damaged}
    geometry, transform = view
    return FileFeed(part, geometry, transform, order, seed, device, **options)


def scored_batches(
    part: ImageSplit | ImageFiles,
    view: Any,
    size: int,
    device: torch.device,
    workers: int | None = None,
    sharded: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (N, channels, H, W) as they are scored, without randomness, and their labels (N,).

    If `sharded`, each rank has only the images that it scores, but the labels of all; otherwise
    every rank has all images. `view` is as for :func:`image_feed`.
    """
    if isinstance(part, ImageSplit):
        for x, y in zip(torch.split(part.x, size), torch.split(part.labels, size), strict=True):
            own = (x[scored_rows(len(x))] if sharded else x).to(device)
            yield view(own, torch.empty(len(own), 0, dtype=torch.float64)), y.to(device)
        return
    from batchformer.lab.data.feeds.loader import evaluation_batches  # late, as above

    geometry, transform = view
    for batch in evaluation_batches(part, geometry, transform, size, device, workers, sharded):
        yield batch["x"], batch["y"]


@dataclass(frozen=True, eq=False)
class EvaluationImages:
    """Scored images as figures need them; `view` is as for :func:`image_feed`."""

    classes: Classes
    images: ImageSplit | ImageFiles
    view: Any
    device: torch.device
    workers: int | None = None

    @property
    def labels(self) -> Tensor:
        return self.images.labels.cpu()

    def batches(self, rows: Tensor, size: int) -> Iterator[Tensor]:
        return self._scored(rows, self.view, size, self.device)

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        plain: Any = Compose(())
        view = plain if isinstance(self.images, ImageSplit) else (self.view[0], plain)
        scored = self._scored(rows, view, THUMBNAILS_AT_ONCE, torch.device("cpu"))
        return torch.cat([thumbnails(x, side) for x in scored])

    def _scored(self, rows: Tensor, view: Any, size: int, device: torch.device) -> Iterator[Tensor]:
        part = self.images.subset(rows)
        return (x for x, _ in scored_batches(part, view, size, device, self.workers, sharded=False))


def with_second(feed: Batches, second: Batches, name: Literal["meta", "paired"]) -> ExtendedFeed:
    """Batches of `feed`, with the same step's batch of `second` added as ``NAME_x``, ``NAME_y``.

    Args:
        name: ``meta`` for a batch that scores an update, ``paired`` for one with as many rows.
    """

    def extend(batch: dict[str, Any], step: int) -> dict[str, Any]:
        other = second.batch(step)
        return {f"{name}_x": other["x"], f"{name}_y": other["y"]}

    return ExtendedFeed(feed, extend, second)


@dataclass(frozen=True)
class LabelledTask(FixedSplit):
    """Labelled images of one domain, in memory or in files.

    A subclass says how they are augmented (:meth:`training_views`) and scored (:attr:`test_view`).
    Views are as for :func:`image_feed`.
    """

    data: Any
    config: LongTailConfig
    device: torch.device

    test_batch: ClassVar[int]
    """Images in a test batch."""

    def training_views(self) -> tuple[Any, Any]:
        """The view of a training batch, and its second view or None."""
        raise NotImplementedError(f"{type(self).__name__} does not implement training_views()")

    @property
    def test_view(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not implement test_view")

    @property
    def method_options(self) -> dict[str, Any]:
        return {"class_counts": self.data.train_counts}

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    def facts(self) -> dict[str, Any]:
        return split_facts(self.data)

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        config, part = self.config, self.data.train
        view, second = self.training_views()
        labels, sizes = part.labels, (train.batch_size, train.drop_last)
        order = Steps(sampler_named(config.sampler, labels, seed, config.per_turn), *sizes)
        feed = image_feed(part, view, train, seed, self.device, second=second, order=order)
        other = seed_for(seed, "augmentation", 1)
        if config.paired == "reversed":
            rare = Steps(ReversedClasses(labels, seed, stream=1), *sizes)
            pairs = image_feed(part, view, train, other, self.device, order=rare)
            return with_second(feed, pairs, "paired")
        if not config.meta_batch:
            return feed
        part = self.data.val or part
        # Full batches only: a smaller one would hold only some classes.
        size = min(config.meta_batch, len(part))
        balanced = Steps(ClassBalanced(part.labels, seed, stream=1), size, drop_last=True)
        meta = image_feed(part, view, train, other, self.device, order=balanced)
        return with_second(feed, meta, "meta")

    def as_at_test(self, part: Any, workers: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """:func:`scored_batches` of a part."""
        return scored_batches(part, self.test_view, self.test_batch, self.device, workers)

    def figure_images(self, workers: int | None = None) -> LabelledImages:
        """Test images, for figures."""
        data = self.data
        classes = Classes.by_shots(data.classes, data.train_counts, self.config.shots)
        return EvaluationImages(classes, data.test, self.test_view, self.device, workers)

    def bank(self, seed: int, workers: int | None = None) -> Bank:
        """The training images as they are scored, and those of the third list if it is read."""
        from batchformer.lab.methods.training_images import Bank  # late: few methods need it

        def images(part: Any, validation: Bank | None = None) -> Bank:
            batches = partial(self.as_at_test, part, workers)
            return Bank(part.labels, seed, batches, validation)

        third = self.data.val
        return images(self.data.train, None if third is None else images(third))

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """Scores in percent by shots, those of features if asked for, and what figures need."""
        data, workers = self.data, optimizer_step.config.workers
        batches = self.as_at_test(data.test, workers)
        counts, classes = data.train_counts, data.classes
        found = evaluate_by_shots(method, optimizer_step, batches, counts, classes, self.config)
        if self.config.views == "none":
            return found
        from batchformer.lab.tasks.features import feature_scores

        extract: Any = method.features
        again = self.as_at_test(data.test, workers)
        features = torch.cat([all_rows(extract(x), len(y)) for x, y in again])
        looks = feature_scores(extract, features, self.config, data.test, workers)
        return Evaluation({**found.metrics, **looks}, found.figures)


# Scores by shots or highest answers


def evaluate_by_shots(
    method: Method,
    optimizer_step: OptimizerStep,
    batches: Iterable[tuple[Tensor, Tensor]],
    counts: Tensor,
    classes: Sequence[str],
    config: LongTailConfig,
) -> Evaluation:
    """Scores in percent of a method in eval mode, as the configuration asks for them.

    ``config.scores`` "shots" gives ``all``, ``many``, ``medium``, ``few``, ``mean_class`` and
    ``ece``; "top" gives ``top1``, ``top5``, ``mean_class`` and ``ece``; "both" gives the scores by
    shots and ``top5``. With five classes or fewer there is no ``top5``, as it would always be 100.
    `counts` (K,) are training images of each class.

    Batches are those of :func:`scored_batches`.
    """
    groups = third_groups(counts) if config.shots == "thirds" else shot_groups(counts)
    scores = LongTailedMetrics(len(classes), groups)
    among_highest = []
    with_highest = config.scores != "shots" and len(classes) > HIGHEST
    for images, labels in batches:
        with optimizer_step.autocast():
            logits = all_rows(method.predict(images).float(), len(labels))
        scores.update(logits, labels)
        if with_highest:
            among_highest.append(in_top(logits, labels, HIGHEST))
    metrics = scores.compute()
    highest = {}
    if with_highest:
        highest["top5"] = 100.0 * float(torch.cat(among_highest).double().mean())
    if config.scores == "top":
        rest = {name: metrics[name] for name in ("mean_class", "ece")}
        metrics = {"top1": metrics["all"], **highest, **rest}
    figures = class_figures(scores, counts, classes)
    return Evaluation({**metrics, **highest, **method.further_scores()}, figures)


def class_figures(
    scores: LongTailedMetrics, counts: Tensor, classes: Sequence[str]
) -> dict[str, Any]:
    """What figures need of the scores of K classes with `counts` (K,) training images."""
    figures: dict[str, Any] = {
        "per_class": scores.per_class.numpy(),
        "train_counts": counts.numpy(),
        "correct": scores.correct.numpy(),
        "classes": np.array(classes),
    }
    if len(classes) <= MOST_CLASSES_WITH_CONFUSION:
        figures["confusion"] = scores.confusion.to(torch.int32).numpy()
    return figures


def in_top(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """(N,) bool: whether the label (N,) is one of the `count` highest of the logits (N, K)."""
    return (logits.topk(count, dim=1).indices == labels[:, None]).any(1)


# Facts about the data, for the run folder and before training


def split_facts(data: LongTailedData[Any]) -> dict[str, Any]:
    """Name of the split, its hash and that of its training part, its sizes, and the sizes of the
    largest and smallest class. If only some classes are kept, it has the hash of the whole training
    part as well.
    """
    counts = data.train_counts
    facts: dict[str, Any] = {
        "name": data.name,
        "split_sha256": data.split_sha256,
        "train_sha256": data.train.sha256,
        "train": len(data.train),
        "test": len(data.test),
        "largest_class": int(counts.max()),
        "smallest_class": int(counts.min()),
    }
    return {**facts, "part_of_sha256": data.part_of} if data.part_of else facts


def class_sizes(counts: Tensor, config: LongTailConfig) -> str:
    """One line: how many classes and training images `counts` (K,) has, and classes by shots.

    >>> import torch
    >>> class_sizes(torch.tensor([1200, 60, 5]), LongTailConfig())
    '3 classes, 1,265 training images: 1,200 in the largest class, 5 in the smallest; \
1 many, 1 medium, 1 few'
    """
    line = (
        f"{len(counts)} classes, {int(counts.sum()):,} training images: {int(counts.max()):,} in "
        f"the largest class, {int(counts.min()):,} in the smallest"
    )
    if config.scores == "top":
        return line
    thirds = config.shots == "thirds"
    groups = third_groups(counts) if thirds else shot_groups(counts)
    shots = ", ".join(f"{int(mask.sum())} {name}" for name, mask in groups.items())
    return f"{line}; {shots}" + (" (thirds by training images)" if thirds else "")


def remarks_in(facts: Mapping[str, Any]) -> list[str]:
    """Lines to read before training: remarks on the data, and words without a vector.

    >>> remarks_in({"train": 9, "remarks": ["no pair is unseen"], "random_vectors": ["cat", "dog"]})
    ['no pair is unseen', 'no word vector, and a random one drawn: cat, dog']
    """
    lines = list(facts.get("remarks", ()))
    if parts := facts.get("words_without_vector"):
        names = [f"{name} ({', '.join(lacking)})" for name, lacking in parts.items()]
        lines.append(f"parts without a word vector, left out of the mean: {shorten(names)}")
    if drawn := facts.get("random_vectors"):
        lines.append(f"no word vector, and a random one drawn: {shorten(drawn)}")
    return lines
