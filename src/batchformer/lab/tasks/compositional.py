"""Compositional zero-shot learning: pairs of attribute and object, some never trained on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchformer.lab.config.data import PairConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import View, read_all
from batchformer.lab.data.feeds.memory import ExtendedFeed
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.data.files.image_files import ImageFiles, sizes_hash
from batchformer.lab.data.files.location import looked_in
from batchformer.lab.data.files.word_vectors import Embedded, embed, read_vectors, words_of
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.sets.known_pairs import load_pairs
from batchformer.lab.data.sets.pairs import PHASES, Compositions, PairFiles, Phase, pair_table
from batchformer.lab.data.transforms import (
    IMAGENET,
    Compose,
    RandomFlip,
    Transform,
)
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.compositional import CompositionalScores
from batchformer.lab.tasks.base import FixedSplit, image_feed, scored_batches
from batchformer.lab.tasks.image_files import centre_crop, in_memory

#: Images in a scored batch.
SCORED_BATCH = 128


@dataclass(frozen=True)
class CompositionalTask(FixedSplit):
    """Data, batches and scores of one experiment."""

    data: PairFiles
    words: Embedded
    config: PairConfig
    device: torch.device

    @classmethod
    def load(cls, config: PairConfig, device: torch.device) -> CompositionalTask:
        """Read lists and word vectors, and look for every image."""
        if config.name == "table":
            root = config.root or str(Path(str(config.table)).parent)
            data = pair_table(str(config.table), root)
        else:
            data = load_pairs(config.name, config.root)
        data.check_all()
        task = cls(data, word_vectors(config, data.compositions), config, device)
        if config.mask and task.unvalidated:
            raise ValueError(
                f"--data.mask leaves out pairs by a threshold chosen on validation data, and "
                f"{task.unvalidated}: add such images, or turn it off with --data.no-mask"
            )
        return task

    @cached_property
    def compositions(self) -> Compositions:
        """The candidate pairs of the scores: those of the open or of the closed world."""
        closed = self.data.compositions
        return closed.opened() if self.config.world == "open" else closed

    @property
    def num_classes(self) -> int:
        return len(self.compositions)

    @property
    def method_options(self) -> dict[str, Any]:
        return {"compositions": self.compositions, "vectors": self.words.matrix}

    @property
    def unvalidated(self) -> str:
        seen = self.data.compositions.seen[self.data.val.labels]
        if not len(seen):
            return f"{self.data.name} has no validation images"
        for lacking, lacks in (("unseen", seen.all()), ("seen", not seen.any())):
            if lacks:
                return f"validation of {self.data.name} has no images of {lacking} pairs"
        return ""

    def facts(self) -> dict[str, Any]:
        pairs, words = self.compositions, self.words
        facts = {
            "name": self.data.name,
            "split_sha256": self.data.split_sha256,
            **{str(phase): size for phase, size in self.data.sizes.items()},
            "attributes": len(pairs.attributes),
            "objects": len(pairs.objects),
            "pairs": len(pairs),
            "seen_pairs": int(pairs.seen.sum()),
            "skipped": dict(self.data.skipped),
            "remarks": list(self.data.remarks),
            "composed_words": {name: list(parts) for name, parts in words.composed.items()},
            "words_without_vector": {name: list(parts) for name, parts in words.missing.items()},
            "random_vectors": list(words.random),
        }
        if self.config.name == "table":
            facts["file_sizes_sha256"] = sizes_hash(map(self.data.part, PHASES))
        return facts

    def numbers(self, labels: Tensor) -> Tensor:
        """Convert pair numbers of the closed world to those of the configured world."""
        if self.config.world == "closed":
            return labels
        closed = self.data.compositions
        return (closed.attribute * len(closed.objects) + closed.object)[labels]

    @cached_property
    def _parts(self) -> dict[Phase, ImageSplit | ImageFiles]:
        """The images of each phase, in memory if they are to be kept there."""
        files = {phase: self.data.part(phase) for phase in PHASES}
        if self.config.memory:
            return {phase: read_all(part) for phase, part in files.items()}
        return {**files}

    def _view(self, training: bool) -> Transform | View:
        view = view_of(self.config, training)
        return in_memory(view) if self.config.memory else view

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches; ``y`` are numbers of seen pairs.

        A last batch of a single sample is left out (:func:`without_single_sample`).
        """
        train = without_single_sample(train, len(self.data.train))
        feed = image_feed(self._parts["train"], self._view(True), train, seed, self.device)
        if self.config.world == "closed":
            return feed
        table = self.numbers(torch.arange(len(self.data.compositions))).to(self.device)
        return ExtendedFeed(feed, lambda batch, step: {"y": table[batch["y"]]})

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """The area under the curve first; ``val`` is that of the validation data."""
        world, pairs = self.config.world, self.compositions
        kept: Tensor | None = None
        metrics: dict[str, float] = {}
        if len(self.data.val):
            possible: Any = method
            feasible = possible.feasibility().cpu() if self.config.mask else None
            val = CompositionalScores(pairs, "val", world, feasibility=feasible)
            self._score(val, method, optimizer_step)
            if feasible is None:
                found = val.result()
            else:
                threshold, found = val.choose()
                kept = (feasible >= threshold) | pairs.seen
            metrics["val"] = found.auc
        test = CompositionalScores(pairs, "test", world, kept)
        self._score(test, method, optimizer_step)
        found = test.result()
        figures = {
            "bias_of": np.array("pairs"),
            "bias_seen": found.seen_curve.numpy(),
            "bias_unseen": found.unseen_curve.numpy(),
        }
        return Evaluation({**found.metrics(), **metrics, **method.further_scores()}, figures)

    def _score(
        self, scores: CompositionalScores, method: Method, optimizer_step: OptimizerStep
    ) -> None:
        """Score all images of a phase."""
        part, workers = self._parts[scores.phase], optimizer_step.config.workers
        for images, labels in scored_batches(
            part, self._view(False), SCORED_BATCH, self.device, workers
        ):
            own = self.numbers(labels.cpu())
            with optimizer_step.autocast():
                # Not kept in a variable: logits of all pairs are large and would outlive the batch.
                scores.update(all_rows(method.predict(images).float(), len(own)), own)


def without_single_sample(train: TrainConfig, samples: int) -> TrainConfig:
    """The same training, without the last batch of an epoch if that has a single sample.

    CGE and CompCos keep the last, smaller batch. A single sample has no other to attend to, and
    batch normalisation refuses it if the last maps are 1 x 1.

    >>> [without_single_sample(TrainConfig(batch_size=4), n).drop_last for n in (8, 9, 10, 1)]
    [False, True, False, False]
    """
    size = train.batch_size
    single = samples > size > 1 and samples % size == 1
    return dataclasses.replace(train, drop_last=True) if single else train


def word_vectors(config: PairConfig, compositions: Compositions) -> Embedded:
    """Vectors of all attributes, then of all objects."""
    names = (*compositions.attributes, *compositions.objects)
    replacements = dict(pair.split("=", 1) for pair in config.replacements)
    files = [_found(file) for file in config.vectors]
    if not files:
        raise ValueError(
            "Compositional methods need word vectors: name a text file of GloVe, word2vec or "
            "fastText by --data.vectors FILE"
        )
    vectors = read_vectors(files, words_of(names, replacements=replacements))
    return embed(names, vectors, replacements=replacements, missing=config.missing_words)


def _found(file: str) -> Path:
    """The file, in the current folder or in the data folder."""
    path = Path(file).expanduser()
    places = [path] if path.is_absolute() else [path, looked_in() / path]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"There is no file of word vectors {' or '.join(map(str, places))}. Name one with "
        "--data.vectors: text of GloVe, word2vec or fastText."
    )


def view_of(config: PairConfig, training: bool) -> View:
    """Geometry and transform of images from files."""
    if training and config.augment == "resized":
        return framing.RandomResizedCrop(config.size), Compose((RandomFlip(), IMAGENET))
    return centre_crop(config.size), IMAGENET
