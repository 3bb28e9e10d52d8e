"""One run: a recipe, an arm and a seed, in a folder of its own.

With several ranks, rank 0 reads and writes the folder and tells the others what it found there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from batchformer.insight.look import MEASURED, Arrays
from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.methods import reweights
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import TrainConfig, require
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.distributed.rank_zero import by_rank_zero, on_rank_zero
from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.log import Progress
from batchformer.lab.engine.loop import Training, training
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import matmul_precision
from batchformer.lab.engine.state import Evaluation, Plan
from batchformer.lab.models.weights import file_hash
from batchformer.lab.runs.build import (
    TIMM,
    RecordedSizes,
    build,
    build_untrained,
    given_stride,
    given_weights,
    load_task,
    recordable,
    settle_stride,
    take_given_weights,
)
from batchformer.lab.runs.folder import (
    FORMAT,
    has_result,
    read_config,
    recipe_from_json,
    recipe_to_json,
    refuse_other_configuration,
    refuse_other_data,
    refuse_other_sources,
    with_absolute_paths,
    with_changes_noted,
    write_figures,
    write_json,
    write_result,
)
from batchformer.lab.runs.insight import figure_images, insight_arrays, save_insight
from batchformer.lab.runs.provenance import provenance, with_sitting
from batchformer.lab.runs.source_runs import (
    final_state,
    own_source_message,
    require_finished,
    require_known,
    trained_network,
    trained_stride,
    training_hash,
)
from batchformer.lab.tasks.base import Task
from batchformer.nn import exchange as group


@dataclass(frozen=True)
class Run:
    """One arm of a recipe with one seed, and its folder."""

    recipe: Recipe  # with the changes of the command line
    arm: str
    seed: int  # pairs runs of several arms
    folder: Path  # ``RUNS/RECIPE/ARM/seedN``, or one part of it
    device: torch.device
    part: str = ""  # name of this training, where a run consists of several

    def __post_init__(self) -> None:
        # The recorded recipe has to lead to its data from any working directory.
        object.__setattr__(self, "recipe", with_absolute_paths(self.recipe))

    @classmethod
    def below(cls, root: Path, recipe: Recipe, arm: str, seed: int, device: torch.device) -> Run:
        """The run in its place below the folder of all runs."""
        return cls(recipe, arm, seed, root / recipe.name / arm / f"seed{seed}", device)

    @property
    def title(self) -> str:
        return f"{self.recipe.name} {self.arm} seed {self.seed} {self.part}".rstrip()

    @property
    def task(self) -> Task:
        """Data and scores of this arm, as this seed draws them."""
        return load_task(self.trained.data, self.device).seeded(self.seed)

    @property
    def trained(self) -> Recipe:
        """The recipe as this arm trains it."""
        return with_arm(self.recipe, self.arm)

    def settled(self) -> Recipe:
        """The recipe as this arm trains it, with the stride of its initial weights."""
        stride = on_rank_zero(lambda: self._settled().stride)
        return self.trained.changed(stride=stride)

    def _settled(self) -> Recipe:
        trained = self.trained
        try:
            runs = {str(folder): trained_stride(folder) for folder in self.sources.values()}
            # An arm without the recipe's weights has their stride too: arms share one network.
            return settle_stride(trained, {**given_stride(self.recipe), **runs})
        except FileNotFoundError:
            # A run that is finished, or has a checkpoint, no longer needs its initial weights.
            if trained.stride != "auto":
                return trained
            before = read_config(self.folder)
            if before is None:
                raise
            return trained.changed(stride=recipe_from_json(before["trained"]).stride)

    @property
    @by_rank_zero
    def finished(self) -> bool:
        return has_result(self.folder)

    def _config(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "recipe": recipe_to_json(self.recipe),
            "arm": self.arm,
            "seed": self.seed,
            "trained": recipe_to_json(self.settled()),
        }

    @by_rank_zero
    def require_own_folder(self) -> None:
        """Refuse a folder that holds something else; nothing is written."""
        refuse_other_configuration(self.folder, self._config())

    @by_rank_zero
    def require_buildable(self) -> None:
        """Build the method once, without trained weights, to refuse settings that do not fit it."""
        task = self.task
        build(self.settled(), self.seed, RecordedSizes(task.num_classes, task.method_options))

    @by_rank_zero
    def begin(self) -> None:
        """Write what will be trained; refuse a folder that holds something else."""
        if not self.finished:
            self.require_sources()
        config = self._config()
        before = refuse_other_configuration(self.folder, config) or {}
        sources = self.source_settings()
        refuse_other_sources(self.folder, before.get("sources", {}), sources)
        if self.finished:
            return
        task = self.task
        self._require_validation(task)
        more = {
            "data": with_changes_noted(before.get("data", {}), task.facts()),
            "provenance": before.get("provenance") or provenance(self.device),
            "sittings": before.get("sittings", []),
        }
        if numbers := recordable(task):
            more["built_with"] = numbers
        if sources := {**before.get("sources", {}), **sources}:
            more["sources"] = sources
        if draws := task.draws():
            more["draws"] = draws
        if weights := self.weights_record():
            more["weights"] = weights
        elif "weights" in before:
            more["weights"] = before["weights"]
        refuse_other_data(self.folder, before, more)
        write_json(self.folder / "config.json", {**config, **more})

    @by_rank_zero
    def record_sitting(self, update: int) -> None:
        """Record that this process trains from here; a part also records it in its run."""
        sitting = {**provenance(self.device), "from_update": update, "stage": "train"}
        folders = {self.folder: sitting}
        if self.part:
            folders[self.folder.parent] = {**sitting, "part": self.part}
        for folder, own in folders.items():
            if config := read_config(folder):
                write_json(folder / "config.json", with_sitting(config, own))

    def _require_validation(self, task: Task) -> None:
        """Refuse to select by a score that no evaluation will have."""
        why = task.unvalidated if self.trained.train.select_on == "val" else ""
        require(
            not why,
            f"train.select-on is val, which chooses by a score of validation, and {why}; report "
            "the last evaluation by --train.select-on last",
        )

    def weights_file(self) -> Path | None:
        """The file of initial weights; None where none is named or it is no longer needed.

        Raises:
            FileNotFoundError: it is missing, and there is no checkpoint to continue from.
        """
        try:
            return given_weights(self.trained)
        except FileNotFoundError:
            if self.finished or load_newest(self.folder / "checkpoints") is not None:
                return None
            raise

    def weights_record(self) -> dict[str, str] | None:
        """What ``config.json`` says of the file of initial weights, if there is one."""
        file = self.weights_file()
        return None if file is None else {"file": str(file.absolute()), "sha256": file_hash(file)}

    @property
    def sources(self) -> dict[str, Path]:
        """Folders of the runs whose networks this one needs, as ``start`` and ``teacher``.

        Of several teachers the second is ``teacher2``, and so on.
        """
        folders: dict[str, Path] = {}
        for role, name in self.trained.sources():
            recipe, _, arm = name.partition("/")
            number = 1 + sum(key.startswith(role) for key in folders)
            folders[role if number == 1 else f"{role}{number}"] = (
                self._root / recipe / (arm or self.arm) / f"seed{self.seed}" / self.part
            )
        return folders

    def source_settings(self) -> dict[str, Any]:
        """The settings with which each source was trained; sources that are gone are left out."""
        configs = {role: read_config(folder) for role, folder in self.sources.items()}
        return {role: config["trained"] for role, config in configs.items() if config}

    @property
    def _root(self) -> Path:
        return self.folder.parents[3 if self.part else 2]

    @by_rank_zero
    def require_sources(self) -> None:
        """Refuse an impossible arm and missing source networks before any work."""
        with_arm(self.recipe, self.arm)
        self.weights_file()
        for role, folder in self.sources.items():
            if folder == self.folder:
                own = own_source_message(role.rstrip("0123456789"), self.recipe)
                raise ValueError(f"{self.title} {own}")
        if self.sources and not self.finished:
            for role, name in self.trained.sources():
                require_known(role, name, self._root)
            # The backbone of a detector was trained on other images.
            detection = self.recipe.task == "detection"
            split = None if detection else training_hash(self.task.facts())
            missing = []
            for folder in self.sources.values():
                try:
                    require_finished(folder, split, self.part)
                except FileNotFoundError as error:
                    missing.append(str(error))
            if missing:
                raise FileNotFoundError("\n".join(missing))

    def feed(self) -> Batches:
        """The batches of this seed, the same for every arm that has the same data."""
        return self.task.feed(self.trained.train, self.seed)

    def training(
        self, feed: Batches, request: StopRequest, *, quiet: bool, wandb: str | None, draw_bar: bool
    ) -> Training:
        """Train, or continue where it stopped, and write the result; yields at every update."""
        trained, task = self.settled(), self.task
        train, h = trained.train.in_updates(feed.per_epoch), trained.hyper
        plan = Plan(
            optim=trained.optim,
            schedule=trained.schedule,
            train=train,
            seed=self.seed,
            folder=self.folder,
            device=self.device,
            title=self.title,
            quiet=quiet,
            wandb_project=wandb,
            swad=(h.swad_converge, h.swad_tolerance, h.swad_ratio) if h.swad else None,
            on_start=self.record_sitting,
        )
        said = partial(print, f"{self.title}:", file=sys.stderr, flush=True)
        say: Callable[[str], None] = (lambda _: None) if quiet else said
        if reweights(trained.method):
            from batchformer.lab.methods.erm import reweighting_warning  # late: few methods need it

            epochs = train.updates / feed.per_epoch
            if warning := reweighting_warning(trained.method, trained.hyper, epochs):
                say(warning)
        method = _build_with_weights(self, trained, task, say)
        with explain_unfit_images():
            evaluation = yield from training(method, feed, task.evaluate, plan, request, draw_bar)
        if group.is_rank_zero():
            last_epoch = max(0, train.updates - 1) // feed.per_epoch
            # Only rank 0 continues, so rebuild the method without collectives.
            if group.world_size() > 1:
                method = build(trained, self.seed, task).to(self.device)
                method.begin_epoch(last_epoch)
            if train.precision == "fp64":
                method.float()  # single precision is enough for figures
            untrained = partial(build_untrained, trained, self.seed, task, self.device, last_epoch)
            figures = Progress(f"{self.title}: figures", 1, quiet, draw_bar)
            with group.as_single_rank(), matmul_precision(train.precision), figures as bar:
                _write_results(self, method, untrained, task, evaluation, train, bar)
        return evaluation


@contextmanager
def explain_unfit_images() -> Iterator[None]:
    """Say what to set if batches do not fit the network.

    A batch has a single image, which batch normalisation cannot use, or another number of channels.
    Whether a network fails depends on its layers, so only trying tells.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if "channels, but got" in str(error):
            raise ValueError(
                "The network takes images with another number of channels: the digits have one, "
                "which digits_net and digits16_net take, and all other data has three. Name "
                f"another network by --model. ({error})"
            ) from error
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            "Batch normalisation was given a single image, which has no spread to normalise by. "
            "Set --train.batch-size so that every device, and every part by --train.accumulate, "
            "has 2 images or more. If the last batch of an epoch is left with one image, set "
            f"--train.drop-last. ({error})"
        ) from error


def _build_with_weights(
    run: Run, trained: Recipe, task: Task, say: Callable[[str], None]
) -> Method:
    """The method with its initial weights; ranks other than 0 get them later."""
    made: list[Method] = []

    def build_first() -> None:
        weights = {role: trained_network(folder) for role, folder in run.sources.items()}
        start = weights.pop("start", None)
        given = partial(take_given_weights, recipe=trained, say=say)
        needed = trained.weights == TIMM or run.weights_file() is not None
        taken = given if needed else None
        made.append(build(trained, run.seed, task, start, [*weights.values()], given=taken))

    on_rank_zero(build_first)  # if it fails, all ranks fail
    return made[0] if made else build(trained, run.seed, task)


def _write_results(
    run: Run,
    method: Method,
    untrained: Callable[[], Method],
    task: Task,
    evaluation: Evaluation,
    train: TrainConfig,
    bar: Progress,
) -> None:
    """Write scores and figures; the result comes last, as a sign that all files are there."""
    write_figures(run.folder / "figures.npz", evaluation.figures)
    result = {
        "metrics": evaluation.metrics,
        "minutes": round(evaluation.seconds / 60, 3),
        "updates": train.updates,
        "selected": train.select_on,
    }
    if evaluation.findings:
        result["findings"] = evaluation.findings
    if train.figures:
        arrays = partial(_insight_arrays, run, method, untrained, task, bar)
        save_insight(arrays, run.folder, run.title)
    write_result(run.folder, result)


def _insight_arrays(
    run: Run, method: Method, untrained: Callable[[], Method], task: Task, bar: Progress
) -> Arrays | None:
    """The arrays of the network whose scores are reported, which may be an earlier one."""
    images = figure_images(task, method, run.recipe)
    if images is None:
        return None
    if state := final_state(run.folder):
        method.load_state_dict(dict(state))
    bar.hint(
        f"{run.title}: measuring figures on {min(len(images.labels), MEASURED):,} test images; "
        "--train.no-figures leaves this out."
    )
    return insight_arrays(method, images, run.seed, untrained, bar.measured)
