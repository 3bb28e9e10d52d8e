"""What the commands can be told, with the words of their help; nothing here needs torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchformer.lab.config.data import DataConfig
from batchformer.lab.config.methods import MethodConfig, MethodName, ModuleConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.runs.cluster import JobConfig, Launcher


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What may be changed of a recipe."""

    data: DataConfig
    model: str
    """Network: resnet32, ride_resnet32 (CIFAR), digits_net, or any of timm's."""
    weights: str
    """A file of weights to begin with (.pth, .safetensors), or timm for those it downloads."""
    stride: Literal["auto", "3x3", "1x1"]
    """Where bottlenecks of a ResNet stride; auto: as the file of weights says, else in the 3x3."""
    method: MethodName
    """What is minimised."""
    hyper: MethodConfig
    start: str
    """RECIPE or RECIPE/ARM whose trained network runs start from, seed by seed."""
    teacher: str
    """RECIPE or RECIPE/ARM whose trained network the method ride distils from."""
    module: ModuleConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig

    @classmethod
    def fields_of(cls, recipe: Recipe) -> dict[str, Any]:
        return {f.name: getattr(recipe, f.name) for f in dataclasses.fields(Settings)}

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with these settings; the paper's numbers stay where they are still its own."""
        changed = dataclasses.replace(recipe, **Settings.fields_of(self))  # type: ignore[arg-type]
        if changed.row != recipe.row:
            changed = dataclasses.replace(changed, table=NOT_IN_THE_PAPER, paper={})
        return changed


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Settings):
    """Train one arm of a recipe with one seed; the same command goes on where it stopped."""

    arm: str = ""
    """One of the arms that `batchformer list` shows; by default batchformer, or the baseline where
    BatchFormer takes no part and arms would begin alike."""
    seed: int = 0
    """Of initial weights, order, augmentation and dropout."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    quiet: bool = False
    """No progress."""
    wandb: str | None = None
    """A Weights & Biases project to log to as well."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Settings):
    """Train every arm with every seed, paired; finished runs are kept, others go on."""

    seeds: int | str = 3
    """How many, counted from 0; or which: a range and a list, as in 100-119 or 0,2,7-9. With fewer
    than 3 there is no interval."""
    arms: tuple[str, ...] = ()
    """Each is compared with the first; by default baseline and batchformer, or the baseline alone
    where BatchFormer takes no part and arms would begin alike."""
    together: int = 1
    """Runs that train side by side on the device; 8 suit a large GPU and a small network."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    page: Path | None = None
    """Where the page goes; by default RUNS/RECIPE/report.html."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    quiet: bool = False
    """No progress."""
    launcher: Launcher = "none"
    """none: train here, in this process; local: every run in a process of its own, at most
    jobs.at-once at a time; slurm: every run as a job of its own on the cluster."""
    wait: bool = False
    """With slurm: wait for the jobs and report at the end; else the command returns at once."""
    jobs: JobConfig = dataclasses.field(default_factory=JobConfig)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Settings):
    """Train a recipe with one setting at several levels, paired; finished runs are kept.

    Settings are those of the recipe that is varied, the same for every level.
    """

    seeds: int | str = 3
    """How many, counted from 0; or which: a range and a list, as in 100-119 or 0,2,7-9. With fewer
    than 3 there is no interval."""
    levels: tuple[str, ...] = ()
    """Some of the sweep's levels; by default all."""
    arms: tuple[str, ...] = ("batchformer",)
    """Trained at every level; the baseline is always trained beside them."""
    together: int = 1
    """Runs that train side by side on the device; 8 suit a large GPU and a small network."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    page: Path | None = None
    """Where the page goes; by default RUNS/SWEEP/report.html."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    quiet: bool = False
    """No progress."""
    launcher: Launcher = "none"
    """none: train here, in this process; local: every run in a process of its own, at most
    jobs.at-once at a time; slurm: every run as a job of its own on the cluster."""
    wait: bool = False
    """With slurm: wait for the jobs and report at the end; else the command returns at once."""
    jobs: JobConfig = dataclasses.field(default_factory=JobConfig)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Baseline against +BatchFormer on embedded digits, with a table and a page at the end."""

    seeds: int = 5
    """How many."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    quiet: bool = False
    """No progress."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write one self-contained page of finished runs; unfinished ones are named."""

    to: Path = Path("report.html")
    """The page."""
    against: str | None = None
    """Arm to compare with; by default the baseline, else the first that shares a seed."""
    pooled: bool = False
    """Take the recipes together as well: an arm's effect over all of them, with its interval."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Where the data of a trained run lies."""

    root: str | None = None
    """Where it lies now; by default where it lay when the run was trained."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Write one figure of finished runs to a file, or print its numbers."""

    to: Path | None = None
    """The file, .svg, .png or .pdf; without it the numbers are printed."""
    against: str | None = None
    """Arm to compare with; by default the baseline, else the first that shares a seed."""
    compute: bool = False
    """Make what a figure needs and a run has not kept, from the run's checkpoint."""
    data: RunData = dataclasses.field(default_factory=RunData)
    device: str = "auto"
    """Where it is computed: auto, cpu, cuda, cuda:1, mps."""
    measure: Literal["abs", "l2"] = "abs"
    """influence: mean absolute value of a gradient, or its length."""
    on: Literal["features", "images"] = "features"
    """influence: the gradient on pooled features, or on input images."""
    cumulative: bool = False
    """influence: also the mean over all more frequent classes, as the released code draws it."""
    by_shots: bool = False
    """reliability: many, medium and few shots apart."""
    arm: str | None = None
    """attention, cam: whose; by default batchformer."""
    rule: Literal["seed", "change"] = "seed"
    """cam: the first images of each shot group, or those whose confidence changes most."""
    shots: Literal["many", "medium", "few"] | None = None
    """cam: one shot group alone."""
    images: int = 6
    """cam: of each shot group."""
    cam_layer: str | None = None
    """cam: layer of the network whose maps are weighed, computed from the runs' checkpoints;
    released is that of the paper's code, layer3. By default the last one with maps, as kept."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the plain network's weights of a run, as a state dict without BatchFormer."""

    to: Path
    """The file; one that ends in .safetensors is of that format, others are of torch.save."""
    data: RunData = dataclasses.field(default_factory=RunData)
    device: str = "cpu"
    """Where the weights are loaded."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Keep what finished runs measured as small JSON files, and make tables of pages from them."""

    to: Path = Path("results")
    """Folder of all records."""
    variant: str = ""
    """A name for settings that differ from the recipe; by default it is made from them."""
    make: tuple[Path, ...] = ()
    """Pages whose tables are made again from the records, such as RESULTS.md."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Score the newest checkpoint of a run."""

    data: RunData = dataclasses.field(default_factory=RunData)
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Settings):
    """Is BatchFormer acting in this recipe's training?"""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""


BenchPart = Literal["attention", "growth", "step", "exchange", "transforms", "loader"]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Measure how fast everything is, candidates side by side, into tables."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    only: tuple[BenchPart, ...] = ()
    """Parts to measure; by default all that the device allows."""
    full: bool = False
    """Larger grids, and what takes long to prepare."""
    repeats: int | None = None
    """Rounds of every measurement; by default what a few minutes allow."""
    to: Path = Path("bench")
    """Folder of bench.json and bench.md; parts measured there before are kept."""


@dataclass(frozen=True)
class ListOptions:
    """Every recipe, the arms, and the rows of the paper that have no recipe yet.

    With words, such as `list cifar ride`: the recipes that have all of them in their name, task,
    data, method or row of the paper.
    """


@dataclass(frozen=True)
class DataOptions:
    """Which data sets are here, and where they are looked for.

    ``data pairs`` makes a table of pairs of a tree DOMAIN/CLASS/IMAGE, ``data convert-pairs`` one
    of the metadata of a published set.
    """


@dataclass(frozen=True, kw_only=True)
class PairsOptions:
    """Make a table of attributes and objects of a tree DOMAIN/CLASS/IMAGE: `data pairs`."""

    root: Path
    """Folder of the domains."""
    to: Path = Path("pairs.csv")
    """The table, with the columns image, attribute, object and split."""
    unseen_val: int = 4
    """Pairs that only images of validation show."""
    unseen_test: int = 6
    """Pairs that only images of the test show."""
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Parts of a seen pair's images for training, validation and test."""
    seed: int = 0
    """Of the draws; the same tree and seed give the same table."""


@dataclass(frozen=True, kw_only=True)
class ConvertPairsOptions:
    """Write the metadata of a published set of pairs as a table: `data convert-pairs FILE.t7`."""

    to: Path = Path("pairs.csv")
    """The table, with the columns image, attribute, object and split."""
    images: Path | None = None
    """Folder of the images: paths are written as they lie there. By default as the file has them,
    which sets that were re-organised do not follow."""
