"""Commands on finished runs: evaluate, report, record, show, export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from batchformer.cli.arguments import UserError, is_given, leading_paths, parse, refuse_unknown_arms
from batchformer.cli.options import (
    EvaluateOptions,
    ExportOptions,
    RecordOptions,
    ReportOptions,
    ShowOptions,
)
from batchformer.lab.config.methods import find_method
from batchformer.lab.engine.distributed.torchrun import is_follower


def evaluate(arguments: list[str]) -> None:
    folders, rest = leading_paths(arguments, "evaluate")
    options = parse(EvaluateOptions, rest, "evaluate RUN")
    import torch

    from batchformer.lab.engine import onednn
    from batchformer.lab.engine.optimizer_step import OptimizerStep, matmul_precision
    from batchformer.lab.runs.build import pick_device
    from batchformer.lab.runs.folder import read_config, recipe_from_json
    from batchformer.lab.runs.load_run import restore

    device = pick_device(options.device)
    trained = [(read_config(folder) or {}).get("trained", {}) for folder in folders]
    onednn.prepare(device, [recipe.get("train", {}).get("precision") for recipe in trained])
    for folder in folders:
        method, task, config = restore(folder, device, options.data.root)
        optimizer_step = OptimizerStep(recipe_from_json(config["trained"]).train, device)
        with torch.no_grad(), matmul_precision(optimizer_step.config.precision):
            metrics = task.evaluate(method, optimizer_step).metrics
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
    """Print tables of all runs at or below these folders, and write their page.

    It names runs that have not finished, and those submitted to a cluster that have not begun.
    """
    if is_follower():
        return  # rank 0 shows them
    from batchformer.lab.report.results.runs import find_runs
    from batchformer.lab.runs.folder import not_begun

    found, waiting = find_runs(folders), [line for folder in folders for line in not_begun(folder)]
    if against is not None:
        refuse_unknown_arms([against], (run.arm for run in found))
    if folders and not found and not waiting:
        raise UserError(
            f"No run lies in {', '.join(map(str, folders))}, or up to four folders below. Runs lie "
            "in runs/RECIPE/ARM/seedK; a folder with another name is not found."
        )
    from batchformer.lab.report.page.html import write_page
    from batchformer.lab.report.results.comparison import compare_runs
    from batchformer.lab.report.results.pooling import pool_recipes
    from batchformer.lab.report.results.sweep_tables import print_sweep
    from batchformer.lab.report.results.sweeps import compare_sweep, split_sweeps
    from batchformer.lab.report.results.tables import print_pooled, print_table

    # The page is written first: printing may be cut short ("| head"). If it cannot be written, the
    # tables are printed before the error.
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
                print_pooled(pool_recipes(comparison, [one.name for one in sweeps]))
        for line in waiting:
            print(f"Not included: {line} has not begun.")
    print(f"Page: {written}")


def record(arguments: list[str]) -> None:
    """Write the records of finished runs, then make the pages that are named."""
    named = bool(arguments) and not arguments[0].startswith("-")
    pages_alone = is_given("--make", arguments) and not named
    folders, rest = ([], arguments) if pages_alone else leading_paths(arguments, "record")
    options = parse(RecordOptions, rest, "record RUN...")
    if folders:
        _write_records(folders, options)
    if options.make:
        from batchformer.lab.report.page.results_page import make_pages

        for page in options.make:
            if not page.is_file():
                raise UserError(f"There is no page {page}.")
        for page, changed in make_pages(options.make, options.to):
            print(f"{page}: {'tables made again' if changed else 'its tables are up to date'}")


def _write_records(folders: list[Path], options: RecordOptions) -> None:
    from batchformer.lab.report.results.notes import left_out
    from batchformer.lab.report.results.records import record_of, save
    from batchformer.lab.report.results.runs import find_runs

    found = find_runs(folders)
    finished = [run for run in found if run.state == "finished"]
    for line in left_out(found):
        print(f"Not recorded: {line}.")
    if not finished:
        raise UserError(f"No run has finished in {', '.join(map(str, folders))}.")
    written, unchanged = save((record_of(run, options.variant) for run in finished), options.to)
    for path in written:
        print(path)
    same = f", {len(unchanged)} were there already" if unchanged else ""
    count = f"{len(written)} record" + "s" * (len(written) != 1)
    print(f"{count} written{same}.")


def show(arguments: list[str]) -> None:
    from batchformer.lab.report.figures.catalogue import find_figure, listing

    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return
    name, *rest = arguments
    find_figure(name)
    folders, rest = leading_paths(rest, f"show {name}")
    options = parse(ShowOptions, rest, f"show {name} RUN...")
    common = ("to", "against", "compute", "data", "device")
    changed = {
        f.name: value
        for f in dataclasses.fields(options)
        if f.name not in common and (value := getattr(options, f.name)) != f.default
    }
    from batchformer.lab.report.figures.show import show as show_figure

    if name == "cam" and options.cam_layer is not None:
        changed["cam_layer"] = _from_checkpoint(options, options.cam_layer)
    show_figure(
        name,
        folders,
        to=options.to,
        against=options.against,
        compute=_from_checkpoint(options) if options.compute else None,
        options=changed,
    )


def _from_checkpoint(options: ShowOptions, layer: str | None = None) -> Callable[[Path], object]:
    """A function of a run's folder: computes all arrays, or only the heat maps at a layer."""
    from batchformer.lab.runs.build import pick_device

    device, root = pick_device(options.device), options.data.root
    if layer is not None:
        from batchformer.lab.runs.insight import cam_of

        return lambda folder: cam_of(folder, device, layer, root)
    from batchformer.lab.runs.insight import insight_of

    return lambda folder: insight_of(folder, device, root)


def export(arguments: list[str]) -> None:
    folders, rest = leading_paths(arguments, "export")
    options = parse(ExportOptions, rest, "export RUN")
    if len(folders) != 1:
        raise UserError("export takes one run folder.")
    if options.to.is_dir():
        named = options.to / "plain.pt"
        raise UserError(f"{options.to} is a folder. Give the name of a file, such as {named}.")
    from batchformer.insight.files import write_atomically
    from batchformer.lab.models.weights import as_file
    from batchformer.lab.runs.build import pick_device
    from batchformer.lab.runs.load_run import restore_deployed

    device = pick_device(options.device)
    network, config = restore_deployed(folders[0], device, options.data.root)
    in_first = config["trained"].get("stride") == "1x1"
    written = as_file(network.state_dict(), options.to.suffix, "1x1" if in_first else None)
    write_atomically(options.to, written)
    # Without a model in the recipe, the method trains an embedding of features.
    name, method = config["trained"]["model"] or "the embedding", config["trained"]["method"]
    entry = find_method(method)
    head = f", with the classifier of {method}" if entry.own_classifier else ""
    print(f"{options.to}: the weights of {name}{head}, for load_state_dict(strict=True)")
    if entry.tasks == ("detection",):
        print(
            "The detector that was trained on this network is not in the file: "
            "batchformer.lab.runs.load_run.restore gives it, with predict(images)."
        )
    if in_first:
        print(
            "Bottlenecks of this network stride in their first 1x1 convolution. timm and "
            "torchvision stride in the 3x3: these weights load there, but compute something else."
        )
