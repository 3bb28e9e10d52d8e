"""A small network on frozen features with few images a class: what of BatchFormer helps?

It reads ``cub_gzsl.npz`` in the current folder, as ``frozen_features`` does. The hidden layer is
trained, so that a second stream can change the features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer import BatchFormer, match, param_groups, two_streams
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Table
from batchformer.lab.methods.classifier import Unmixed
from benchmarks.frozen_features import DATA, add_arms, read

HIDDEN, BATCH, UPDATES, RATE, SEEDS = 512, 64, 400, 0.02, 6
PER_CLASS = (5, 15)
Encoder = Callable[[int], BatchFormer]
#: One stream whose rows are normalised, also at test: does it need a second stream?
ONE_STREAM = "none, rows normalised, also at test"
#: The second stream of each training; None: there is one stream.
ARMS: dict[str, Encoder | None] = {
    "without": None,
    "BatchFormer": BatchFormer,
    'attend="self"': lambda dim: BatchFormer(dim, attend="self"),
    "rows normalised, no encoder": lambda dim: Unmixed(dim, 0.0, 0, normalised=True),
    "dropout, rows normalised, no encoder": lambda dim: Unmixed(dim, 0.5, 0, normalised=True),
    "dropout, no encoder": lambda dim: Unmixed(dim, 0.5, 0),
    ONE_STREAM: None,
}


def measure(
    settings: BenchSettings, data: Path = DATA, per_class: tuple[int, ...] = PER_CLASS
) -> Table:
    """Accuracy in percent, and differences with their 95% intervals over paired seeds."""
    seeds = range(settings.repeats or SEEDS)
    table = Table(
        "few_images",
        "A hidden layer and a classifier on frozen features, few images a class",
        ("images a class", "second stream", "accuracy, %", "difference, 95% interval"),
        settings.environment("float32"),
        notes=[
            f"{HIDDEN} hidden units, SGD at {RATE} with a cosine, encoders at a tenth of it, "
            f"{UPDATES} updates of {BATCH}, {len(seeds)} seeds"
        ],
    )
    train, test = read(data)
    for count in per_class:
        few = first_of_each(train, count)
        arms = {title: partial(accuracy, few, test, title) for title in ARMS}
        add_arms(table, count, arms, seeds)
    return table


def first_of_each(rows: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """At most `count` rows of each class, drawn with seed 0."""
    x, y = rows
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    kept = torch.cat([order[y[order] == c][:count] for c in torch.unique(y)])
    return x[kept], y[kept]


def accuracy(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], title: str, seed: int
) -> float:
    """Percent of the test rows that the network of one arm gets right without its second stream."""
    x, y = train
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU())
    if title == ONE_STREAM:
        body.append(nn.LayerNorm(HIDDEN, elementwise_affine=False))
    head = nn.Linear(HIDDEN, int(y.max()) + 1)
    encoder = ARMS[title]
    mixing = None if encoder is None else encoder(HIDDEN)
    model = nn.ModuleList([body, head] if mixing is None else [body, head, mixing])
    optimizer = torch.optim.SGD(param_groups(model, RATE), momentum=0.9, weight_decay=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for dropout
    epochs = -(-UPDATES * BATCH // len(x))
    rows = torch.cat([torch.randperm(len(x), generator=order) for _ in range(epochs)])
    for batch in torch.split(rows[: UPDATES * BATCH], BATCH):
        features = body(x[batch])
        logits = head(features if mixing is None else two_streams(features, mixing))
        loss = F.cross_entropy(logits, match(logits, y[batch]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        cosine.step()
    with torch.no_grad():
        right = head(body(test[0])).argmax(1) == test[1]
    return 100 * float(right.float().mean())
