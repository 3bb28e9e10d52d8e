"""Means, differences and p-values of a comparison, computed from its records.

Numbers that were typed from an earlier page (``summary.json``) are used only where the records lack
seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchformer.insight.intervals import summary
from batchformer.lab.config.arms import BASELINE, MAIN
from batchformer.lab.metrics.intervals import holm, paired, pooled
from batchformer.lab.recipes import RECIPES
from batchformer.lab.report.results.names import UNTESTED, bounds, decimals
from batchformer.lab.report.results.records import SUMMARY, records_in, require_one_configuration

Test = tuple[str, str, str]  # an arm, the arm it is compared with, and a metric
P = float | str  # a p-value; a typed one may be `"<0.001"`


@dataclass(frozen=True)
class Mean:
    """One arm on one metric: the mean over ``n`` seeds with its 95% interval, if it has one."""

    mean: float
    low: float | None
    high: float | None
    n: int
    decimals: int = 2


@dataclass(frozen=True)
class Contrast:
    """One arm against another on one metric, paired by seed."""

    difference: float
    # low, high: 95% interval, None with fewer than three seeds
    low: float | None
    high: float | None
    p: P | None  # p-value of this difference alone
    n: int
    sd: float | None = None  # standard deviation of the paired differences, if it is known
    adjusted: P | None = None  # Holm's p-value as it was typed; None for a computed difference
    computed: bool = True  # whether it was computed from the values of the seeds
    decimals: int = 2


@dataclass(frozen=True)
class ComparisonEvidence:
    """One comparison, or several that are pooled."""

    recipe: str  # the recipe that has the paper's numbers
    # The score of every seed, by arm and metric
    values: Mapping[tuple[str, str], Mapping[int, float]]
    # The content of `summary.json`, or empty
    typed: Mapping[str, Any] = field(default_factory=dict)
    # The comparisons that it consists of, if there are several. `summary.json` names them as
    # `pools`.
    pooled: Sequence[ComparisonEvidence] = ()
    # Decimals by metric, for single values that were typed with fewer decimals than usual
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def arms(self) -> list[str]:
        return [*dict.fromkeys([*(arm for arm, _ in self.values), *self.typed.get("arms", {})])]

    @property
    def metrics(self) -> list[str]:
        typed = (metric for arm in self.typed.get("arms", {}).values() for metric in arm["metrics"])
        return [*dict.fromkeys([*(metric for _, metric in self.values), *typed])]

    def require(self, arms: Iterable[str]) -> None:
        """Refuse an arm that no record has; else its cells would silently be empty."""
        known = dict.fromkeys(arm for one in (self, *self.pooled) for arm in one.arms)
        typed = self.typed.get("contrasts", ())
        known |= dict.fromkeys(each[side] for each in typed for side in ("arm", "against"))
        for arm in arms:
            if arm not in known:
                raise ValueError(f"no record has the arm {arm!r}; the arms are {', '.join(known)}")

    def mean(self, arm: str, metric: str) -> Mean | None:
        """The mean over seeds; None if it was not measured, or if several are pooled."""
        typed = self.typed.get("arms", {}).get(arm, {"seeds": 0, "metrics": {}})
        by_seed = self.values.get((arm, metric), {})
        if by_seed and (metric not in typed["metrics"] or len(by_seed) >= typed["seeds"]):
            found = summary([*by_seed.values()], bounds(metric))
            places = decimals(metric) if found.n > 1 else self.places.get(metric, decimals(metric))
            return Mean(found.mean, found.low, found.high, found.n, places)
        if metric not in typed["metrics"]:
            return None
        known = typed["metrics"][metric]
        places = known.get("decimals", decimals(metric))
        return Mean(known["mean"], known.get("low"), known.get("high"), typed["seeds"], places)

    def contrast(self, arm: str, against: str, metric: str) -> Contrast | None:
        """The paired difference; None if it was not measured.

        A metric in ``UNTESTED`` has no p-value, even if one was typed.
        """
        found = self._difference(arm, against, metric)
        return replace(found, p=None) if found is not None and metric in UNTESTED else found

    def _difference(self, arm: str, against: str, metric: str) -> Contrast | None:
        if self.pooled and (found := self._pooled_contrast(arm, against, metric)):
            return found
        typed = self.typed_contrast(arm, against, metric)
        other = self.values.get((arm, metric), {})
        reference = self.values.get((against, metric), {})
        shared = sorted(other.keys() & reference.keys())
        if not shared or (typed is not None and typed.n > len(shared)):
            return typed
        result = paired([reference[s] for s in shared], [other[s] for s in shared])
        return Contrast(
            result.difference,
            result.low,
            result.high,
            result.p_value,
            result.n,
            result.sd,
            decimals=decimals(metric),
        )

    def typed_contrast(self, arm: str, against: str, metric: str) -> Contrast | None:
        """The difference as it was typed."""
        for typed in self.typed.get("contrasts", ()):
            if (typed["arm"], typed["against"]) == (arm, against) and metric in typed["metrics"]:
                known = typed["metrics"][metric]
                return Contrast(
                    known["difference"],
                    known.get("low"),
                    known.get("high"),
                    known.get("p"),
                    typed["seeds"],
                    adjusted=known.get("holm"),
                    computed=False,
                    decimals=decimals(metric),
                )
        return None

    def on_shared_seeds(self, arms: Sequence[str]) -> ComparisonEvidence:
        """Keep only the seeds that all of these arms have, so that their means are comparable."""
        own = {key: by_seed for key, by_seed in self.values.items() if key[0] in arms}
        shared = {
            metric: set.intersection(*(set(v) for (_, name), v in own.items() if name == metric))
            for _, metric in own
        }
        kept = {
            (arm, metric): {s: v for s, v in by_seed.items() if s in shared[metric]}
            for (arm, metric), by_seed in own.items()
        }
        # A typed mean is over all seeds of an arm, so it is used only if the arm has no values.
        typed_arms = {
            arm: {
                **known,
                "metrics": {m: v for m, v in known["metrics"].items() if (arm, m) not in kept},
            }
            for arm, known in self.typed.get("arms", {}).items()
        }
        return replace(self, values=kept, typed={**self.typed, "arms": typed_arms})

    def paper(self, arm: str, metric: str, against: str = "") -> float | None:
        """The paper's number of an arm, or its difference to another arm; the mean if pooled."""
        if self.pooled:
            each = [one.paper(arm, metric, against) for one in self.pooled]
            known = [value for value in each if value is not None]
            return sum(known) / len(known) if known else None
        numbers = RECIPES[self.recipe]().paper if self.recipe in RECIPES else {}
        own = numbers.get(arm, {}).get(metric)
        if not against:
            return own
        other = numbers.get(against, {}).get(metric)
        return None if own is None or other is None else own - other

    def _pooled_contrast(self, arm: str, against: str, metric: str) -> Contrast | None:
        """The mean difference of the pooled comparisons; each counts once."""
        differences, seeds = [], []
        for one in self.pooled:
            other, reference = one.values.get((arm, metric)), one.values.get((against, metric))
            if not other or not reference:
                return None
            shared = sorted(other.keys() & reference.keys())
            differences.append([other[seed] - reference[seed] for seed in shared])
            seeds.append(shared)
        scale = max(
            abs(v) for one in self.pooled for by in one.values.values() for v in by.values()
        )
        found = pooled(differences, scale, seeds=seeds)
        return Contrast(found.difference, found.low, found.high, found.p_value, found.seeds)


def load(root: Path, *folders: str) -> ComparisonEvidence:
    """Read the records of one comparison below ``root``, or of several to be pooled."""
    if len(folders) > 1:
        return ComparisonEvidence("", {}, pooled=[load(root, folder) for folder in folders])
    folder = root / folders[0]
    records = records_in(folder)
    require_one_configuration(records, folder)
    typed = json.loads((folder / SUMMARY).read_bytes()) if (folder / SUMMARY).exists() else {}
    if not records and not typed:
        raise ValueError(f"there are no records in {folder}; `batchformer record RUN` makes them")
    parts = [load(root, one) for one in typed.get("pools", ())]
    values: dict[tuple[str, str], dict[int, float]] = {}
    places: dict[str, int] = {}
    for record in records:
        places |= (record.more or {}).get("decimals", {})
        for metric, value in record.metrics.items():
            if value is not None:
                values.setdefault((record.arm, metric), {})[record.seed] = value
    recipe = records[0].recipe if records else str(typed["recipe"])
    return ComparisonEvidence(recipe, values, typed, parts, places)


def mean_over_settings(several: Sequence[ComparisonEvidence]) -> ComparisonEvidence:
    """One comparison in which a seed's score is its mean over several comparisons.

    Only seeds that all of them have are used. Pooling (``A + B``) treats the comparisons as a
    sample of possible settings; this mean is about these settings alone.
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    for key in several[0].values:
        each = [one.values.get(key, {}) for one in several]
        shared = sorted(set.intersection(*(set(by_seed) for by_seed in each)))
        if shared:
            values[key] = {s: sum(by_seed[s] for by_seed in each) / len(each) for s in shared}
    if not values:
        raise ValueError("these comparisons share no seed of any arm; record the missing runs")
    return ComparisonEvidence("", values)


def against_baseline_of(
    found: ComparisonEvidence, arm: str, other: ComparisonEvidence
) -> ComparisonEvidence:
    """One arm of a comparison, as ``batchformer``, against the ``baseline`` of another comparison.

    It compares a change that is not an arm, such as another loss. Differences stay paired by seed.
    """
    shown = {(MAIN, metric): by for (name, metric), by in found.values.items() if name == arm}
    reference = {key: by for key, by in other.values.items() if key[0] == BASELINE}
    if not shown or not reference:
        raise ValueError(
            f"the folder has no record of {arm}, or the one after `against` none of baseline"
        )
    return ComparisonEvidence("", shown | reference)


def holm_but_first(tests: Sequence[tuple[ComparisonEvidence, Test]]) -> list[P | None]:
    """Holm's p-values; None for the first test, which is primary and not corrected."""
    contrasts = [found.contrast(*test) for found, test in tests[1:]]
    if not all(c is None or c.computed for c in contrasts):
        raise ValueError("only tests that are computed from seeds can be corrected together")
    p_values = [None if c is None or c.p is None else float(c.p) for c in contrasts]
    return [None, *holm(p_values)]


def holm_over(found: ComparisonEvidence, family: Sequence[Test]) -> dict[Test, P | None]:
    """Holm's p-value of each test in the family.

    If one test was typed without its seeds, the typed corrections of all are used: correcting only
    the others would be too mild.
    """
    contrasts = {test: found.contrast(*test) for test in family}
    if all(c is None or c.computed for c in contrasts.values()):
        p_values = [None if c is None or c.p is None else float(c.p) for c in contrasts.values()]
        return dict(zip(contrasts, holm(p_values), strict=True))
    typed = {test: found.typed_contrast(*test) for test in contrasts}
    return {test: None if one is None else one.adjusted for test, one in typed.items()}
