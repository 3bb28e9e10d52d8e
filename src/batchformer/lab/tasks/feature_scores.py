"""What the features of test images look like, by the same images and views wherever it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Method
from batchformer.lab.metrics.representation import alignment, feature_std, uniformity
from batchformer.lab.tasks.bank import Extract
from batchformer.lab.tasks.contrast_views import Viewed, two_views
from batchformer.nn.exchange import alone

#: Test images whose two views are compared, and how many of them make a batch.
ALIGNED, ALIGNED_BATCH = 1024, 128


def feature_scores(
    extract: Extract,
    features: Tensor,
    config: Viewed,
    test: ImageSplit | ImageFiles,
    workers: int | None,
) -> dict[str, float]:
    """Alignment of two views of test images, uniformity and standard deviation of all of them.

    The images and their views are the same in every evaluation. They are few: with several ranks,
    each looks at all of them.

    Args:
        extract: makes features (N, C) of images.
        features: (M, C) of all test images, as they are seen at test.
        config: says which views.
        test: the M images.
        workers: that read files.
    """
    count = min(ALIGNED, len(test))
    with alone():
        pairs = list(_first_pairs(config, test, count, features.device, workers))
    first, second = (torch.cat([extract(x) for x in side]) for side in zip(*pairs, strict=True))
    return {
        "alignment": alignment(first, second),
        "uniformity": uniformity(features),
        "feature_std": feature_std(features),
    }


def with_feature_scores(
    found: Evaluation,
    method: Method,
    config: LongTailConfig,
    test: ImageSplit | ImageFiles,
    batches: Iterable[tuple[Tensor, Tensor]],
    workers: int | None = None,
) -> Evaluation:
    """Scores, and beside them those of the features where ``data.views`` asks for them.

    Args:
        found: the scores.
        method: has ``features``.
        config: of the images.
        test: the test images.
        batches: all of them with labels, as they are seen at test.
        workers: that read files.
    """
    if config.views == "none":
        return found
    extract: Any = method.features
    features = torch.cat([all_rows(extract(x), len(y)) for x, y in batches])
    looks = feature_scores(extract, features, config, test, workers)
    return Evaluation({**found.metrics, **looks}, found.figures)


def _first_pairs(
    config: Viewed,
    part: ImageSplit | ImageFiles,
    count: int,
    device: torch.device,
    workers: int | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    looked_at = TrainConfig(batch_size=ALIGNED_BATCH, workers=workers)
    feed: Any = two_views(config, part, config.seed, looked_at, device)
    try:
        for step in range(-(-count // ALIGNED_BATCH)):
            batch = feed.batch(step)
            yield batch["x"], batch["view2"]
    finally:
        close(feed)
