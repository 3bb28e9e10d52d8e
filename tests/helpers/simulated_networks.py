"""Networks in memory for figures: with arrays that are given, or simulated ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np

COLOURS = ("#7a7f87", "#1f7ac4", "#d55e00", "#0c9268")
Key = tuple[str, int]
T = TypeVar("T")


def known(value: T | None) -> T:
    """What must be there."""
    assert value is not None
    return value


@dataclass(frozen=True, eq=False)
class Network:
    """One network of one arm and seed."""

    arm: str
    seed: int
    insight: Mapping[str, Any]
    insight_figures: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Group:
    """Networks by arm and seed; the reference comes first, then arms as they were given."""

    runs: Sequence[Network]
    reference: str = "baseline"

    @property
    def arms(self) -> list[str]:
        named = dict.fromkeys(run.arm for run in self.runs)
        return sorted(named, key=lambda arm: arm != self.reference)

    def of(self, arm: str) -> list[Network]:
        return sorted((run for run in self.runs if run.arm == arm), key=lambda run: run.seed)

    def colours_of(self, arms: Iterable[str]) -> dict[str, str]:
        return dict(zip(arms, COLOURS, strict=False))


def group_of(
    kept: Mapping[Key, Mapping[str, Any]],
    figures: Mapping[Key, Mapping[str, Any]] | None = None,
    reference: str = "baseline",
    scores: Mapping[str, float | None] | None = None,
) -> Group:
    """Networks by arm and seed that kept these arrays, and these for other figures."""
    return Group(
        [
            Network(*key, insight, (figures or {}).get(key, {}), scores or {})
            for key, insight in kept.items()
        ],
        reference,
    )


def simulated_group(*arms: str, seeds: Iterable[int] = (0,), **options: Any) -> Group:
    """Simulated networks of these arms."""
    return group_of({(a, s): simulated_insight(a, s, **options) for a in arms for s in seeds})


def simulated_insight(
    arm: str, seed: int, classes: int = 12, *, batches: int = 8, samples: int = 64, heads: int = 4
) -> dict[str, Any]:
    """What is kept of a network, the same for the same arguments; see ``_simulated``."""
    return dict(_simulated(arm, seed, classes, batches, samples, heads))


@cache
def _simulated(
    arm: str, seed: int, classes: int, batches: int, samples: int, heads: int
) -> dict[str, Any]:
    """Sums over batches that are drawn sample by sample.

    Rarer classes have less compact features and, with BatchFormer, larger gradients; attention
    prefers the own class and, a little, the tail. Arms of a seed see the same images.
    """
    shared = np.random.default_rng([seed, 11])
    fixed = np.random.default_rng(12)
    own = np.random.default_rng([seed, 13, *arm.encode()])
    counts = np.round(500 * 0.01 ** (np.arange(classes) / max(classes - 1, 1))).astype(np.int64)
    shots = np.where(counts > 100, 0, np.where(counts >= 20, 1, 2))
    rarity = np.linspace(0, 1, classes)
    made: dict[str, Any] = {
        "classes": np.array([f"class {i}" for i in range(classes)]),
        "train_counts": counts,
        "shot_of_class": shots,
    }
    # Predictions: too sure by more for rarer classes.
    labels = np.arange(3000) % classes
    confidence = (1 / classes + (1 - 1 / classes) * shared.beta(4, 1.5, 3000)).clip(0, 1)
    sure = 0.12 if arm == "baseline" else 0.06
    right = own.random(3000) < (confidence - sure * (0.5 + 1.5 * rarity[labels])).clip(0, 1)
    bins = np.minimum((confidence * 15).astype(int), 14)
    for name, each in (("count", np.ones(3000)), ("confidence", confidence), ("correct", right)):
        sums = np.zeros((4, 15))
        np.add.at(sums, (0, bins), each)
        np.add.at(sums, (1 + shots[labels], bins), each)
        made[f"reliability_{name}"] = sums
    # Features around class means.
    gain = 1.0 if arm == "baseline" else 1.25
    means = gain * fixed.normal(0, 2.5, (classes, 2))
    labels = np.arange(600) % classes
    width = 0.5 + 0.7 * rarity[labels, None]
    made |= {
        "projection": (means[labels] + width * own.normal(size=(600, 2))).astype(np.float32),
        "projection_labels": labels,
        "projection_share": np.array([0.41, 0.22]),
        "separation": gain * np.array([2.1, 1.6, 1.1]) + own.normal(0, 0.05, 3),
        "spread": np.array([0.8, 1.0, 1.25]) + own.normal(0, 0.02, 3),
    }
    # Images: a bright spot where the object is; heat around it, off by more for the baseline.
    labels = fixed.permuted(np.arange(24) % classes)
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 32), np.linspace(0, 1, 32)), -1)
    spots = fixed.uniform(0.25, 0.75, (24, 2))
    colour = fixed.uniform(80, 255, (24, 3))

    def bumps(at: Any, points: Any, wide: float) -> Any:
        return np.exp(-((points[None] - at[:, None, None]) ** 2).sum(-1) / wide)

    images = bumps(spots, grid, 0.02)[..., None] * colour[:, None, None]
    images = images + fixed.normal(60, 12, (24, 32, 32, 3))
    off = own.normal(0, 0.2 if arm == "baseline" else 0.06, (24, 2))
    made |= {
        "cam_thumbnails": images.clip(0, 255).astype(np.uint8),
        "cam_heat": bumps(spots + off, grid[::4, ::4], 0.05).astype(np.float16),
        "cam_labels": labels,
        "cam_predictions": np.where(own.random(24) < 0.7, labels, (labels + 1) % classes),
        "cam_confidence": own.beta(4, 2, 24),
        "cam_rows": np.arange(100, 124),
        "cam_layer": np.array("layer3"),
    }
    if arm != "baseline":
        made |= _simulated_relations(own, counts, shots, rarity, batches, samples, heads)
    return made


def _simulated_relations(
    own: np.random.Generator,
    counts: Any,
    shots: Any,
    rarity: Any,
    batches: int,
    samples: int,
    heads: int,
) -> dict[str, Any]:
    classes = len(counts)
    bins = np.arange(classes) * min(classes, 100) // classes
    size = int(bins.max()) + 1
    made: dict[str, Any] = {
        "bin_of_class": bins,
        "bin_pairs": np.zeros((size, size)),
        "attention": np.zeros((heads, size, size)),
        "attention_shots": np.zeros((heads, 3, 3)),
        "shot_pairs": np.zeros((3, 3)),
    }
    made |= {f"attention_{name}": np.zeros((heads, 2)) for name in ("self", "same", "other")}
    totals = {name: np.zeros(classes) for name in ("abs", "l2")}
    seen, hard = np.zeros(classes), own.uniform(0, 0.9, classes)
    for _ in range(batches):
        y = own.integers(classes, size=samples)
        same = y[:, None] == y
        diagonal = np.eye(samples, dtype=bool)
        scores = 1.2 * same + 0.4 * rarity[y] + 0.4 * own.normal(size=(heads, samples, samples))
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        moved = 3e-5 * (0.4 + rarity + hard)[y][:, None] * own.uniform(0.3, 1.7, (samples, samples))
        moved[diagonal] = 0
        pairs = (~diagonal).astype(float)
        for name, of, count in (
            ("attention", bins[y], "bin_pairs"),
            ("attention_shots", shots[y], "shot_pairs"),
        ):
            member = np.eye(len(made[count]))[of]
            made[name] += member.T @ (weights * pairs) @ member
            made[count] += member.T @ pairs @ member
        for name, mask in (
            ("self", diagonal),
            ("same", same & ~diagonal),
            ("other", ~same),
        ):
            made[f"attention_{name}"] += np.stack(
                [(weights * mask).sum((1, 2)), np.full(heads, mask.sum())], 1
            )
        np.add.at(totals["abs"], y, moved.sum(1) / (samples - 1))
        np.add.at(totals["l2"], y, 8 * moved.sum(1) / (samples - 1))
        np.add.at(seen, y, 1)
    for name, total in totals.items():
        made[f"gradient_{name}"] = total / np.maximum(seen, 1)
        made[f"gradient_images_{name}"] = 0.01 * total / np.maximum(seen, 1)
    made["gradient_samples"] = seen
    return made


def all_many(insight: Mapping[str, Any]) -> dict[str, Any]:
    """The same where every class is of many shots."""
    made = dict(insight)
    made["shot_of_class"] = np.zeros_like(made["shot_of_class"])
    for name in ("reliability_count", "reliability_confidence", "reliability_correct"):
        rows = made[name]
        made[name] = np.stack([rows[0], rows[0], 0 * rows[0], 0 * rows[0]])
    for name in ("separation", "spread"):
        made[name] = np.array([made[name].mean(), np.nan, np.nan])
    for name in ("attention_shots", "shot_pairs"):
        if name in made:
            total = np.zeros_like(made[name])
            total[..., 0, 0] = made[name].sum((-2, -1))
            made[name] = total
    return made


def simulated_batches(
    seed: int = 0, batches: int = 2, samples: int = 10, heads: int = 3, classes: int = 7
) -> dict[str, Any]:
    """Batches to look into, of random numbers."""
    random = np.random.default_rng(seed)
    attention = random.dirichlet(np.full(samples, 0.3), (batches, heads, samples))
    labels, predictions = random.integers(0, classes, (2, batches, samples))
    return {
        "batch_thumbnails": random.integers(0, 256, (batches, samples, 12, 9, 3), np.uint8),
        "batch_labels": labels,
        "batch_predictions": predictions,
        "batch_attention": attention.astype(np.float16),
        "batch_gradient": random.lognormal(-12, 3, (batches, samples, samples)).astype(np.float32),
    }
