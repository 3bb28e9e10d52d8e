"""The short help of commands that take a recipe: one line for each setting that has an effect."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from batchformer.lab.config.idle_settings import hidden_settings
from batchformer.lab.config.methods import METHODS
from batchformer.lab.config.recipe import Recipe

WIDTH = 100
LEFT = 33  # columns of an option and its value; the words of a longer one begin on the next line
CHOICES = 44  # the longest list of choices, in characters, that stands before the words
_SENTENCE_END = re.compile(r"(?<=[a-z)\]])\. ")


def short_help(options: Any, recipe: Recipe, usage: str) -> str:
    """The settings of a command, with their values in this call.

    Args:
        options: what the command line was parsed into.
        recipe: decides which settings have an effect.
        usage: how the command is called.
    """
    width = min(shutil.get_terminal_size((WIDTH, 50)).columns, WIDTH)
    hidden = hidden_settings(recipe)
    plain = [f.name for f in dataclasses.fields(options) if not _nested(options, f.name)]
    plain.sort(key=lambda name: hasattr(recipe, name))  # options of the command come first
    first = [_line(options, name, "", width) for name in plain if name not in hidden]
    about = " ".join((inspect.getdoc(type(options)) or "").split())
    lines = [f"Usage: batchformer {usage} [OPTIONS]", "", *textwrap.wrap(about, width), "", *first]
    for field in dataclasses.fields(options):
        if not _nested(options, field.name) or field.name == "jobs":
            continue
        inner = getattr(options, field.name)
        names = [each.name for each in dataclasses.fields(inner)]
        shown = [name for name in names if f"{field.name}.{name}" not in hidden]
        if shown:
            method = f"Settings of the method {recipe.method}." if field.name == "hyper" else ""
            lines += ["", *textwrap.wrap(f"{field.name}: {method or _summary(inner)}", width)]
            lines += [_line(inner, name, f"{field.name}.", width) for name in shown]
    more = (
        "Values are those of this call; VALUE stands for none. --help-all explains all options in "
        "full, also those for other methods and data, for several ranks and for jobs on a cluster."
    )
    return "\n".join([*lines, "", *textwrap.wrap(more, width)])


def _summary(settings: Any) -> str:
    return (inspect.getdoc(type(settings)) or "").split("\n")[0]


def _nested(options: Any, name: str) -> bool:
    return dataclasses.is_dataclass(getattr(options, name))


def _line(settings: Any, name: str, prefix: str, width: int) -> str:
    """``  --optim.lr 0.05   Learning rate of the network``, cut to the width."""
    value, option = getattr(settings, name), name.replace("_", "-")
    kind: Any = type(settings)
    words, choices = _described(kind)[name]
    words = _of_one_method(words)
    if isinstance(value, bool):
        given = f"--{prefix}no-{option}" if value else f"--{prefix}{option}"
        words = f"(on) {words}" if value else words
    else:
        given = f"--{prefix}{option} {_shown(value)}"
        words = f"{choices}. {words}" if 0 < len(choices) <= CHOICES else words
    room = max(width - LEFT - 3, 20)
    if len(words) > room:  # the first clause alone may fit
        words = words.partition("; ")[0]
    words = textwrap.shorten(words, room, placeholder=" ...", break_on_hyphens=False)
    if len(given) <= LEFT:
        return f"  {given:<{LEFT}} {words}".rstrip()
    shown = textwrap.wrap(given, width - 2, subsequent_indent=" " * 4, break_on_hyphens=False)
    return "\n".join([*(f"  {line}" for line in shown), " " * (LEFT + 3) + words]).rstrip()


def _of_one_method(words: str) -> str:
    """Drop the names of methods that words begin with: help shows settings of one method alone.

    >>> _of_one_method("ldam, ride: margin of the rarest class"), _of_one_method("Off: baseline")
    ('Margin of the rarest class', 'Off: baseline')
    """
    names, colon, rest = words.partition(": ")
    if colon and all(name in METHODS for name in names.split(", ")):
        return rest[:1].upper() + rest[1:]
    return words


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "VALUE"
    return "VALUE" if value is None or value == "" else str(value)


@cache
def _described(kind: Any) -> dict[str, tuple[str, str]]:
    """For each field of a dataclass: the first sentence of the string below it, and its choices."""
    words: dict[str, str] = {}
    for base in kind.__mro__[:-1]:
        (made,) = ast.parse(inspect.getsource(base)).body
        for node, below in pairwise(made.body if isinstance(made, ast.ClassDef) else []):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Constant):
                sentence = " ".join(str(text.value).split())
                words[ast.unparse(node.target)] = _SENTENCE_END.split(sentence)[0].rstrip(".")
    return {
        name: (
            words.get(name, ""),
            ", ".join(map(str, get_args(hint))) if get_origin(hint) is Literal else "",
        )
        for name, hint in get_type_hints(kind).items()
    }
