"""Commands that train: demo, train, compare, sweep."""

from __future__ import annotations

from batchformer.commands.arguments import UserError, parse, refuse_unknown_arms, with_recipe
from batchformer.commands.results import print_report
from batchformer.options import (
    CompareOptions,
    DemoOptions,
    Settings,
    SweepOptions,
    TrainOptions,
)
from batchformer.recipes import find_recipe
from batchformer.recipes.ablations import SWEEPS, find_sweep
from batchformer.recipes.data_state import ensure_data
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.sweep_listing import print_sweeps


def demo(arguments: list[str]) -> None:
    options = parse(DemoOptions, arguments, "demo")
    recipe = find_recipe("demo")
    settings = Settings.fields_of(recipe)
    _compare(
        recipe,
        CompareOptions(seeds=options.seeds, runs=options.runs, quiet=options.quiet, **settings),
    )


def compare(arguments: list[str]) -> None:
    recipe, options = with_recipe(CompareOptions, arguments, "compare")
    if options.seeds < 1 or options.together < 1 or not options.arms:
        raise UserError("compare needs at least one seed, one arm and one run at a time.")
    refuse_unknown_arms(options.arms)
    _compare(recipe, options)


def _compare(recipe: Recipe, options: CompareOptions) -> None:
    ensure_data(recipe)
    from batchformer.recipes.compare import compare as train_arms
    from batchformer.recipes.run import pick_device

    device = pick_device(options.device)
    folders = list(
        train_arms(
            recipe,
            options.arms,
            range(options.seeds),
            root=options.runs,
            device=device,
            quiet=options.quiet,
            together=options.together,
        )
    )
    page = options.page or options.runs / recipe.name / "report.html"
    print_report(folders, page, recipe.name, options.arms[0])


def sweep(arguments: list[str]) -> None:
    if not arguments:
        print_sweeps()
        return
    if arguments[0] in ("-h", "--help"):
        names = "\n  ".join(SWEEPS)
        about = (SweepOptions.__doc__ or "").strip()
        print(f"Usage: batchformer sweep SWEEP [OPTIONS]\n\n{about}\n\nSweeps:\n  {names}\n")
        print("Options: batchformer sweep demo_layers --help")
        return
    plan = find_sweep(arguments[0])
    base = plan.base_recipe()
    defaults = Settings.fields_of(base)
    options = parse(SweepOptions, arguments[1:], f"sweep {plan.name}", **defaults)
    if options.seeds < 1 or options.together < 1 or not options.arms:
        raise UserError("sweep needs at least one seed, one arm and one run at a time.")
    refuse_unknown_arms(options.arms)
    levels = [plan.level(name).name for name in options.levels or plan.level_names]
    ensure_data(base := options.applied_to(base))
    from batchformer.recipes import run as runs
    from batchformer.recipes.sweep_run import run_sweep

    trained = run_sweep(
        plan,
        base,
        options.arms,
        levels,
        range(options.seeds),
        root=options.runs,
        device=runs.pick_device(options.device),
        quiet=options.quiet,
        together=options.together,
    )
    for _ in trained:
        pass
    folder = options.runs / plan.name
    # All there is of the sweep: levels and seeds may have been trained by several calls.
    print_report([folder], options.page or folder / "report.html", plan.name)


def train(arguments: list[str]) -> None:
    recipe, options = with_recipe(TrainOptions, arguments, "train")
    refuse_unknown_arms([options.arm])
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; seeds count from 0.")
    ensure_data(recipe)
    from batchformer.recipes.compare import run
    from batchformer.recipes.run import pick_device

    folder = run(
        recipe,
        options.arm,
        options.seed,
        root=options.runs,
        device=pick_device(options.device),
        quiet=options.quiet,
        wandb_project=options.wandb,
    )
    print(f"Finished: {folder}")
