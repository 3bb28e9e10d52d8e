"""Commands on finished runs: evaluate, report, show, export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from batchformer.commands.arguments import UserError, leading_paths, parse, refuse_unknown_arms
from batchformer.engine.wide import follows
from batchformer.options import EvaluateOptions, ExportOptions, ReportOptions, ShowOptions

#: Methods that put a classifier of their own into the network.
OWN_CLASSIFIER = ("ldam", "lws", "mdd", "cge", "compcos", "ce_gzsl")


def evaluate(arguments: list[str]) -> None:
    folders, rest = leading_paths(arguments, "evaluate")
    options = parse(EvaluateOptions, rest, "evaluate RUN")
    import torch

    from batchformer.engine.mechanics import Mechanics
    from batchformer.engine.precision import products_in
    from batchformer.recipes import run as runs
    from batchformer.recipes.plain import from_plain

    device = runs.pick_device(options.device)
    for folder in folders:
        method, task, config = runs.restore(folder, device)
        mechanics = Mechanics(from_plain(config["trained"]).train, device)
        with torch.no_grad(), products_in(mechanics.config.precision):
            metrics = task.evaluate(method, mechanics).metrics
        print(f"{folder}: " + " ".join(f"{name} {value:.2f}" for name, value in metrics.items()))


def report(arguments: list[str]) -> None:
    folders, rest = leading_paths(arguments, "report")
    options = parse(ReportOptions, rest, "report RUN...")
    print_report(folders, options.to, against=options.against, pooled=options.pooled)


def print_report(
    folders: list[Path],
    page: Path,
    title: str | None = None,
    against: str | None = None,
    pooled: bool = False,
) -> None:
    """Tables in the terminal, and the page, of all runs at or below these folders.

    Runs that have not finished are named, those submitted to a cluster also where they have not
    begun.
    """
    if follows():
        return  # the folders are those of rank 0, which shows them
    from batchformer.report.runs import find_runs

    found = find_runs(folders)
    if against is not None:
        refuse_unknown_arms([against], (run.arm for run in found))
    from batchformer.recipes.slurm import not_begun
    from batchformer.report.comparison import compare_runs
    from batchformer.report.html import write_page
    from batchformer.report.pooled_table import print_together
    from batchformer.report.pooling import take_together
    from batchformer.report.sweep_comparison import compare_sweep
    from batchformer.report.sweep_table import print_sweep
    from batchformer.report.sweeps import split_sweeps
    from batchformer.report.table import print_table

    # The page comes first, since whoever reads the tables may stop ("| head"); and where it
    # cannot be written, the tables come before the reason.
    try:
        written = write_page(found, page, title, against, pooled=pooled)
    finally:
        sweeps, others = split_sweeps(found)
        for one in sweeps:
            print_sweep(compare_sweep(one))
        if others or not sweeps:
            comparison = compare_runs(others, against)
            print_table(comparison)
            if pooled:
                print_together(take_together(comparison, [one.name for one in sweeps]))
        for folder in folders:
            for line in not_begun(folder):
                print(f"Not included: {line} has not begun.")
    print(f"Page: {written}")


def show(arguments: list[str]) -> None:
    from batchformer.report.catalogue import find_figure, listing

    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return
    name, *rest = arguments
    find_figure(name)
    folders, rest = leading_paths(rest, f"show {name}")
    options = parse(ShowOptions, rest, f"show {name} RUN...")
    common = ("to", "against", "compute", "device")
    changed = {
        f.name: value
        for f in dataclasses.fields(options)
        if f.name not in common and (value := getattr(options, f.name)) != f.default
    }
    from batchformer.report.show import show as show_figure

    show_figure(
        name,
        folders,
        to=options.to,
        against=options.against,
        compute=_look(options.device) if options.compute else None,
        options=changed,
    )


def _look(device: str) -> Callable[[Path], object]:
    """What makes the arrays of a run's folder from its checkpoint."""
    from batchformer.recipes.insight import insight_of
    from batchformer.recipes.run import pick_device

    place = pick_device(device)
    return lambda folder: insight_of(folder, place)


def export(arguments: list[str]) -> None:
    folders, rest = leading_paths(arguments, "export")
    options = parse(ExportOptions, rest, "export RUN")
    if len(folders) != 1:
        raise UserError("export takes one run folder.")
    from batchformer.engine.checkpoint import write_atomically
    from batchformer.models.weights_file import as_file
    from batchformer.recipes import run as runs

    method, _, config = runs.restore(folders[0], runs.pick_device(options.device))
    in_first = config["trained"].get("stride") == "1x1"
    state = method.deployed().state_dict()
    written = as_file(state, options.to.suffix, "1x1" if in_first else None)
    write_atomically(options.to, written)
    # A method without a network of the recipe's has its own on features: what embeds them.
    name, method_name = config["trained"]["model"] or "the embedding", config["trained"]["method"]
    head = f", with the classifier of {method_name}" if method_name in OWN_CLASSIFIER else ""
    print(f"{options.to}: the weights of {name}{head}, for load_state_dict(strict=True)")
    if in_first:
        print(
            "Bottlenecks of this network stride in their first 1x1 convolution, not in the 3x3 as "
            "timm's and torchvision's do: the weights fit those, and are wrong there."
        )
