"""The training of one run: from what it is built, and what is kept of it in its folder.

Of several ranks the first reads and writes the folder, and tells the others what it found there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from batchformer.insight.look import MEASURED, Arrays
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.distributed.rank_zero import first_says
from batchformer.lab.engine.interleave import Training
from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.log import Progress
from batchformer.lab.engine.loop import Evaluation, Plan, training
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.precision import products_in
from batchformer.lab.methods.ldam import never_comes
from batchformer.lab.runs.building import build, build_untrained
from batchformer.lab.runs.folder import write_figures, write_result
from batchformer.lab.runs.insight_arrays import keep, seen_of
from batchformer.lab.runs.networks import TIMM, take_given_weights
from batchformer.lab.runs.start import final_state, trained_network
from batchformer.lab.tasks.load import Task
from batchformer.nn import exchange as group

if TYPE_CHECKING:
    from batchformer.lab.runs.run import Run


def training_of(
    run: Run, feed: Batches, request: StopRequest, *, quiet: bool, wandb: str | None, alone: bool
) -> Training:
    """Train, or go on where it stopped, and keep the result; update by update.

    Args:
        alone: whether this run may have the terminal for itself.
    """
    trained, task = run.settled(), run.task
    train = trained.train.in_updates(feed.per_epoch)
    plan = Plan(
        optim=trained.optim,
        schedule=trained.schedule,
        train=train,
        seed=run.seed,
        folder=run.folder,
        device=run.device,
        title=run.title,
        quiet=quiet,
        wandb_project=wandb,
        on_start=run.record_sitting,
    )
    said = partial(print, f"{run.title}:", file=sys.stderr, flush=True)
    say: Callable[[str], None] = (lambda _: None) if quiet else said
    if late := never_comes(trained.method, trained.hyper, train.updates / feed.per_epoch):
        say(late)
    method = _built(run, trained, task, say)
    with _explained():
        evaluation = yield from training(method, feed, task.evaluate, plan, request, alone)
    if group.leads():
        last_epoch = max(0, train.updates - 1) // feed.per_epoch
        # Nobody waits for the others any more, so that what they share is built anew.
        if group.ranks() > 1:
            method = build(trained, run.seed, task).to(run.device)
            method.begin_epoch(last_epoch)
        if train.precision == "fp64":
            method.float()  # figures need no more
        figures = Progress(f"{run.title}: figures", 1, quiet, alone)
        with group.alone(), products_in(train.precision), figures as bar:
            untrained = partial(build_untrained, trained, run.seed, task, run.device, last_epoch)
            _keep(run, method.scored(), untrained, task, evaluation, train, bar)
    return evaluation


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to set where normalisation meets a single value of each channel.

    Which networks do depends on the size of their last maps, so that it is not known before.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            "Batch normalisation was given a single image, which has no spread to normalise by. "
            "Set --train.batch-size so that every device, and every part by --train.accumulate, "
            "has 2 images or more; where the last batch of an epoch is left with one image, set "
            f"--train.drop-last. ({error})"
        ) from error


def _built(run: Run, trained: Recipe, task: Task, say: Callable[[str], None]) -> Method:
    """The method with the weights that it begins with; ranks but the first get them later."""
    made: list[Method] = []

    def build_first() -> None:
        weights = {role: trained_network(folder) for role, folder in run.sources.items()}
        given = partial(take_given_weights, recipe=trained, say=say)
        needed = trained.weights == TIMM or run.weights_file() is not None
        taken = given if needed else None
        made.append(build(trained, run.seed, task, **weights, given=taken))

    first_says(build_first)  # an error of its files is that of all
    return made[0] if made else build(trained, run.seed, task)


def _keep(
    run: Run,
    method: Method,
    untrained: Callable[[], Method],
    task: Task,
    evaluation: Evaluation,
    train: TrainConfig,
    bar: Progress,
) -> None:
    """Write what was measured and what is to be seen; last, that all is there."""
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
        keep(partial(_seen, run, method, untrained, task, bar), run.folder, run.title)
    write_result(run.folder, result)


def _seen(
    run: Run, method: Method, untrained: Callable[[], Method], task: Task, bar: Progress
) -> Arrays | None:
    """What is to be seen of the network that is reported, which may be an earlier one."""
    shown = getattr(task, "shown", None)
    if shown is None or method.relations() is None:
        return None
    if state := final_state(run.folder):
        method.load_state_dict(dict(state))
    images = shown(run.trained.train.workers)
    if images is not None:
        bar.note(
            f"{run.title}: measuring figures on {min(len(images.labels), MEASURED):,} test images; "
            "--train.no-figures leaves this out."
        )
    return seen_of(method, images, run.seed, untrained, bar.measured)
