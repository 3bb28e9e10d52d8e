"""Domain generalisation and adaptation: sources to train and validate on, a target to score."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.images import LabelledImages
from batchformer.lab.config.data import EACH, DomainConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import View, read_all
from batchformer.lab.data.feeds.memory import ExtendedFeed
from batchformer.lab.data.feeds.order import DomainSteps, Order, Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.data.files.image_files import sizes_hash
from batchformer.lab.data.sets.digits import rotated_digits
from batchformer.lab.data.sets.domain_layouts import load_domains
from batchformer.lab.data.sets.domains import DomainFiles, Domains, DomainSplit
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import (
    IMAGENET,
    ColorJitter,
    Compose,
    RandomFlip,
    RandomGrey,
    Transform,
    digits_test,
    digits_train,
)
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.shots import LongTailedMetrics
from batchformer.lab.tasks.base import EvaluationImages, class_figures, image_feed, scored_batches
from batchformer.lab.tasks.image_files import centre_crop, in_memory
from batchformer.nn.randomness import seed_for

Rows = Mapping[str, Tensor]
#: Images of each domain if the batch size is 0, as in SWAD's protocol.
PER_DOMAIN = 32
#: Images in a scored batch.
SCORED_BATCH = 128
#: Smallest and largest share of an image that a training crop covers.
SCALE = (0.7, 1.0)


@lru_cache(maxsize=2)
def read_domains(name: str, root: str | None, lists: bool, memory: bool) -> Domains[Any]:
    """All domains of a data set; cached, because each run leaves out another one."""
    if name == "rotated_digits":
        return rotated_digits()
    files = load_domains(name, root, lists)
    files.check_all()
    if not memory:
        return files
    images = tuple(read_all(part) for part in files.parts)
    return Domains(files.name, files.domains, files.classes, images)


@dataclass(frozen=True)
class DomainTask:
    """Data, batches and scores of one experiment on several domains."""

    data: Domains[Any]
    config: DomainConfig
    device: torch.device
    seed: int = 0

    @classmethod
    def load(cls, config: DomainConfig, device: torch.device) -> DomainTask:
        data = read_domains(config.name, config.root, config.lists, config.memory)
        known = ", ".join(data.domains)
        for what, name in (("target", config.target), ("source", config.source)):
            if name not in ("", EACH, *data.domains):
                raise ValueError(
                    f"{data.name} has no domain {name!r}; choose data.{what} of {known}"
                )
        return cls(data, config, device)

    def seeded(self, seed: int) -> DomainTask:
        """The same data; the seed draws what is held out."""
        return dataclasses.replace(self, seed=seed)

    @property
    def sources(self) -> tuple[str, ...]:
        """Domains that are trained on."""
        if self.config.source:
            return (self.config.source,)
        return tuple(domain for domain in self.data.domains if domain != self.config.target)

    @cached_property
    def split(self) -> DomainSplit:
        """Rows of every part."""
        config = self.config
        if config.target == EACH:
            raise ValueError("each domain is left out in its own run; name one with data.target")
        sizes, fraction = self.data.sizes, config.held_out
        return DomainSplit(sizes, self.sources, config.target, self.seed, fraction)

    @property
    def groups(self) -> int:
        """Number of domains in a batch, one after the other; 1 if they are shuffled."""
        if self.config.sampler != "domains":
            return 1
        return self.config.domains_in_batch or len(self.sources)

    @property
    def method_options(self) -> dict[str, Any]:
        rows = [self.data.domains.index(domain) for domain in self.sources]
        return {"class_counts": self.data.counts[rows].sum(0), "groups": self.groups}

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    @property
    def unvalidated(self) -> str:
        return "" if self.config.held_out else "data.held-out is 0"

    def facts(self) -> dict[str, Any]:
        counts = self.data.counts
        facts = {
            "name": self.data.name,
            "split_sha256": self.data.split_sha256,
            "domains": self.data.sizes,
            "classes": self.num_classes,
            "smallest_class_of_a_domain": int(counts.min()),
        }
        if self.config.name == "tree" and isinstance(self.data, DomainFiles):
            facts["file_sizes_sha256"] = sizes_hash(self.data.parts)
        return facts

    def draws(self) -> dict[str, str]:
        return {} if self.config.target == EACH else {"split_sha256": self.split.split_sha256}

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented batches of the sources, and of the target if a method adapts to it."""
        task = self.seeded(seed)
        if not train.batch_size:
            train = dataclasses.replace(train, batch_size=PER_DOMAIN * task.groups)
        feed = task._source_feed(train)
        if not self.config.adapt:
            return feed
        target = task._target_feed(train)
        # Without the target's labels: adaptation must not see them.
        return ExtendedFeed(feed, lambda _, step: {"x_target": target.batch(step)["x"]}, target)

    def _source_feed(self, train: TrainConfig) -> Batches:
        part, domain = self.data.joined(self.split.train)
        order: Order | None = None
        if self.config.sampler == "domains":
            each, rest = divmod(train.batch_size, self.groups)
            if rest or not each:
                raise ValueError(
                    f"a batch of {train.batch_size} cannot hold {self.groups} domains equally; "
                    f"set train.batch-size to a multiple of {self.groups}, or to 0 for "
                    f"{PER_DOMAIN} images of each"
                )
            order = DomainSteps(domain, self.groups, each, self.seed, self.config.epoch or None)
        feed, number = self._part_feed(part, train, self.seed, order), domain.to(self.device)
        return ExtendedFeed(feed, lambda batch, _: {"domain": number[batch["index"]]})

    def _target_feed(self, train: TrainConfig) -> Batches:
        """All images of the target, in full batches: the number of rows must not change."""
        part, _ = self.data.joined({self.config.target: self.split.target_all})
        seed = seed_for(self.seed, "augmentation", 1)
        order = Steps(Shuffle(len(part), seed), train.batch_size, drop_last=True)
        return self._part_feed(part, train, seed, order)

    def _part_feed(self, part: Any, train: TrainConfig, seed: int, order: Order | None) -> Batches:
        view = self._view(part, training=True)
        return image_feed(part, view, train, seed, self.device, order=order)

    def _view(self, part: Any, training: bool) -> Transform | View:
        if self.config.augment == "shift":
            return digits_train() if training else digits_test()
        view = (training_view if training else scored_view)(self.config)
        return in_memory(view) if isinstance(part, ImageSplit) else view

    @property
    def _target_rows(self) -> Tensor:
        """The rows of the target that are scored."""
        return self.split.target_all if self.config.scored_on == "all" else self.split.target_in

    def figure_images(self, workers: int | None = None) -> LabelledImages:
        """The scored images of the target, for figures; shots are counted in the sources."""
        part, _ = self.data.joined({self.config.target: self._target_rows})
        classes = Classes.by_shots(self.data.classes, self.method_options["class_counts"])
        view = self._view(part, training=False)
        return EvaluationImages(classes, part, view, self.device, workers)

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """Accuracy on the target first, then that on held-out images of the sources."""
        config, split = self.config, self.split
        target, _ = self._score({config.target: self._target_rows}, method, optimizer_step)
        metrics = {config.target: accuracy(target)}
        if config.adapt:
            metrics["mean_class"] = float(target.per_class.nanmean())
        if config.held_out:
            parts = [
                self._score({domain: held}, method, optimizer_step)
                for domain, held in split.val.items()
            ]
            # Every source counts the same, however many images it has.
            metrics["val"] = float(np.mean([accuracy(part) for part, _ in parts]))
            metrics["val_loss"] = float(np.mean([loss for _, loss in parts]))
        counts = self.method_options["class_counts"]
        figures = class_figures(target, counts, self.data.classes)
        return Evaluation({**metrics, **method.further_scores()}, figures)

    def _score(
        self, rows: Rows, method: Method, optimizer_step: OptimizerStep
    ) -> tuple[LongTailedMetrics, float]:
        batches = self._scored(rows, optimizer_step.config.workers)
        return score(method, optimizer_step, batches, self.num_classes)

    @cached_property
    def _resident(self) -> dict[str, ImageSplit]:
        """Parts that were scored before, in the device's memory."""
        return {}

    def _scored(self, rows: Rows, workers: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        name = next(iter(rows))
        part: Any = self._resident.get(name)
        if part is None:
            part, _ = self.data.joined(rows)
        if isinstance(part, ImageSplit):
            part = self._resident[name] = part.to(self.device)
        view = self._view(part, training=False)
        return scored_batches(part, view, SCORED_BATCH, self.device, workers)


def score(
    method: Method,
    optimizer_step: OptimizerStep,
    batches: Iterable[tuple[Tensor, Tensor]],
    classes: int,
) -> tuple[LongTailedMetrics, float]:
    """Predict every image once, by a method in eval mode; also returns the mean cross-entropy.

    Batches are those of :func:`~batchformer.lab.tasks.base.scored_batches`. Results are read from
    the device at the end.
    """
    scores, losses = LongTailedMetrics(classes, {}), []
    for images, labels in batches:
        with optimizer_step.autocast():
            logits = all_rows(method.predict(images).float(), len(labels))
        losses.append(F.cross_entropy(logits, labels, reduction="sum"))
        scores.update(logits, labels)
    return scores, float(torch.stack(losses).double().sum()) / len(scores.correct)


def accuracy(scores: LongTailedMetrics) -> float:
    """Percent of the images that are classified correctly."""
    return 100 * float(scores.correct.double().mean())


# Augmentation, by the name a configuration gives it


def training_view(config: DomainConfig) -> View:
    """Geometry and transform of training images from files."""
    if config.augment == "centre":
        return centre_crop(config.size, both=True), Compose((RandomFlip(), IMAGENET))
    grey = (RandomGrey(0.1),) if config.augment == "domain" else ()
    colours = (RandomFlip(), ColorJitter(0.3, 0.3, 0.3, 0.3), *grey, IMAGENET)
    return framing.RandomResizedCrop(config.size, scale=SCALE), Compose(colours)


def scored_view(config: DomainConfig) -> View:
    """Geometry and transform of images from files that are scored."""
    if config.augment == "centre":
        return centre_crop(config.size, both=True), IMAGENET
    return framing.ResizeWhole(config.size), IMAGENET
