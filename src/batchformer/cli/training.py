"""Commands that train: demo, train, compare, sweep."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer.cli.arguments import (
    HELP,
    HELP_ALL,
    UserError,
    is_given,
    parse,
    parse_settings,
    refuse_idle,
    refuse_repeated,
    refuse_unknown_arms,
    seeds_of,
    usage,
    with_recipe,
)
from batchformer.cli.options import (
    CompareOptions,
    DemoOptions,
    ManyRuns,
    Settings,
    SweepOptions,
    TrainOptions,
)
from batchformer.cli.questions import check
from batchformer.cli.results import print_report
from batchformer.lab.config.arms import BASELINE, usual_arms
from batchformer.lab.config.recipe import Recipe, changed_settings
from batchformer.lab.engine.distributed.torchrun import is_follower, several_ranks
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.cluster import JobConfig, ensure_launcher
from batchformer.lab.runs.listing import ensure_data, print_sweeps

if TYPE_CHECKING:
    import torch

    from batchformer.lab.recipes.sweeps import Sweep
    from batchformer.lab.runs.run import Run


#: The last lines of the demonstration.
NEXT = """
Next, on your own images in photos/train/CLASS/*.jpg and photos/test/CLASS/*.jpg:
  batchformer compare my_folder --data.root photos --weights timm --optim.lr 0.005 --seeds 5
or in your own training loop: README.md, "Use it"."""
#: Printed before them if a shell would not find the command, as after `make demo`.
ACTIVATE = """
To call batchformer from your shell: source {activate}"""


def demo(arguments: list[str]) -> None:
    options = parse(DemoOptions, arguments, "demo")
    number = len(seeds_of(options.seeds))
    recipe = find_recipe("demo")
    settings = Settings.fields_of(recipe)
    # In a pipe, each finished run prints one line instead of its progress.
    piped = not sys.stderr.isatty()
    quiet = options.quiet or piped
    given: dict[str, Any] = {"seeds": options.seeds, "runs": options.runs, "quiet": quiet}
    ended = _say_scores if piped and not options.quiet else lambda _: None
    talks = not (options.quiet or is_follower())
    if talks:
        print("Does BatchFormer act in this network? batchformer.check says:\n")
        check(["demo"])
        count = f"{number} seed" + "s" * (number != 1)
        print(f"\nDoes it help? Training without and with it, {count} each.\n")
    _compare(recipe, CompareOptions(arms=usual_arms(recipe), **given, **settings), ended)
    if talks:
        activate = Path(sys.executable).with_name("activate")
        if activate.exists() and not shutil.which("batchformer"):
            print(ACTIVATE.format(activate=activate))
        print(NEXT)


def _say_scores(folder: Path) -> None:
    """Print one line for a run that has ended; rank 0 prints it."""
    from batchformer.lab.runs.folder import read_result

    if not is_follower():
        result = read_result(folder)
        scores = " ".join(f"{name} {value:.1f}" for name, value in result["metrics"].items())
        title = " ".join(folder.parts[-3:])
        print(f"{title}: {result['updates']} updates, {scores}", flush=True)


def compare(arguments: list[str]) -> None:
    recipe, options = with_recipe(CompareOptions, arguments, "compare")
    if not is_given("--arms", arguments):
        options = dataclasses.replace(options, arms=usual_arms(recipe))
    _refuse_impossible(options, "compare")
    _compare(recipe, options)


def _refuse_impossible(options: CompareOptions | SweepOptions, command: str) -> None:
    seeds_of(options.seeds)
    if options.together < 1 or not options.arms:
        raise UserError(f"{command} needs at least one arm and one run at a time.")
    if options.launcher != "none" and several_ranks():
        raise UserError(
            f"--launcher {options.launcher} submits jobs from one process: call it without "
            "torchrun."
        )
    if options.launcher != "none" and options.together > 1:
        raise UserError(
            f"--together {options.together} trains runs in one process, and --launcher "
            f"{options.launcher} gives each its own; how many train at once is --jobs.at-once."
        )
    if options.launcher != "slurm" and options.wait:
        raise UserError("--wait is for --launcher slurm; without it the command waits anyway.")
    if options.launcher == "none" and options.jobs != JobConfig():
        raise UserError(
            "--jobs... is for --launcher local or slurm; without a launcher --together says how "
            "many runs train at once."
        )
    refuse_unknown_arms(options.arms)
    refuse_repeated("--arms", options.arms)
    if options.launcher != "none":
        ensure_launcher(options.launcher)


def _compare(
    recipe: Recipe, options: CompareOptions, ended: Callable[[Path], None] = lambda _: None
) -> None:
    ensure_data(recipe)
    seeds = seeds_of(options.seeds)
    from batchformer.lab.runs.compare import folders_of, runs_of_comparison, train_all

    def report(begun: list[Path]) -> None:
        page = options.page or options.runs / recipe.name / "report.html"
        print_report(begun, page, recipe.name, options.arms[0])
        _say_others(options.runs / recipe.name, begun, page, options.arms[0])

    device = _device_here(options)
    runs = runs_of_comparison(recipe, options.arms, seeds, options.runs, device)
    trained = folders_of(train_all(runs, options.quiet, options.together))
    _train_and_report(runs, recipe.name, options, trained, report, ended)


def _device_here(options: ManyRuns) -> torch.device:
    """The device that this process trains on; jobs pick their own, where they run."""
    from batchformer.lab.runs.build import pick_device

    return pick_device(options.device if options.launcher == "none" else "cpu")


def _say_others(folder: Path, shown: Iterable[Path], page: Path, against: str) -> None:
    """Print which other runs have finished in the folder of a recipe, and how to show all.

    The page shows only runs of this command, as p-values are corrected over what it asked for.
    """
    others = {path.parent for path in folder.glob("*/seed*/result.json")} - set(shown)
    if not others or is_follower():
        return
    arms = ", ".join(sorted({run.parent.name for run in others}))
    command = ["batchformer", "report", str(folder), "--to", str(page)]
    command += [] if against == BASELINE else ["--against", against]
    count = f"{len(others)} other finished run" + ("s of" if len(others) > 1 else " of")
    print(f"Not on this page: {count} {arms}. A page of all: {shlex.join(command)}")


def _train_and_report(
    runs: Sequence[Run],
    name: str,
    options: ManyRuns,
    trained: Iterable[Path],
    report: Callable[[list[Path]], None],
    ended: Callable[[Path], None] = lambda _: None,
) -> None:
    """Train runs in this process, or as jobs, and report them; diverged ones end with an error.

    Args:
        trained: folders of the runs that finish; iterating it trains the runs in this process.
        report: takes the folders of all runs that have begun.
        ended: called with each folder of ``trained``.
    """
    if options.launcher != "none":
        _launch(runs, name, options, report)
        return
    for folder in trained:
        ended(folder)
    report(_begun(runs))
    # Unfinished runs have diverged: whatever else stops a run has ended the command by now.
    if diverged := [run.title for run in runs if not run.finished]:
        sys.stdout.flush()  # in a pipe, too, the tables come before the error
        raise UserError(_of_diverged(diverged, len(runs)))


def _begun(runs: Sequence[Run]) -> list[Path]:
    """Folders of all runs that have begun: a report also names those that diverged or stopped."""
    return [run.folder for run in runs if run.folder.is_dir()]


def _of_diverged(titles: Sequence[str], count: int) -> str:
    return (
        f"{len(titles)} of {count} runs diverged: {', '.join(titles)}. Finished runs are kept. "
        "Repeating the command gives the same. Lines above say what became NaN or infinite: change "
        "the learning rate or the precision, as by --optim.lr or --train.precision, and name "
        "another folder by --runs."
    )


def _launch(
    runs: Sequence[Run], name: str, options: ManyRuns, report: Callable[[list[Path]], None]
) -> None:
    """Train runs as jobs, wait for them if asked to, and report once some have finished."""
    from batchformer.lab.runs.launch import Launch, diverged, submit, train_locally, wait_for

    launch = Launch(
        options.launcher, options.jobs, options.runs, name, options.device, options.quiet
    )
    if options.launcher == "local":
        jobs = train_locally(launch, runs)
    else:
        jobs = submit(launch, runs)
        if not options.wait and not all(diverged(*one) for one in jobs):
            return
        wait_for(jobs, options.quiet)
    if any(run.finished for run in runs):
        report(_begun(runs))
    lost = [run.title for run, job in jobs if diverged(run, job)]
    words = [_of_diverged(lost, len(runs))] if lost else []
    if left := [run.title for run in runs if not run.finished and run.title not in lost]:
        words.append(
            f"{len(left)} of {len(runs)} runs have not finished: {', '.join(left)}. Repeat the "
            "command to continue them."
        )
    if words:
        raise UserError(" ".join(words))


def sweep(arguments: list[str]) -> None:
    from batchformer.lab.recipes.sweeps import SWEEPS, find_sweep

    if not arguments:
        print_sweeps()
        return
    if arguments[0] in (*HELP, HELP_ALL):
        print(usage(SweepOptions, "sweep", "Sweep", SWEEPS, "demo_layers"))
        return
    plan = find_sweep(arguments[0])
    recipe = plan.base_recipe()
    options = parse_settings(SweepOptions, arguments[1:], f"sweep {plan.name}", recipe)
    _refuse_impossible(options, "sweep")
    refuse_repeated("--levels", options.levels)
    levels = [plan.level(name).name for name in options.levels or plan.level_names]
    base = options.applied_to(recipe)
    refuse_idle(arguments, recipe, base)
    _refuse_varied(plan, recipe, base)
    ensure_data(base)
    folder = options.runs / plan.name

    def report(begun: list[Path]) -> None:
        # Report the whole sweep: several calls may have trained its levels and seeds.
        print_report([folder], options.page or folder / "report.html", plan.name)

    seeds = seeds_of(options.seeds)
    from batchformer.lab.runs.sweep import describe, run_sweep, runs_of_sweep

    device = _device_here(options)
    runs = runs_of_sweep(plan, base, options.arms, levels, seeds, options.runs, device)
    if options.launcher != "none":
        describe(plan, base, options.runs)
    trained = run_sweep(plan, base, runs, options.runs, options.quiet, options.together)
    _train_and_report(runs, plan.name, options, trained, report)


def _refuse_varied(plan: Sweep, recipe: Recipe, base: Recipe) -> None:
    """Refuse settings that a level sets: it would ignore them, or no longer be what it is called.

    Args:
        recipe: the one that the sweep varies.
        base: the same with the settings of the command line.
    """
    given = changed_settings(recipe, base)
    for level in plan.levels:
        read = changed_settings(level.change(recipe), level.change(base))
        if fixed := sorted(given.keys() - read.keys()):
            named = ", ".join(f"--{setting.replace('_', '-')}" for setting in fixed)
            raise UserError(
                f"{named}: level {level.name} of {plan.name} sets this itself. Leave it out; "
                "--levels says which levels to train."
            )


def train(arguments: list[str]) -> None:
    recipe, options = with_recipe(TrainOptions, arguments, "train")
    arm = options.arm or usual_arms(recipe)[-1]
    refuse_unknown_arms([arm])
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; seeds count from 0.")
    ensure_data(recipe)
    from batchformer.lab.runs.build import pick_device
    from batchformer.lab.runs.compare import run

    folder = run(
        recipe,
        arm,
        options.seed,
        root=options.runs,
        device=pick_device(options.device),
        quiet=options.quiet,
        wandb_project=options.wandb,
    )
    print(f"Finished: {folder}")
