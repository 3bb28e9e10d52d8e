"""Which room may import which (docs/architecture.md), and how many files `attach` runs through."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

from torch import nn

import batchformer

PACKAGE = Path(batchformer.__file__).parent
#: A room imports itself and rooms to its left. The laboratory stands to the right of the plug-in.
PLUG_IN = ("torch_private", "kernels", "nn", "plug", "insight", "adapters")
LAB = (
    *("config", "data", "losses", "metrics", "models", "engine", "methods", "tasks"),
    *("recipes", "runs", "bench", "report"),
)
ORDER = (*PLUG_IN, *(f"lab.{room}" for room in LAB), "cli", "__main__")
#: Arrows that still point the wrong way.
ALLOWED: set[tuple[str, str]] = set()


def room_of(module: str) -> str:
    """``lab.data.files.lock`` is in ``lab.data``.

    >>> room_of("lab.data.files.lock"), room_of("nn.module")
    ('lab.data', 'nn')
    """
    first, _, rest = module.partition(".")
    return f"lab.{rest.split('.')[0]}" if first == "lab" and rest else first


@cache
def modules() -> dict[str, str]:
    """The source of every file, by its name below the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text()
    return found


def imports(source: str, names: frozenset[str]) -> Iterator[str]:
    """What a file imports of the package: at its top, inside functions, and by strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("batchformer"):
            module = str(node.module)[len("batchformer.") :]
            for alias in node.names:
                inner = f"{module}.{alias.name}".lstrip(".")
                yield inner if inner in names else module
        elif isinstance(node, ast.Import):
            yield from (
                alias.name[len("batchformer.") :]
                for alias in node.names
                if alias.name.startswith("batchformer.")
            )
        elif isinstance(node, ast.Constant):
            # A path such as "batchformer.lab.methods.erm:CrossEntropy", and nothing around it.
            path = re.fullmatch(r"batchformer\.([\w.]+?)\.?(?::\w+)?", str(node.value))
            if path:
                yield path[1]


def test_every_file_is_in_a_room() -> None:
    rooms = {room_of(name) for name in modules()} - {"", "lab"}
    assert rooms <= set(ORDER)


def test_rooms_import_only_rooms_to_their_left() -> None:
    sources = modules()
    names = frozenset(sources)
    wrong = set()
    for module, source in sources.items():
        if module in ("", "lab"):
            continue
        here = ORDER.index(room_of(module))
        for other in imports(source, names):
            room = room_of(other)
            if room in ORDER and ORDER.index(room) > here:
                wrong.add((module, other))
    assert wrong == ALLOWED


def test_attach_is_read_in_eight_files() -> None:
    files = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(str(path.relative_to(PACKAGE)))

    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))
    attach = batchformer.attach
    sys.setprofile(note)
    try:
        attach(model, verbose=False)
    finally:
        sys.setprofile(None)
    assert len(files) <= 8, sorted(files)
