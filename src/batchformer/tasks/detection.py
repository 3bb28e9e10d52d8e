"""Finding objects in images: boxes to train on, average precision to score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from batchformer.data.detection_feed import DetectionFeed, scored_images
from batchformer.data.voc import BoxedImages, count_objects, load_voc
from batchformer.engine.config import TrainConfig
from batchformer.engine.fit import Evaluation
from batchformer.engine.mechanics import Mechanics
from batchformer.engine.method import Batches, Method
from batchformer.metrics.detection import Boxes, average_precision
from batchformer.tasks.detection_config import DetectionConfig


@dataclass(frozen=True)
class DetectionTask:
    """Data, batches and scores of one experiment.

    Args:
        data: images with boxes.
        config: which data, and sizes of images.
        device: where the detector is.
    """

    data: BoxedImages
    config: DetectionConfig
    device: torch.device

    @classmethod
    def load(cls, config: DetectionConfig, device: torch.device) -> DetectionTask:
        """Read all annotations; an error says what is missing and where it was looked for."""
        data = load_voc(config.root, config.trained_on, config.scored_on, config.difficult)
        return cls(data, config, device)

    def seeded(self, seed: int) -> DetectionTask:
        """Itself: every seed has the same data."""
        return self

    def draws(self) -> dict[str, str]:
        """Nothing: the split is the same for every seed."""
        return {}

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    @property
    def method_options(self) -> dict[str, Any]:
        """What methods of this task are told of the data."""
        return {"classes": self.data.classes, "class_counts": self.data.train_counts}

    def facts(self) -> dict[str, Any]:
        """What a reader should know of the data, for the run folder."""
        data = self.data
        return {
            "name": self.config.name,
            "split_sha256": data.split_sha256,
            "train": len(data.train),
            "test": len(data.test),
            "train_objects": int(data.train_counts.sum()),
            "test_objects": int(count_objects(data.test, self.num_classes).sum()),
            "classes": self.num_classes,
        }

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Training batches of images of differing sizes."""
        return DetectionFeed(
            self.data.train,
            self.config.shorter,
            self.config.longest,
            train.batch_size,
            seed,
            train.drop_last,
            self.device,
            train.workers,
        )

    def evaluate(self, method: Method, mechanics: Mechanics) -> Evaluation:
        """Average precision in percent, and that of each class."""
        scores = average_precision(self._found(method, mechanics), self.num_classes)
        figures = {
            "classes": np.array(self.data.classes),
            "class_ap": scores.by_class.numpy(),
            "train_counts": self.data.train_counts.numpy(),
        }
        metrics = {"ap": scores.ap, "ap50": scores.ap50, "ap75": scores.ap75}
        return Evaluation({**metrics, **method.remarks()}, figures)

    def _found(self, method: Method, mechanics: Mechanics) -> Iterator[tuple[Boxes, Boxes]]:
        """What is found in each image and what is there, in the pixels of its file.

        One image at a time: beside a larger one its border would be padded, and what is found in
        it would depend on its neighbours.
        """
        config, images = self.config, self.data.test
        sizes = (config.shorter_at_test, config.longest)
        shown = scored_images(images, *sizes, workers=mechanics.config.workers)
        for image, seen in zip(images, shown, strict=True):
            with mechanics.autocast():
                predicted: Any = method.predict([seen.x.to(self.device)])  # type: ignore[arg-type]
            found = {name: value.cpu() for name, value in predicted[0].items()}
            found["boxes"] = found["boxes"] / torch.tensor([*seen.scale, *seen.scale])
            there = {name: getattr(image, name) for name in ("boxes", "labels", "difficult")}
            yield found, there
