"""Read run folders: finished, unfinished or damaged, never with an exception.

``runs/<recipe>/<arm>/seed<k>/`` holds ``config.json``, ``metrics.jsonl`` and ``figures.npz``, a
finished run also ``result.json``, and ``insight.npz`` if its network was looked at. The runs of a
sweep lie in ``runs/<sweep>/<level>/<arm>/seed<k>/``.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from batchformer.lab.config.consistency import source_names
from batchformer.lab.report.results.names import sorted_arms

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What zipfile and numpy raise on a damaged file; RuntimeError covers unsupported flags and
# compressions.
UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Arrays(Mapping[str, "NDArray[Any]"]):
    """The arrays of an ``.npz`` file, without those that cannot be read.

    Each access reads the file again and closes it, so a report of many runs stays small.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> NDArray[Any]:
        import numpy as np

        try:
            # Not np.load: it leaves a damaged file open.
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
                return array
        except UNREADABLE as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                return iter([name.removesuffix(".npy") for name in archive.namelist()])
        except UNREADABLE:
            return iter(())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def problem(self) -> str | None:
        """What is wrong with the file according to its checksums, or None."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                damaged = archive.testzip()
        except FileNotFoundError:
            return f"{self.path.name} is missing"
        except UNREADABLE as error:
            return f"{self.path.name} is damaged: {error}"
        return None if damaged is None else f"{self.path.name} is damaged: {damaged}"


State = Literal["finished", "unfinished", "damaged"]
Json = Mapping[str, Any]  # a JSON object, such as a recipe or a line of `metrics.jsonl`


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One recipe x arm x seed, as its folder holds it."""

    folder: Path
    recipe: Json  # the complete configuration, the same in every arm; empty if it cannot be read
    arm: str
    seed: int  # pairs it with the runs of other arms
    provenance: Json  # versions, hardware, command and code hash when the run was started
    metrics: tuple[Json, ...]  # records of training and evaluation by step
    result: Json | None  # final scores, None until the run has finished
    damage: str | None = None  # why the run cannot be used, or None
    remarks: tuple[str, ...] = ()  # what a usable run lacks
    data: Json = field(default_factory=dict)  # facts about the data: sizes, hash of the split
    taken_from: str = ""  # the run that it is a copy of, by recipe, arm and seed; else empty
    # The provenance of each start and resumption, with the update it began at
    sittings: tuple[Json, ...] = ()
    trained: Json = field(default_factory=dict)  # the recipe as this arm trained it
    weights: str = ""  # SHA-256 of the file of weights that it began with; else empty

    @property
    def trainings(self) -> frozenset[str]:
        """All trainings it depends on: its own or the one it copies, its start and its teacher.

        Each is named with its folder of runs, as other folders have other runs of the same names.
        """
        sources = (str(self.recipe.get(role) or "") for role in ("start", "teacher"))
        named = {
            f"{recipe}/{arm or self.arm}/seed{self.seed}"
            for source in sources
            for name in source_names(source)
            for recipe, _, arm in [name.partition("/")]
        }
        root = Path(*self.folder.resolve().parts[: -len(self.name.split("/"))])
        return frozenset(f"{root}/{name}" for name in {self.taken_from or self.name} | named)

    @property
    def configuration(self) -> Json:
        """What another run must share to be averaged with this one."""
        # Remarks repeat in words what the other facts say.
        found = {key: value for key, value in self.data.items() if key != "remarks"}
        facts = {"data_found": found, "weights_sha256": self.weights}
        return {**self.recipe, **{key: value for key, value in facts.items() if value}}

    @property
    def recipe_name(self) -> str:
        return str(self.recipe.get("name") or self.folder.resolve().parent.parent.name)

    @property
    def name(self) -> str:
        """Recipe, arm and seed, like the folders."""
        return f"{self.recipe_name}/{self.arm}/seed{self.seed}"

    @property
    def state(self) -> State:
        if self.damage is not None:
            return "damaged"
        return "unfinished" if self.result is None else "finished"

    @property
    def scores(self) -> dict[str, float | None]:
        """The final metrics in percent; None if one could not be measured."""
        return {} if self.result is None else dict(self.result["metrics"])

    @cached_property
    def figures(self) -> Arrays:
        """The arrays of ``figures.npz``, each read when it is asked for."""
        return Arrays(self.folder / "figures.npz")

    @cached_property
    def insight(self) -> Mapping[str, NDArray[Any]]:
        """The arrays of ``insight.npz``, each read when it is asked for; empty without the file.

        A run of several trainings has those of :attr:`insight_part`.
        """
        return Arrays(self.folder / self.insight_part / "insight.npz")

    @cached_property
    def insight_part(self) -> str:
        """The first of several trainings that was looked at; empty if the run is one training."""
        if (self.folder / "insight.npz").exists():
            return ""
        return min((path.parent.name for path in self.folder.glob("*/insight.npz")), default="")

    @cached_property
    def insight_figures(self) -> Mapping[str, NDArray[Any]]:
        """The arrays of ``figures.npz`` of the training that was looked at."""
        return Arrays(self.folder / self.insight_part / "figures.npz")

    def series(self, kind: str, value: str, by: str = "step") -> dict[int, float]:
        """One value by step, or by epoch, from the records of one kind."""
        return {
            int(record[by]): float(record[value])
            for record in self.metrics
            if record["kind"] == kind and isinstance(record.get(value), (int, float))
        }

    def measured(self, metric: str) -> float | None:
        """A final score; None if it is missing or not finite."""
        value = self.scores.get(metric)
        return float(value) if value is not None and math.isfinite(value) else None


#: Remark on a run whose figures were switched off.
LEFT_OUT = (
    "figures of samples and their relations were left out by --train.no-figures; "
    "`batchformer show FIGURE RUN --compute` measures them from the checkpoint"
)
#: What is lost with a damaged ``insight.npz``.
UNSEEN = (
    "not in the figures of samples until `batchformer show FIGURE RUN --compute` measures it again"
)


class _Damage(ValueError):
    """What is wrong with a file of a run."""


def find_runs(paths: str | Path | Iterable[str | Path]) -> list[RecordedRun]:
    """Every run at or below the paths, each once, by recipe, arm and seed.

    A path is the folder of a run, an arm, a recipe, a level, a sweep, or of all recipes and sweeps.
    Damaged and unfinished runs are in the list; see their ``state``.
    """
    given = [paths] if isinstance(paths, (str, Path)) else paths
    folders: dict[Path, Path] = {}
    for path in map(Path, given):
        if not path.is_dir():
            raise FileNotFoundError(
                f"There is no folder {path}. Runs lie in runs/<recipe>/<arm>/seed<k>; give any of "
                f"these folders."
            )
        for folder in _run_folders(path):
            folders.setdefault(folder.resolve(), folder)
    runs = [read_run(folder) for folder in folders.values()]
    rank = {arm: i for i, arm in enumerate(sorted_arms(run.arm for run in runs))}
    return sorted(runs, key=lambda run: (run.recipe_name, rank[run.arm], run.seed, run.folder))


def headline(runs: Iterable[RecordedRun]) -> str | None:
    """The metric that the task lists first, according to the first finished run."""
    return next((next(iter(run.scores)) for run in runs if run.scores), None)


def read_run(folder: str | Path) -> RecordedRun:
    """Read one run folder; what is wrong with it is in ``damage`` and ``remarks``."""
    folder = Path(folder)
    # If config.json cannot be read, arm and seed come from the names of the folders.
    digits = re.sub(r"\D", "", folder.name)
    arm, seed = folder.resolve().parent.name, int(digits) if digits else -1
    try:
        config = _configuration(folder)
    except _Damage as damage:
        return RecordedRun(folder, {}, arm, seed, {}, (), None, str(damage))
    data, provenance = config.get("data", {}), config.get("provenance", {})
    known = (folder, config["recipe"], config["arm"], config["seed"], provenance)
    try:
        result, log = _result(folder / "result.json"), folder / "metrics.jsonl"
        # An unfinished run of several trainings has no records of its own yet.
        records, remarks = ((), ()) if result is None and not log.exists() else _records(log)
    except _Damage as damage:
        return RecordedRun(*known, (), None, str(damage), data=data)
    if result is not None:
        missing = Arrays(folder / "figures.npz").problem()
        remarks += (f"{missing}; not in the figures by class and by image",) if missing else ()
        looked = sorted(folder.rglob("insight.npz"))  # of a run of several trainings, one for each
        problems = (Arrays(path).problem() for path in looked)
        remarks += tuple(f"{one}; {UNSEEN}" for one in problems if one)
        if _left_out_figures(config["recipe"]) and not looked:
            remarks += (LEFT_OUT,)
    origin, sittings = str(config.get("taken_from") or ""), tuple(config.get("sittings", ()))
    trained, weights = config.get("trained", {}), str(config.get("weights", {}).get("sha256", ""))
    return RecordedRun(
        *known, records, result, None, remarks, data, origin, sittings, trained, weights
    )


def _left_out_figures(recipe: Json) -> bool:
    train = recipe.get("train")
    return isinstance(train, Mapping) and train.get("figures") is False


def _run_folders(path: Path) -> list[Path]:
    if (path / "config.json").is_file() or re.fullmatch(r"seed\d+", path.name):
        return [path]
    depths = ("", "*/", "*/*/", "*/*/*/")  # the deepest are the levels of sweeps
    below = (found for levels in depths for found in path.glob(f"{levels}seed*"))
    return sorted(p for p in below if p.is_dir() and re.fullmatch(r"seed\d+", p.name))


def _configuration(folder: Path) -> dict[str, Any]:
    config = _json(folder / "config.json")
    kinds = {"recipe": dict, "arm": str, "seed": int}
    for key, kind in kinds.items():
        if not isinstance(config.get(key), kind):
            raise _Damage(f"config.json has no {key!r} of type {kind.__name__}")
    for key in ("provenance", "data", "trained", "weights"):
        if not isinstance(config.get(key, {}), dict):
            raise _Damage(f"config.json: {key!r} is not an object")
    sittings = config.get("sittings", [])
    if not isinstance(sittings, list) or not all(map(_is_sitting, sittings)):
        raise _Damage("config.json: 'sittings' is not a list of objects with a stage and an update")
    if not isinstance(config.get("data", {}).get("remarks", []), list):
        raise _Damage("config.json: the remarks on 'data' are not a list")
    return config


def _is_sitting(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("from_update"), int) and "stage" in one


def _result(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    result = _json(path)
    metrics = result.get("metrics")
    if not isinstance(metrics, dict) or not metrics:
        raise _Damage("result.json has no 'metrics'")
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise _Damage(f"result.json: the metric {name!r} is {value!r}, not a number")
    return result


def _records(path: Path) -> tuple[tuple[Json, ...], tuple[str, ...]]:
    """Records by step, and a remark on unreadable lines other than a torn last one."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise _Damage(f"{path.name} cannot be read: {error.strerror}") from error
    kept: dict[tuple[str, int], Json] = {}
    broken = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            kept[str(record["kind"]), int(record["step"])] = record
        except (ValueError, KeyError, TypeError):
            # The last line may be torn, if the run was stopped while writing it.
            if number < len(lines):
                broken.append(str(number))
    remarks = (f"{path.name}: unreadable line {', '.join(broken)}",) if broken else ()
    return tuple(kept[key] for key in sorted(kept, key=lambda key: (key[1], key[0]))), remarks


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise _Damage(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _Damage(f"{path.name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _Damage(f"{path.name} does not hold a JSON object")
    return content
