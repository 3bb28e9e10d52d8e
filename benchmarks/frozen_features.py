"""A linear classifier on frozen features: accuracy by the size of the features.

It reads ``cub_gzsl.npz`` in the current folder: real features of birds. Training and test use the
seen classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer import attach, match, param_groups
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Cell, Table
from batchformer.lab.metrics.intervals import paired

DATA = Path("cub_gzsl.npz")
CHANNELS, BATCH, EPOCHS, RATE, SEEDS = 256, 64, 8, 0.01, 5
Attend = Literal["batch", "self"]
#: Features (M, C) and their classes (M,).
Rows = tuple[Tensor, Tensor]
#: What samples attend to, and whether mixed rows start with the size of the features.
ARMS: dict[str, tuple[Attend, bool] | None] = {
    "without": None,
    "BatchFormer": ("batch", False),
    "BatchFormer, scale": ("batch", True),
    'attend="self"': ("self", False),
    'attend="self", scale': ("self", True),
}


def measure(settings: BenchSettings, data: Path = DATA, channels: int = CHANNELS) -> Table:
    """Accuracy in percent, and differences with their 95% intervals over paired seeds."""
    seeds = range(settings.repeats or SEEDS)
    table = Table(
        "frozen_features",
        "A linear classifier on frozen features",
        ("root mean square", "training", "accuracy, %", "difference, 95% interval"),
        settings.environment("float32"),
        notes=[
            f"{channels} principal components, Adam at {RATE} with a cosine, {EPOCHS} epochs, "
            f"batches of {BATCH}, {len(seeds)} seeds"
        ],
    )
    train, test = components(data, channels)
    for size in (1 / channels**0.5, 0.25, 1.0):
        arms = {title: partial(accuracy, train, test, size, arm) for title, arm in ARMS.items()}
        add_arms(table, f"{size:.2g}", arms, seeds)
    return table


def add_arms(
    table: Table, label: Cell, arms: Mapping[str, Callable[[int], float]], seeds: Iterable[int]
) -> None:
    """A row for each arm, a function of the seed; the first is the baseline of the others."""
    scores = {title: [score(seed) for seed in seeds] for title, score in arms.items()}
    baseline = next(iter(scores.values()))
    for title, found in scores.items():
        table.add(label, title, round(fmean(found), 2), difference(baseline, found))


def difference(baseline: list[float], other: list[float]) -> str:
    """The mean paired difference with its 95% interval; nothing for the baseline itself."""
    if other is baseline:
        return ""
    found = paired(baseline, other)
    interval = "" if found.low is None else f" [{found.low:+.2f}, {found.high:+.2f}]"
    return f"{found.difference:+.2f}{interval}"


def read(data: Path) -> tuple[Rows, Rows]:
    """Features (M, C) of root mean square 1 and classes, to train on and to test."""
    with np.load(data, allow_pickle=False) as arrays:
        features = torch.from_numpy(arrays["features"].astype("float32"))
        places = [torch.from_numpy(arrays[f"{n}_loc"]).long() for n in ("trainval", "test_seen")]
        labels = torch.from_numpy(arrays["labels"]).long()
    features = features / features[places[0]].square().mean().sqrt()
    _, classes = torch.unique(labels[torch.cat(places)], return_inverse=True)
    train, test = classes.tensor_split((len(places[0]),))
    return (features[places[0]], train), (features[places[1]], test)


def components(data: Path, channels: int) -> tuple[Rows, Rows]:
    """The same as :func:`read` for the first principal components, (M, channels)."""
    (x, y), (other, classes) = read(data)
    _, _, axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    found, more = ((rows - x.mean(0)) @ axes[:channels].T for rows in (x, other))
    size = found.square().mean().sqrt()
    return (found / size, y), (more / size, classes)


def accuracy(
    train: Rows,
    test: Rows,
    size: float,
    arm: tuple[Attend, bool] | None,
    seed: int,
) -> float:
    """Percent of the test rows that a classifier gets right, trained on rows of this size."""
    torch.manual_seed(seed)
    (x, y), order = train, torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(x.shape[1], int(y.max()) + 1))
    if arm is not None:
        attend, scaled = arm
        scale = size if scaled else 1.0
        attach(model, attend=attend, scale=scale, example=size * x[:8], verbose=False)
    optimizer = torch.optim.Adam(param_groups(model, lr=RATE))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(x), generator=order), BATCH):
            logits = model(size * x[rows])
            loss = F.cross_entropy(logits, match(logits, y[rows]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        cosine.step()
    with torch.no_grad():
        right = model.eval()(size * test[0]).argmax(1) == test[1]
    return 100 * float(right.float().mean())
