"""The command line. Answers before it imports: torch is loaded only by commands that compute."""

from __future__ import annotations

import dataclasses
import difflib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from batchformer import __version__
from batchformer.options import (
    BenchOptions,
    CheckOptions,
    CompareOptions,
    ConvertPairsOptions,
    DataOptions,
    DemoOptions,
    EvaluateOptions,
    ExportOptions,
    ListOptions,
    PairsOptions,
    ReportOptions,
    Settings,
    ShowOptions,
    SweepOptions,
    TrainOptions,
)
from batchformer.recipes import RECIPES, find_recipe
from batchformer.recipes.ablations import SWEEPS, find_sweep
from batchformer.recipes.arms import ARMS
from batchformer.recipes.data_state import ensure_data
from batchformer.recipes.listing import print_data, print_listing
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.sweep_listing import print_sweeps

T = TypeVar("T")

HELP = f"""batchformer {__version__}: BatchFormer, and the experiments that say whether it helps.

Usage: batchformer COMMAND [...]

  demo                     baseline against +BatchFormer on embedded digits, in seconds
  list                     every recipe, and the rows of the paper that have none yet
  train RECIPE             one arm, one seed
  compare RECIPE           every arm with every seed, paired, with intervals and a verdict
  sweep [SWEEP]            one setting at several levels, as the paper's ablations; or their list
  evaluate RUN             score a trained run again
  report RUN...            one self-contained page of finished runs
  show FIGURE RUN...       one figure, or its numbers; without a name, which figures there are
  export RUN --to FILE     the plain network's weights, without BatchFormer
  check RECIPE             is BatchFormer acting in this recipe's training?
  data                     which data sets are here, and where they are looked for; `data pairs`
                           makes a table of pairs of attribute and object
  bench                    how fast everything is here, measured side by side

`batchformer COMMAND --help` (with a recipe: `batchformer compare demo --help`) shows its options.
"""


#: Methods in which BatchFormer has no part: it shaped the network that they are given.
WITHOUT_BATCHFORMER = ("linear_probe", "knn", "detector")
#: Methods that put a classifier of their own into the network.
OWN_CLASSIFIER = ("ldam", "lws", "mdd", "cge", "compcos", "ce_gzsl")


class UserError(Exception):
    """Something the person at the keyboard can mend; printed without a traceback."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with 1 for an error a person can mend, 2 for a wrong call."""
    from batchformer.engine.interrupt import Interrupted

    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        _dispatch(name, rest)
        sys.stdout.flush()
    except Interrupted as stop:
        _fail(str(stop), stop.exit_code)
    except ModuleNotFoundError as error:
        _fail(f"This needs {error.name}: pip install 'batchformer[lab,report]'", 1)
    except BrokenPipeError:
        # The reader of our output has left; there is nobody to tell, now or when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get("BATCHFORMER_TRACEBACK") or (words := _in_words(error)) is None:
            raise
        _fail(words, 1)


def _in_words(error: Exception) -> str | None:
    """What a person can mend, in words; None for an error of ours, which keeps its traceback."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        place = error.filename or "a file of the run"
        return (
            f"{error.strerror}: {place} could not be written. All that was saved before is as it "
            "was. Make room; the same command then goes on from the last checkpoint."
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        in_the_way = isinstance(error, (NotADirectoryError, FileExistsError))
        hint = "; a file lies where a folder is needed" if in_the_way else ""
        return f"{error.filename}: {error.strerror}{hint}."
    if isinstance(error, (UserError, OSError, ValueError, ImportError)):
        return str(error)
    from batchformer.engine.window import DivergedError  # late: it needs torch

    return str(error) if isinstance(error, DivergedError) else None


def _dispatch(name: str, arguments: list[str]) -> None:
    if name in ("-h", "--help", "help", "--version"):
        print(__version__ if name == "--version" else HELP)
    elif name in COMMANDS:
        COMMANDS[name](arguments)
    else:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"Did you mean `batchformer {near[0]}`?" if near else "See `batchformer --help`."
        _fail(f"There is no command {name!r}. {hint}", 2)


def _fail(message: str, code: int) -> None:
    print(f"batchformer: {message}", file=sys.stderr)
    raise SystemExit(code)


def _parse(kind: type[T], arguments: Sequence[str], command: str, **defaults: Any) -> T:
    import tyro

    known: dict[str, Any] = {"default": kind(**defaults)} if defaults else {}
    prog = f"batchformer {command}"
    # The data of a recipe is of one kind or another, and stays of that kind.
    config = (tyro.conf.AvoidSubcommands,)
    options: T = tyro.cli(kind, args=list(arguments), prog=prog, config=config, **known)
    return options


def _with_recipe(kind: type[T], arguments: list[str], command: str) -> tuple[Recipe, T]:
    """A recipe's name, then options whose defaults are the recipe's."""
    names = "\n  ".join(RECIPES)
    if not arguments or arguments[0].startswith("-"):
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        text = (
            f"Usage: batchformer {command} RECIPE [OPTIONS]\n\n{(kind.__doc__ or '').strip()}\n\n"
        )
        text += f"Recipes:\n  {names}\n\nOptions: batchformer {command} demo --help"
        if asked:
            print(text)
            raise SystemExit(0)
        raise UserError(f"`{command}` needs the name of a recipe.\n{text}")
    recipe = find_recipe(arguments[0])
    options = _parse(kind, arguments[1:], f"{command} {recipe.name}", **Settings.fields_of(recipe))
    return options.applied_to(recipe), options  # type: ignore[attr-defined]


def _arms(names: Sequence[str], further: Iterable[str] = ()) -> None:
    """Refuse a name that is neither an arm of ours nor one of these."""
    known = dict.fromkeys([*ARMS, *further])
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"There is no arm {name!r}.{hint} Arms: {', '.join(known)}.")


def _folders(
    arguments: list[str],
    command: str,
    kind: str = "folder",
    needed: str = "a run folder, such as runs/demo/batchformer/seed0",
) -> tuple[list[Path], list[str]]:
    """Leading run folders, or files, then options."""
    split = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    folders = [Path(a) for a in arguments[:split]]
    if not folders and not {"-h", "--help"} & set(arguments):
        raise UserError(f"`{command}` needs {needed}.")
    for folder in folders:
        if not folder.exists():
            raise UserError(f"There is no {kind} {folder}.")
    return folders, arguments[split:]


def demo(arguments: list[str]) -> None:
    options = _parse(DemoOptions, arguments, "demo")
    recipe = find_recipe("demo")
    settings = Settings.fields_of(recipe)
    _compare(
        recipe,
        CompareOptions(seeds=options.seeds, runs=options.runs, quiet=options.quiet, **settings),
    )


def compare(arguments: list[str]) -> None:
    recipe, options = _with_recipe(CompareOptions, arguments, "compare")
    if options.seeds < 1 or options.together < 1 or not options.arms:
        raise UserError("compare needs at least one seed, one arm and one run at a time.")
    _arms(options.arms)
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
    _report(folders, page, recipe.name, options.arms[0])


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
    options = _parse(SweepOptions, arguments[1:], f"sweep {plan.name}", **defaults)
    if options.seeds < 1 or options.together < 1 or not options.arms:
        raise UserError("sweep needs at least one seed, one arm and one run at a time.")
    _arms(options.arms)
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
    _report([folder], options.page or folder / "report.html", plan.name)


def _report(
    folders: list[Path], page: Path, title: str | None = None, against: str | None = None
) -> None:
    from batchformer.report.runs import find_runs

    found = find_runs(folders)
    if against is not None:
        _arms([against], (run.arm for run in found))
    from batchformer.report.comparison import compare_runs
    from batchformer.report.html import write_page
    from batchformer.report.sweep_comparison import compare_sweep
    from batchformer.report.sweep_table import print_sweep
    from batchformer.report.sweeps import split_sweeps
    from batchformer.report.table import print_table

    sweeps, others = split_sweeps(found)
    for one in sweeps:
        print_sweep(compare_sweep(one))
    if others or not sweeps:
        print_table(compare_runs(others, against))
    print(f"Page: {write_page(found, page, title, against)}")


def train(arguments: list[str]) -> None:
    recipe, options = _with_recipe(TrainOptions, arguments, "train")
    _arms([options.arm])
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


def evaluate(arguments: list[str]) -> None:
    folders, rest = _folders(arguments, "evaluate")
    options = _parse(EvaluateOptions, rest, "evaluate RUN")
    import torch

    from batchformer.engine.mechanics import Mechanics
    from batchformer.recipes import run as runs
    from batchformer.recipes.plain import from_plain

    device = runs.pick_device(options.device)
    for folder in folders:
        method, task, config = runs.restore(folder, device)
        mechanics = Mechanics(from_plain(config["trained"]).train, device)
        with torch.no_grad():
            metrics = task.evaluate(method, mechanics).metrics
        print(f"{folder}: " + " ".join(f"{name} {value:.2f}" for name, value in metrics.items()))


def report(arguments: list[str]) -> None:
    folders, rest = _folders(arguments, "report")
    options = _parse(ReportOptions, rest, "report RUN...")
    _report(folders, options.to, against=options.against)


def show(arguments: list[str]) -> None:
    from batchformer.report.catalogue import find_figure, listing

    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return
    name, *rest = arguments
    find_figure(name)
    folders, rest = _folders(rest, f"show {name}")
    options = _parse(ShowOptions, rest, f"show {name} RUN...")
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
    folders, rest = _folders(arguments, "export")
    options = _parse(ExportOptions, rest, "export RUN")
    if len(folders) != 1:
        raise UserError("export takes one run folder.")
    import io

    import torch

    from batchformer.engine.checkpoint import write_atomically
    from batchformer.recipes import run as runs

    method, _, config = runs.restore(folders[0], runs.pick_device(options.device))
    buffer = io.BytesIO()
    torch.save(method.deployed().state_dict(), buffer)
    write_atomically(options.to, buffer.getvalue())
    # A method without a network of the recipe's has its own on features: what embeds them.
    name, method_name = config["trained"]["model"] or "the embedding", config["trained"]["method"]
    head = f", with the classifier of {method_name}" if method_name in OWN_CLASSIFIER else ""
    print(f"{options.to}: the weights of {name}{head}, for load_state_dict(strict=True)")
    if config["trained"].get("stride") == "1x1":
        print(
            "Bottlenecks of this network stride in their first 1x1 convolution, not in the 3x3 as "
            "timm's and torchvision's do: the weights fit those, and are wrong there."
        )


def check(arguments: list[str]) -> None:
    recipe, options = _with_recipe(CheckOptions, arguments, "check")
    ensure_data(recipe)
    from batchformer.check import check as look
    from batchformer.recipes import run as runs
    from batchformer.recipes.targets import by_target

    device = runs.pick_device(options.device)
    recipe = next(iter(by_target(recipe).values()))
    task = runs.load_task(recipe.data, device)
    if recipe.method in WITHOUT_BATCHFORMER:
        raise UserError(
            f"{recipe.name} has no BatchFormer to check: {recipe.method} takes the network of "
            f"another training. Check that one: batchformer check {recipe.start or 'RECIPE'}"
        )
    method = runs.build(recipe, 0, task).to(device)
    batch = task.feed(recipe.train, 0).batch(0)
    optimizer = method.optimizers(recipe.optim).get("main")  # a method may train nothing
    result = look(method, batch["x"][:32], optimizer)
    print(result)
    if not result.passed:
        raise SystemExit(1)


def list_recipes(arguments: list[str]) -> None:
    _parse(ListOptions, arguments, "list")
    print_listing()


def data(arguments: list[str]) -> None:
    name, *rest = arguments or [""]
    if name == "pairs":
        _make_pairs(_parse(PairsOptions, rest, "data pairs"))
    elif name == "convert-pairs":
        from batchformer.data.pair_metadata import METADATA, metadata_to_csv

        needed = f"a file, such as mit-states/{METADATA}"
        files, rest = _folders(rest, "data convert-pairs", "file", needed)
        options = _parse(ConvertPairsOptions, rest, "data convert-pairs FILE.t7")
        if len(files) != 1 or not files[0].is_file():
            raise UserError(f"`data convert-pairs` takes one file, such as mit-states/{METADATA}.")
        skipped = metadata_to_csv(files[0], options.to)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        print(f"{options.to}: written" + (f"; left out: {reasons}" if reasons else ""))
    else:
        _parse(DataOptions, arguments, "data")
        print_data()


def _make_pairs(options: PairsOptions) -> None:
    from batchformer.data.pairs_from_tree import write_pairs

    numbers = (options.unseen_val, options.unseen_test, options.seed, options.fractions)
    images = write_pairs(options.to, options.root, *numbers)
    seen = {image.pair for image in images if image.split == "train"}
    for phase in ("val", "test"):
        own = sorted({image.pair for image in images if image.split == phase} - seen)
        print(f"Unseen pairs of {phase}: {', '.join(' '.join(pair) for pair in own) or 'none'}")
    print(f"{options.to}: {len(images):,} images of {len({i.pair for i in images})} pairs")


def bench(arguments: list[str]) -> None:
    options = _parse(BenchOptions, arguments, "bench")
    if options.repeats is not None and options.repeats < 1:
        raise UserError("bench needs at least one repeat.")
    from batchformer.bench.run import run as measure
    from batchformer.bench.settings import BenchSettings
    from batchformer.recipes import run as runs

    device = runs.pick_device(options.device)
    settings = BenchSettings(device, options.full, options.repeats)
    tables = measure(settings, options.to, options.only)
    print(f"Tables: {options.to / 'bench.md'}, {options.to / 'bench.json'}")
    if failed := [table.part for table in tables if table.failed]:
        raise UserError(f"bench: not measured: {', '.join(failed)}; the tables say why.")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "list": list_recipes,
    "train": train,
    "compare": compare,
    "sweep": sweep,
    "evaluate": evaluate,
    "report": report,
    "show": show,
    "export": export,
    "check": check,
    "data": data,
    "bench": bench,
}
