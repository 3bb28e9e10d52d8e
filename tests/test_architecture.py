"""Which room may import which (docs/architecture.md), and how many files `attach` runs through."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
from torch import nn

import batchformer

PACKAGE = Path(batchformer.__file__).parent
#: A room imports itself and rooms to its left. The laboratory stands to the right of the plug-in.
PLUG_IN = ("torch_private", "kernels", "nn", "plug", "insight", "adapters")
LAB = (
    *("config", "data", "losses", "metrics", "models", "engine", "methods", "tasks"),
    *("recipes", "runs", "bench", "report"),
)
ORDER = (*PLUG_IN, "lab", *(f"lab.{room}" for room in LAB), "cli", "__main__")


def room_of(module: str) -> str:
    """``lab.data.files.lock`` is in ``lab.data``.

    >>> room_of("lab.data.files.lock"), room_of("nn.module")
    ('lab.data', 'nn')

    The package's own file may import what the plug-in's last room may.
    """
    if not module:
        return PLUG_IN[-1]
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
                if inner in names:
                    yield inner
                elif module:
                    yield module
                elif alias.name in batchformer._HOME:  # a public name: where it is defined
                    yield batchformer._HOME[alias.name]
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


def wrong_way(module: str, source: str, names: frozenset[str]) -> set[str]:
    """What a file imports of rooms to the right of its own."""
    here = ORDER.index(room_of(module))
    return {
        other
        for other in imports(source, names)
        if room_of(other) in ORDER and ORDER.index(room_of(other)) > here
    }


def test_every_file_is_in_a_room() -> None:
    assert {room_of(name) for name in modules()} <= set(ORDER)


def test_rooms_import_only_rooms_to_their_left() -> None:
    sources = modules()
    names = frozenset(sources)
    wrong = {
        (module, other)
        for module, source in sources.items()
        for other in wrong_way(module, source, names)
    }
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        "import batchformer.lab.config.arms",
        "from batchformer.lab.config.arms import ARMS",
        "def late():\n    from batchformer.lab.config import arms",
        'path = "batchformer.lab.methods.erm:CrossEntropy"',
        'path = f"batchformer.lab.{name}"',
        "import batchformer.lab",
        "from batchformer import lab",
        "from batchformer import attach",
        "from batchformer.cli.main import main",
    ],
)
def test_an_import_to_the_right_is_seen(source: str) -> None:
    names = frozenset(modules())
    assert wrong_way("nn.streams", source, names)
    assert "attach" in source or wrong_way("", source, names)


def test_imports_are_written_in_full() -> None:
    # A relative import would pass the tests above unread.
    for module, source in modules().items():
        nodes = ast.walk(ast.parse(source))
        assert not any(isinstance(n, ast.ImportFrom) and n.level for n in nodes), module


def test_attach_is_read_in_nine_files() -> None:
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
    assert len(files) <= 9, sorted(files)
