"""Options of the commands, with the words of their help; nothing here needs torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchformer.lab.config.arms import MAIN
from batchformer.lab.config.data import DataConfig
from batchformer.lab.config.methods import MethodConfig, MethodName, ModuleConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.runs.cluster import JobConfig, Launcher


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a recipe that options can change."""

    data: DataConfig
    model: str
    """Network: resnet32, ride_resnet32 (CIFAR), digits_net, or any of timm's."""
    weights: str
    """A file of weights to begin with (.pth, .safetensors), or timm for those it downloads."""
    stride: Literal["auto", "3x3", "1x1"]
    """Where bottlenecks of a ResNet stride; auto: as the file of weights says, else in the 3x3."""
    method: MethodName
    """What a training step minimises and what the network predicts."""
    hyper: MethodConfig
    start: str
    """Start from the networks of RECIPE or RECIPE/ARM, seed by seed."""
    teacher: str
    """RECIPE or RECIPE/ARM whose trained network ride distils from; three with commas for lfme."""
    module: ModuleConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig

    @classmethod
    def fields_of(cls, recipe: Recipe) -> dict[str, Any]:
        return {f.name: getattr(recipe, f.name) for f in dataclasses.fields(Settings)}

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with these settings; it keeps the paper's numbers if its row is the same."""
        changed = dataclasses.replace(recipe, **Settings.fields_of(self))  # type: ignore[arg-type]
        if changed.row != recipe.row:
            changed = dataclasses.replace(changed, table=NOT_IN_THE_PAPER, paper={})
        return changed


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Settings):
    """Train one arm of a recipe with one seed. The same command continues a run that stopped."""

    arm: str = ""
    """One of the arms that `batchformer list` shows. By default batchformer; the baseline where
    BatchFormer takes no part and all arms would start from the same weights."""
    seed: int = 0
    """Seed of initial weights, order, augmentation and dropout."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    quiet: bool = False
    """Print no progress."""
    wandb: str | None = None
    """A Weights & Biases project to log to as well."""


@dataclass(frozen=True, kw_only=True)
class ManyRuns(Settings):
    """Options of commands that train several runs."""

    seeds: int | str = 3
    """How many, from 0 on, or which: 100-119 or 0,2,7-9; with fewer than 3 there is no interval."""
    together: int = 1
    """Runs that train side by side on the device; 8 suit a large GPU and a small network."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    page: Path | None = None
    """File of the page; by default report.html in the folder of the recipe or sweep."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    quiet: bool = False
    """Print no progress."""
    launcher: Launcher = "none"
    """none: train here, in this process; local: every run in a process of its own, at most
    jobs.at-once at a time; slurm: every run as a job of its own on the cluster."""
    wait: bool = False
    """With slurm: wait for the jobs and report at the end; else the command returns at once."""
    jobs: JobConfig = dataclasses.field(default_factory=JobConfig)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ManyRuns):
    """Train every arm with every seed, paired. Finished runs are kept, others continue."""

    arms: tuple[str, ...] = ()
    """Arms, each compared with the first. By default baseline and batchformer; the baseline alone
    where BatchFormer takes no part and all arms would start from the same weights."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ManyRuns):
    """Train a recipe with one setting at several levels, paired; finished runs are kept.

    Settings are those of the recipe that is varied, the same for every level.
    """

    levels: tuple[str, ...] = ()
    """Some of the sweep's levels; by default all."""
    arms: tuple[str, ...] = (MAIN,)
    """Arms that are trained at every level; the baseline is always trained beside them."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Baseline against +BatchFormer on embedded digits, with a table and a page at the end."""

    seeds: int = 5
    """Number of seeds, counted from 0."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    quiet: bool = False
    """Print no progress."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write one self-contained page of finished runs; unfinished ones are named."""

    to: Path = Path("report.html")
    """File of the page."""
    against: str | None = None
    """Arm to compare with; by default the baseline, else the first that shares a seed."""
    pooled: bool = False
    """Also pool the recipes: the effect of an arm over all of them, with its interval."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Where the data of a trained run is."""

    root: str | None = None
    """Its folder or file now; by default where it was when the run was trained."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Write one figure of finished runs to a file, or print its numbers."""

    to: Path | None = None
    """File of the figure, .svg, .png or .pdf; without it the numbers are printed."""
    against: str | None = None
    """Arm to compare with; by default the baseline, else the first that shares a seed."""
    compute: bool = False
    """Compute what a figure needs and a run has not stored, from the run's checkpoint."""
    data: RunData = dataclasses.field(default_factory=RunData)
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda, cuda:1, mps."""
    measure: Literal["abs", "l2"] = "abs"
    """influence: mean absolute value of a gradient, or its length."""
    on: Literal["features", "images"] = "features"
    """influence: the gradient on pooled features, or on input images."""
    cumulative: bool = False
    """influence: also the mean over all more frequent classes, as the released code draws it."""
    by_shots: bool = False
    """reliability: one curve each for many, medium and few shots."""
    arm: str | None = None
    """attention, cam: the arm that is shown; by default batchformer."""
    rule: Literal["seed", "change"] = "seed"
    """cam: the first images of each shot group, or those whose confidence changes most."""
    shots: Literal["many", "medium", "few"] | None = None
    """cam: only this shot group."""
    images: int = 6
    """cam: number of images of each shot group."""
    cam_layer: str | None = None
    """cam: layer whose maps are weighted, computed from the runs' checkpoints; "released" is
    layer3, as in the paper's code. By default the last layer with maps, which runs have stored."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the plain network's weights of a run, as a state dict without BatchFormer."""

    to: Path
    """File of the weights: .safetensors in that format, any other by torch.save."""
    data: RunData = dataclasses.field(default_factory=RunData)
    device: str = "cpu"
    """Device that the weights are loaded on."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Store what finished runs measured as small JSON files, and make tables of pages from them."""

    to: Path = Path("results")
    """Folder of all records."""
    variant: str = ""
    """Name of settings that differ from the recipe; by default it is made from them."""
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

    arm: str = MAIN
    """One of the arms that `batchformer list` shows."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""


BenchPart = Literal["layer", "growth", "step", "exchange", "transforms", "loader"]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Measure how fast everything is, candidates side by side, into tables."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    only: tuple[BenchPart, ...] = ()
    """Parts to measure; by default all that the device supports."""
    full: bool = False
    """Also measure larger grids, and what takes long to prepare."""
    repeats: int | None = None
    """Rounds of every measurement; by default what a few minutes allow."""
    to: Path = Path("bench")
    """Folder of bench.json and bench.md; parts measured there before are kept."""


@dataclass(frozen=True)
class ListOptions:
    """Every recipe with its row of the paper, and the arms.

    With words, such as `list cifar ride`: the recipes that have all of them in their name, task,
    data, method or row of the paper.
    """


@dataclass(frozen=True)
class DataOptions:
    """Which data sets are here, and where they are looked for.

    `data long-tail` writes which images of CIFAR form the long tail. `data pairs` makes a table
    of pairs of a tree DOMAIN/CLASS/IMAGE, `data convert-pairs` one of the metadata of a published
    set.
    """


@dataclass(frozen=True, kw_only=True)
class LongTailOptions:
    """Write which images of CIFAR form the long tail, and print its hash: `data long-tail`."""

    name: Literal["cifar10", "cifar100"] = "cifar100"
    """Which data set."""
    ratio: float = 100.0
    """Images of the largest class over those of the smallest: usually 10, 50, 100 or 200."""
    seed: int = 0
    """Seed of the draw; 0 gives the widely used list."""
    root: Path | None = None
    """Folder of the official files; by default where `batchformer data` looks."""
    to: Path = Path("long_tail.csv")
    """The list: position in the training files and label, a line for each image."""


@dataclass(frozen=True, kw_only=True)
class PairsOptions:
    """Make a table of attributes and objects of a tree DOMAIN/CLASS/IMAGE: `data pairs`."""

    root: Path
    """Folder of the domains."""
    to: Path = Path("pairs.csv")
    """The table, with the columns image, attribute, object and split."""
    unseen_val: int = 4
    """Number of pairs that only validation images show."""
    unseen_test: int = 6
    """Number of pairs that only test images show."""
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of a seen pair's images for training, validation and test."""
    seed: int = 0
    """Seed of the draws; the same tree and seed give the same table."""


@dataclass(frozen=True, kw_only=True)
class ConvertPairsOptions:
    """Write the metadata of a published set of pairs as a table: `data convert-pairs FILE.t7`."""

    to: Path = Path("pairs.csv")
    """The table, with the columns image, attribute, object and split."""
    images: Path | None = None
    """Folder of the images: paths are written as they are found there. By default they are written
    as in the file, which is wrong for sets that were re-organised."""
