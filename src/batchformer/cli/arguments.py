"""Arguments of the commands: a recipe or folders first, then options."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from batchformer.cli.options import Settings
from batchformer.lab.config.arms import ARMS
from batchformer.lab.config.idle_settings import unread_settings
from batchformer.lab.config.recipe import Recipe, changed_settings
from batchformer.lab.recipes import RECIPES, find_recipe

T = TypeVar("T")
HELP, HELP_ALL = ("-h", "--help"), "--help-all"


class UserError(Exception):
    """An error that the user can mend; it is printed without a traceback."""


def parse(kind: type[T], arguments: Sequence[str], command: str, **defaults: Any) -> T:
    """Parse the options of a command; a wrong one, or --help, ends the process."""
    import tyro

    known: dict[str, Any] = {"default": kind(**defaults)} if defaults else {}
    prog = f"batchformer {command}"
    # The data of a recipe is one of several classes, and options do not change which.
    config = (tyro.conf.AvoidSubcommands,)
    of_data = any(field.name == "data" for field in dataclasses.fields(kind))  # type: ignore[arg-type]
    words = [_in_full(word) for word in arguments] if of_data else arguments
    options: T = tyro.cli(kind, args=list(words), prog=prog, config=config, **known)
    return options


def _in_full(word: str) -> str:
    """``--data`` stands for ``--data.root``, the setting of data that most people give.

    >>> _in_full("--data=photos"), _in_full("--data.size")
    ('--data.root=photos', '--data.size')
    """
    name, equals, value = word.partition("=")
    return f"--data.root{equals}{value}" if name == "--data" else word


def with_recipe(kind: type[T], arguments: list[str], command: str) -> tuple[Recipe, T]:
    """Parse the name of a recipe, then options whose defaults are the recipe's."""
    if not arguments or arguments[0].startswith("-"):
        text = usage(kind, command, "Recipe", RECIPES, "demo")
        if arguments and arguments[0] in (*HELP, HELP_ALL):
            print(text)
            raise SystemExit(0)
        raise UserError(f"`{command}` needs the name of a recipe.\n{text}")
    recipe = find_recipe(arguments[0])
    options = parse_settings(kind, arguments[1:], f"{command} {recipe.name}", recipe)
    applied: Recipe = options.applied_to(recipe)  # type: ignore[attr-defined]
    refuse_idle(arguments, recipe, applied)
    return applied, options


def usage(kind: type, command: str, noun: str, names: Iterable[str], example: str) -> str:
    """How to call a command that begins with a name, and which names there are."""
    about, listed = inspect.getdoc(kind), "\n  ".join(names)
    return (
        f"Usage: batchformer {command} {noun.upper()} [OPTIONS]\n\n{about}\n\n{noun}s:\n  {listed}"
        f"\n\nOptions: batchformer {command} {example} --help"
    )


def parse_settings(kind: type[T], arguments: Sequence[str], command: str, recipe: Recipe) -> T:
    """Parse options whose defaults are a recipe's; --help shows those that have an effect on it."""
    asked = [word for word in arguments if word in HELP]
    others = [word for word in arguments if word not in (*HELP, HELP_ALL)]
    if HELP_ALL in arguments:
        others = ["--help"]
    options = parse(kind, others, command, **Settings.fields_of(recipe))
    if asked:
        from batchformer.cli.help import short_help

        with suppress(ValueError):  # contradictory settings: show the recipe's own help
            recipe = options.applied_to(recipe)  # type: ignore[attr-defined]
        print(short_help(options, recipe, command))
        raise SystemExit(0)
    return options


def is_given(option: str, arguments: Sequence[str]) -> bool:
    """Whether an option was given, with or without a value.

    >>> is_given("--arms", ["--arms=baseline"]), is_given("--arms", ["--arm", "baseline"])
    (True, False)
    """
    return any(word.partition("=")[0] == option for word in arguments)


def seeds_of(given: int | str) -> list[int]:
    """The seeds that ``--seeds`` names: a count from 0, or a list of numbers and ranges.

    >>> seeds_of(3), seeds_of("100-103"), seeds_of("0,7-9")
    ([0, 1, 2], [100, 101, 102, 103], [0, 7, 8, 9])
    """
    if isinstance(given, int):
        if given < 1:
            raise UserError(f"--seeds is {given}; at least one seed is needed.")
        return list(range(given))
    seeds: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(
                f"--seeds {given} is neither a count such as 5, nor a list of seeds and ranges "
                "such as 100-119 or 0,2,7-9."
            )
        chosen = range(int(first), int(last if dash else first) + 1)
        if not chosen:
            raise UserError(f"--seeds {given}: the range {part.strip()} ends before it begins.")
        seeds += chosen
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {given} names a seed twice.")
    return seeds


def refuse_idle(arguments: Sequence[str], recipe: Recipe, applied: Recipe) -> None:
    """Refuse options that would change nothing: a person who sets one expects an effect.

    Args:
        applied: the recipe with the settings of these arguments.
    """
    train = applied.train
    if is_given("--train.updates", arguments) and train.epochs:
        raise UserError(
            f"--train.updates has no effect: {recipe.name} is trained for train.epochs "
            f"{train.epochs}. Set --train.epochs 0 beside it."
        )
    if is_given("--train.eval-epochs", arguments) and not train.epochs:
        raise UserError(
            f"--train.eval-epochs has no effect: {recipe.name} is trained for train.updates "
            f"{train.updates}. Set --train.eval-every in its place."
        )
    unread = sorted(changed_settings(recipe, applied).keys() & unread_settings(applied))
    if unread:
        named = ", ".join(f"--{setting.replace('_', '-')}" for setting in unread)
        raise UserError(
            f"{named}: no effect with --method {applied.method}, --data.name {applied.data.name}, "
            f"--optim.name {applied.optim.name} and --schedule.kind {applied.schedule.kind}. "
            f"`batchformer compare {recipe.name} --help` shows what has one."
        )


def refuse_unknown_arms(names: Sequence[str], further: Iterable[str] = ()) -> None:
    """Refuse a name that is neither an arm nor one of `further`, and suggest the nearest."""
    known = dict.fromkeys([*ARMS, *further])
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"There is no arm {name!r}.{hint} Arms: {', '.join(known)}.")


def refuse_repeated(option: str, names: Sequence[str]) -> None:
    """Refuse a name that was given twice: two runs would share one folder."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{option} names {name} twice.")


def leading_paths(
    arguments: list[str],
    command: str,
    kind: str = "folder",
    needed: str = "a run folder, such as runs/demo/batchformer/seed0",
) -> tuple[list[Path], list[str]]:
    """Split arguments into leading folders, or files, and options; each path must exist."""
    split = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    folders = [Path(a) for a in arguments[:split]]
    if not folders and not {"-h", "--help"} & set(arguments):
        raise UserError(f"`{command}` needs {needed}.")
    for folder in folders:
        if not folder.exists():
            raise UserError(f"There is no {kind} {folder}.")
    return folders, arguments[split:]
