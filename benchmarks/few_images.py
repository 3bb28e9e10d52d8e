"""A small network on frozen features with few images a class: which part of BatchFormer helps?

It reads ``cub_gzsl.npz`` and ``caltech_features.npz``, which ``image_features`` writes, in the
current folder. The hidden layer is trained, so that a second stream can change the features. Arms,
seeds and tests are fixed in ``docs/preregistered.md``, row 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer import BatchFormer, match, param_groups, two_streams
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Table
from batchformer.lab.methods.classifier import Unmixed
from batchformer.lab.metrics.intervals import holm, paired
from benchmarks.frozen_features import Rows, difference, read

HIDDEN, BATCH, UPDATES = 512, 64, 400
PER_CLASS = (5, 15)
SEEDS = range(100, 120)


class Source(NamedTuple):
    """Features, and the learning rate that was chosen for the baseline on them."""

    title: str
    file: Path
    rate: float


class Arm(NamedTuple):
    """How one network is trained: with a second stream, or with changes to its only stream."""

    second: Callable[[int], BatchFormer] | None = None
    dropout: float = 0.0  # of features, before they are normalised
    normalised: bool = False  # features are normalised, at test too
    smoothing: float = 0.0  # of labels
    balanced: bool = False  # Balanced Softmax in place of cross-entropy


SOURCES = (
    Source("birds", Path("cub_gzsl.npz"), 0.02),
    Source("objects", Path("caltech_features.npz"), 0.01),
)
BEST = "dropout, rows normalised, no encoder"
ARMS = {
    "without": Arm(),
    BEST: Arm(lambda dim: Unmixed(dim, 0.5, 0, normalised=True)),
    "BatchFormer": Arm(BatchFormer),
    'attend="self"': Arm(lambda dim: BatchFormer(dim, attend="self")),
    "rows normalised, no encoder": Arm(lambda dim: Unmixed(dim, 0.0, 0, normalised=True)),
    "dropout, no encoder": Arm(lambda dim: Unmixed(dim, 0.5, 0)),
    "none; rows normalised, also at test": Arm(normalised=True),
    "none; labels smoothed by 0.1": Arm(smoothing=0.1),
}
#: Pairs of arms that are compared. The first is the primary test; Holm's correction is over the
#: rest.
CONTRASTS = (
    *((arm, "without") for arm in list(ARMS)[1:]),
    (BEST, 'attend="self"'),
    (BEST, "none; labels smoothed by 0.1"),
    ("BatchFormer", 'attend="self"'),
)


def measure(
    settings: BenchSettings,
    sources: Sequence[Source] = SOURCES,
    per_class: Sequence[int] = PER_CLASS,
) -> Table:
    """Accuracy in percent, and differences of its mean over sizes with 95% intervals."""
    seeds = SEEDS[: settings.repeats]
    sizes = tuple(f"{count} a class" for count in per_class)
    table = Table(
        "few_images",
        "A hidden layer and a classifier on frozen features, few images a class",
        ("features of", "second stream", *sizes, "mean difference, 95% interval", "p"),
        settings.environment("float32"),
        notes=[
            f"{HIDDEN} hidden units, SGD with a cosine, encoders at a tenth of the rate, {UPDATES} "
            f"updates of {BATCH}, seeds {seeds[0]} to {seeds[-1]}, which also draw the images",
            "p of the first difference of each set is its primary test; the other p-values are "
            "corrected together, by Holm's method",
        ],
    )
    for source in sources:
        add_source(table, source, seeds, per_class)
    return table


def add_source(
    table: Table, source: Source, seeds: Sequence[int], per_class: Sequence[int]
) -> None:
    """A row for each arm, and for each further contrast."""
    train, test = read(source.file)

    def accuracy(arm: Arm, count: int, seed: int) -> float:
        some = some_of_each(train, count, seed)
        return percent(right(some, test, arm, seed, source.rate, UPDATES))

    by_size = {
        title: [[accuracy(arm, count, seed) for seed in seeds] for count in per_class]
        for title, arm in ARMS.items()
    }
    by_seed = {title: [*map(fmean, zip(*by_size[title], strict=True))] for title in ARMS}
    add_arms(table, source.title, by_size, by_seed, CONTRASTS)


def add_arms(
    table: Table,
    title: str,
    columns: Mapping[str, list[list[float]]],
    tested: Mapping[str, list[float]],
    contrasts: Sequence[tuple[str, str]],
) -> None:
    """A row for each arm: means of its `columns` over seeds, and the difference of `tested`.

    A row for each further contrast has its difference alone.
    """
    # With these anyone can compute the differences again.
    table.values |= {f"{title}, {arm}": tested[arm] for arm in tested}
    means = {arm: [round(fmean(column), 2) for column in columns[arm]] for arm in columns}
    tests = [paired(tested[other], tested[arm]).p_value for arm, other in contrasts]
    table.add(title, "without", *means["without"], "", None)
    for (arm, other), p in zip(contrasts, [tests[0], *holm(tests[1:])], strict=True):
        to_baseline = other == "without"
        label = arm if to_baseline else f"{arm} - {other}"
        cells = means[arm] if to_baseline else [None] * len(means[arm])
        table.add(title, label, *cells, difference(tested[other], tested[arm]), p)


def some_of_each(rows: Rows, count: int, seed: int) -> Rows:
    """At most `count` rows of each class, drawn with this seed; a larger `count` adds rows."""
    x, y = rows
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    kept = torch.cat([order[y[order] == c][:count] for c in torch.unique(y)])
    return x[kept], y[kept]


def percent(correct: Tensor) -> float:
    """The share of True in percent."""
    return 100 * float(correct.float().mean())


def right(train: Rows, test: Rows, arm: Arm, seed: int, rate: float, updates: int) -> Tensor:
    """Which test rows (M,) the network of one arm gets right, without its second stream."""
    x, y = train
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU())
    if arm.dropout:
        body.append(nn.Dropout(arm.dropout))
    if arm.normalised:
        body.append(nn.LayerNorm(HIDDEN, elementwise_affine=False))
    head = nn.Linear(HIDDEN, int(y.max()) + 1)
    mixing = None if arm.second is None else arm.second(HIDDEN)
    model = nn.ModuleList([body, head] if mixing is None else [body, head, mixing])
    optimizer = torch.optim.SGD(param_groups(model, rate), momentum=0.9, weight_decay=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for dropout
    prior = y.bincount().log() if arm.balanced else torch.zeros(int(y.max()) + 1)
    epochs = -(-updates * BATCH // len(x))
    rows = torch.cat([torch.randperm(len(x), generator=order) for _ in range(epochs)])
    for batch in torch.split(rows[: updates * BATCH], BATCH):
        features = body(x[batch])
        logits = head(features if mixing is None else two_streams(features, mixing))
        targets = match(logits, y[batch])
        loss = F.cross_entropy(logits + prior, targets, label_smoothing=arm.smoothing)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        cosine.step()
    body.eval()
    with torch.no_grad():
        correct: Tensor = head(body(test[0])).argmax(1) == test[1]
    return correct
