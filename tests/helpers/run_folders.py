"""Run folders as the engine writes them, with numbers given or from a small simulation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.report.results.comparison import RecipeComparison, compare_runs
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.runs import RecordedRun, find_runs
from batchformer.lab.report.results.sweeps import SweepComparison, compare_sweep, split_sweeps
from helpers.simulated_networks import simulated_insight

PAPER = {
    "baseline": {"all": 50.7, "many": 68.0, "medium": 49.7, "few": 31.9},
    "batchformer": {"all": 51.7, "many": 68.4, "medium": 49.3, "few": 34.3},
}


def recipe_of(name: str = "tail", **changes: Any) -> dict[str, Any]:
    """A small complete recipe; a change is named ``part__key=value``."""
    recipe: dict[str, Any] = {
        "name": name,
        "summary": "A long tail of ten classes",
        "table": "Table 1, Balanced",
        "task": "classification",
        "data": {"name": "tail", "imbalance": 100, "root": None},
        "model": "resnet32",
        "method": "balanced_softmax",
        "module": {"heads": 4, "layers": 1, "lr_factor": 1.0},
        "optim": {"name": "sgd", "lr": 0.1},
        "schedule": {"kind": "cosine", "warmup": 5},
        "train": {"updates": 400, "batch_size": 128, "loss_multiplier": 1.0},
        "paper": PAPER,
    }
    for change, value in changes.items():
        part, _, key = change.partition("__")
        if key:
            recipe[part] = {**recipe[part], key: value}
        else:
            recipe[part] = value
    return recipe


#: What arms change in a recipe, as ``trained`` in ``config.json`` records it.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "baseline": {"module": {"enabled": False}},
    "batchformer_self": {"module": {"attend": "self"}},
    "batchformer_frozen": {"module": {"trained": False}},
    "batchformer_mixed_only": {"module": {"streams": "mixed_only"}},
    "batchformer_official_loss": {"module": {"loss_scale": "official"}},
    "baseline_loss1.5x": {"module": {"enabled": False}, "train": {"loss_multiplier": 1.5}},
    "baseline_loss3x": {"module": {"enabled": False}, "train": {"loss_multiplier": 3.0}},
}


def trained_by(recipe: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """The recipe as an arm trains it."""
    changed = CHANGES.get(arm, {})
    return {**recipe, **{part: {**(recipe[part] or {}), **new} for part, new in changed.items()}}


def simulated(
    arm: str, seed: int, classes: int, per_class_images: int, gain: float
) -> tuple[dict[str, float], dict[str, Any]]:
    """Scores and arrays of a classifier that is worse on rarer classes.

    Images are as hard in every arm of a seed, so the arms are paired.
    """
    counts = np.round(500 * 0.01 ** (np.arange(classes) / max(classes - 1, 1))).astype(np.int64)
    shared = np.random.default_rng([seed, 1])
    own = np.random.default_rng([seed, 2, *arm.encode()])
    rarity = np.linspace(0, 1, classes)
    chance = 0.88 - 0.5 * rarity + shared.normal(0, 0.03, classes)
    if arm != "baseline":
        chance = chance + gain * (0.3 + rarity) + own.normal(0, 0.015, classes)
    draws = shared.random((classes, per_class_images))
    # A sixth of the images are drawn again: two trainings never agree on all of them.
    again = own.random(draws.shape) < 1 / 6
    correct = np.where(again, own.random(draws.shape), draws) < chance[:, None]
    per_class = 100.0 * correct.mean(1)
    groups = {"many": counts > 100, "medium": (counts >= 20) & (counts <= 100), "few": counts < 20}
    scores = {"all": 100.0 * float(correct.mean())}
    scores |= {name: float(per_class[mask].mean()) for name, mask in groups.items() if mask.any()}
    scores |= {"mean_class": float(per_class.mean()), "ece": 8.0 + float(own.normal(0, 0.4))}
    confusion = np.zeros((classes, classes), dtype=np.int32)
    np.fill_diagonal(confusion, correct.sum(1))
    wrong = np.random.default_rng([seed, 4, *arm.encode()])
    for i, missed in enumerate((~correct).sum(1) if classes > 1 else []):
        # Taken for another class, the sooner the more frequent that is.
        others = np.where(np.arange(classes) == i, 0, counts ** (0.5 if arm == "baseline" else 0.3))
        confusion[i] += wrong.multinomial(missed, others / others.sum()).astype(np.int32)
    arrays = {
        "per_class": per_class,
        "train_counts": counts,
        "confusion": confusion,
        "correct": correct.reshape(-1),
        "classes": np.array([f"class {i}" for i in range(classes)]),
    }
    return scores, arrays


def write_run(
    root: Path,
    arm: str = "baseline",
    seed: int = 0,
    *,
    scores: Mapping[str, float | None] | None = None,
    recipe: Mapping[str, Any] | None = None,
    classes: int = 10,
    per_class_images: int = 40,
    gain: float = 0.05,
    finished: bool = True,
    split: str = "0" * 64,
    provenance: Mapping[str, Any] | None = None,
    sittings: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write one run folder and return it; ``scores`` replace the simulated ones."""
    recipe = recipe or recipe_of()
    folder = root / str(recipe["name"]) / arm / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    measured, arrays = simulated(arm, seed, classes, per_class_images, gain)
    measured = dict(measured if scores is None else scores)  # type: ignore[arg-type]
    made = {
        "batchformer": "0.1.0",
        "code_sha256": "5f1d" * 16,
        "git": "abc1234",
        "python": "3.11.7",
        "torch": "2.6.0",
        "device": "cpu",
        "hardware": "Example CPU, 2 cores, 8 GB",
        "command": f"batchformer train {recipe['name']} --arm {arm} --seed {seed}",
        "started": f"2025-03-0{1 + seed % 9}T10:00:00+00:00",
    } | dict(provenance or {})
    data = {"split_sha256": split}
    config = {"recipe": recipe, "arm": arm, "seed": seed, "trained": trained_by(recipe, arm)}
    config |= {"data": data, "provenance": made}
    config["sittings"] = [
        {**made, "stage": "train", **sitting} for sitting in sittings or ({"from_update": 0},)
    ]
    (folder / "config.json").write_text(json.dumps(config))
    noise = np.random.default_rng([seed, 3, *arm.encode()])
    updates = recipe["train"]["updates"] if finished else recipe["train"]["updates"] // 2
    lines = []
    final = next((v for v in measured.values() if v is not None and math.isfinite(v)), 50.0)
    for step in range(updates // 40, updates + 1, updates // 40):
        epoch, time = step // 40, step / recipe["train"]["updates"]
        loss = 0.4 + 2.2 * math.exp(-4 * time) + float(noise.normal(0, 0.04))
        train = {"kind": "train", "epoch": epoch, "step": step, "loss": loss, "lr": 0.1}
        lines.append(train | {"samples_per_s": 5000.0})
        if step % (updates // 10) == 0:
            all_now = final * (1 - math.exp(-5 * time)) + (1 - time) * float(noise.normal(0, 1))
            lines.append({"kind": "eval", "epoch": epoch, "step": step, "all": all_now})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        np.savez_compressed(folder / "figures.npz", **arrays)
        result = {"metrics": measured, "minutes": 0.2, "updates": updates, "selected": "last"}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_sweep(
    root: Path,
    values: Mapping[tuple[str, str], Mapping[int, Mapping[str, float | None]]],
    *,
    name: str = "depth",
    reference: str = "1",
    baseline: str = "once",
    levels: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> Path:
    """Write the runs of a sweep and its description; ``values`` are scores by (arm, level), seed.

    ``levels`` are the paper's numbers by level, arm and metric.
    """
    named = dict.fromkeys(level for _, level in values)
    content = {
        "name": name,
        "factor": "layers",
        "table": "Layers",
        "reference": reference,
        "baseline": baseline,
        "levels": levels or {level: {} for level in named},
        "base": recipe_of("base"),
    }
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "sweep.json").write_text(json.dumps(content))
    for (arm, level), by_seed in values.items():
        recipe = recipe_of(f"{name}/{level}", module__layers=level)
        for seed, scores in by_seed.items():
            write_run(root, arm, seed, recipe=recipe, scores=scores)
    return root / name


def compared_sweep(folder: Path) -> SweepComparison:
    """The only sweep at or below a folder, compared."""
    (sweep,), _ = split_sweeps(find_runs(folder))
    return compare_sweep(sweep)


def write_insight(folder: Path, insight: Mapping[str, Any] | None = None, **options: Any) -> Path:
    """Write ``insight.npz`` of a run's folder, by default simulated for its arm and seed."""
    arm, seed = folder.parent.name, int(folder.name.removeprefix("seed"))
    np.savez_compressed(
        folder / "insight.npz", **(insight or simulated_insight(arm, seed, **options))
    )
    return folder


def change_json(path: Path, **changes: Any) -> None:
    """Replace or add entries of a JSON object."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_arrays(folder: Path, **changes: Any) -> None:
    """Replace or add arrays of ``figures.npz``; one that is None is removed."""
    with np.load(folder / "figures.npz") as arrays:
        kept = {**arrays, **changes}
    np.savez(folder / "figures.npz", **{k: v for k, v in kept.items() if v is not None})


@dataclass(frozen=True)
class RunTree:
    """The folder of all runs of a test."""

    root: Path

    def write(self, *args: Any, **options: Any) -> Path:
        return write_run(self.root, *args, **options)

    def write_pairs(self, seeds: int, *arms: str, **options: Any) -> None:
        """Runs of both arms, or of those that are named, with these seeds."""
        for seed in range(seeds):
            for arm in arms or ("baseline", "batchformer"):
                self.write(arm, seed, **options)

    def write_scores(
        self, values: Mapping[str, Sequence[Any]], metric: str = "all", **options: Any
    ) -> None:
        """Runs of arms with one value for each seed: a score, or scores by metric."""
        for arm, each in values.items():
            for seed, value in enumerate(each):
                scores = value if isinstance(value, Mapping) else {metric: value}
                self.write(arm, seed, scores=scores, **options)

    def runs(self) -> list[RecordedRun]:
        return find_runs(self.root)

    def group(self, reference: str | None = None) -> RunGroup:
        return one_group(self.runs(), reference)

    def compared(self, reference: str | None = None) -> RecipeComparison:
        """The only recipe, compared."""
        (recipe,) = compare_runs(self.runs(), reference).recipes
        return recipe
