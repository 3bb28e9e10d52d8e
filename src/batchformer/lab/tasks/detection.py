"""Object detection: boxes to train on, average precision to score."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from batchformer.lab.config.data import DetectionConfig
from batchformer.lab.config.training import TrainConfig, require
from batchformer.lab.data.feeds.detection import DetectionFeed, scored_images
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.feeds.sharding import all_rows, part_sizes, scored_rows
from batchformer.lab.data.sets.coco import load_coco
from batchformer.lab.data.sets.voc import BoxedImages, count_objects, load_voc
from batchformer.lab.engine.checkpoint import sync_state
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep, to_double
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.detection import (
    Boxes,
    average_precision,
    voc_average_precision,
    voc_rule,
)
from batchformer.lab.models.norms import recalibrate_norms
from batchformer.lab.tasks.base import FixedSplit
from batchformer.nn.exchange import gather, rank, world_size
from batchformer.nn.randomness import drawing


@dataclass(frozen=True)
class DetectionTask(FixedSplit):
    """Data, batches and scores of one experiment."""

    data: BoxedImages
    config: DetectionConfig
    device: torch.device

    @classmethod
    def load(cls, config: DetectionConfig, device: torch.device) -> DetectionTask:
        """Read all annotations; an error says what is missing and where it was looked for."""
        lists = (config.root, config.trained_on, config.scored_on)
        data = load_coco(*lists) if config.name == "coco" else load_voc(*lists, config.difficult)
        return cls(data, config, device)

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    @property
    def method_options(self) -> dict[str, Any]:
        return {"classes": self.data.classes, "class_counts": self.data.train_counts}

    def facts(self) -> dict[str, Any]:
        data = self.data
        remarks = {"remarks": list(data.remarks)} if data.remarks else {}
        return {
            "name": self.config.name,
            "split_sha256": data.split_sha256,
            "train": len(data.train),
            "test": len(data.test),
            "train_objects": int(data.train_counts.sum()),
            "test_objects": int(count_objects(data.test, self.num_classes).sum()),
            "classes": self.num_classes,
            **remarks,
        }

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Training batches of images of differing sizes."""
        require(
            train.damaged == "raise",
            "a damaged image with boxes cannot be replaced; set train.damaged raise, and take the "
            "image that the error names out of the list",
        )
        return DetectionFeed(
            self.data.train,
            self.config.shorter,
            self.config.longest,
            Steps(Shuffle(len(self.data.train), seed), train.batch_size, train.drop_last),
            seed,
            self.device,
            train.workers,
            accumulate=train.accumulate,
        )

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """Average precision in percent, by COCO's rule and on VOC also by VOC's; also by class."""
        if self.config.precise_norm:
            self._measure_statistics(method, optimizer_step)
        found = list(self._found(method, optimizer_step))
        scores = average_precision(found, self.num_classes)
        figures = {
            "classes": np.array(self.data.classes),
            "class_ap": scores.by_class.numpy(),
            "train_counts": self.data.train_counts.numpy(),
        }
        metrics = {"ap": scores.ap, "ap50": scores.ap50, "ap75": scores.ap75}
        if self.config.name == "voc":
            rule = voc_rule(self.config.scored_on)
            of_voc = voc_average_precision(found, self.num_classes, rule)
            prefix = "voc07" if rule == "eleven" else "voc"
            metrics |= {f"{prefix}_{name}": getattr(of_voc, name) for name in metrics}
        return Evaluation({**metrics, **method.further_scores()}, figures)

    @torch.no_grad()
    def _measure_statistics(self, method: Method, optimizer_step: OptimizerStep) -> None:
        """Set the statistics of batch normalisation to means over fixed training batches."""
        train = optimizer_step.config
        size = max(1, train.batch_size // train.accumulate)  # images normalised together
        feed = self.feed(dataclasses.replace(train, batch_size=size, accumulate=1), seed=0)
        method.train()
        try:
            # Regions are sampled, as in training.
            with recalibrate_norms(method), drawing(0, "dropout"), optimizer_step.autocast():
                for step in range(self.config.precise_norm):
                    batch = feed.batch(step)
                    double = train.precision == "fp64"
                    method.step({k: to_double(v) for k, v in batch.items()} if double else batch)
        finally:
            close(feed)
        sync_state(method)
        method.eval()

    def _found(
        self, method: Method, optimizer_step: OptimizerStep
    ) -> Iterator[tuple[Boxes, Boxes]]:
        """The found and the true objects of each image, in the pixels of its file.

        Images are scored one at a time: beside a larger one an image would be padded, and its
        result would depend on its neighbours. With several ranks, each scores a part of the images.
        """
        config, images = self.config, self.data.test
        sizes = (config.shorter_at_test, config.longest)
        own = images[scored_rows(len(images))]
        shown = scored_images(own, *sizes, workers=optimizer_step.config.workers)
        found = []
        for seen in shown:
            with optimizer_step.autocast():
                predicted: Any = method.predict([seen.x.to(self.device)])  # type: ignore[arg-type]
            boxes = {name: value.cpu() for name, value in predicted[0].items()}
            boxes["boxes"] = boxes["boxes"] / torch.tensor([*seen.scale, *seen.scale])
            found.append(boxes)
        for image, objects in zip(images, of_all_ranks(found, len(images)), strict=True):
            there = {name: getattr(image, name) for name in ("boxes", "labels", "difficult")}
            yield objects, there


def of_all_ranks(found: Sequence[Boxes], images: int) -> Sequence[Boxes]:
    """Gather what all ranks found in their images, in the order of the images.

    `found` has for each of this rank's images ``boxes`` (n, 4), ``labels`` (n,), ``scores`` (n,).
    There are `images` over all ranks, and every rank calls it.
    """
    if world_size() == 1:
        return found
    own = found[: part_sizes(images)[rank()]]
    counts = all_rows(torch.tensor([len(one["boxes"]) for one in found]), images).tolist()
    names = list(found[0])
    nothing = {name: found[0][name][:0] for name in names}
    rows = {
        name: torch.split(gather(torch.cat([one[name] for one in (nothing, *own)])), counts)
        for name in names
    }
    return [dict(zip(names, parts, strict=True)) for parts in zip(*rows.values(), strict=True)]
