"""What the room can do without torch, and without the packages of the extra `lab`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from batchformer.lab import data

CODE = """
import sys
from pathlib import Path

import batchformer.lab.data.files.lock
from batchformer.lab.data.files.location import available
from batchformer.lab.data.sets import (
    annotated,
    attribute_sets,
    domain_layouts,
    imagenet_layout,
    known_pairs,
    voc_layout,
)

root = sys.argv[1]
assert available("cifar100", Path(root)) is None
assert not annotated.present(annotated.lists_of("places_lt", root))
assert not attribute_sets.present("cub", root)
assert not domain_layouts.present("pacs", root)
assert not imagenet_layout.present(root)
assert not known_pairs.present("c_gqa", root)
assert not voc_layout.present(root, ["2007/trainval"])
assert "torch" not in sys.modules
"""


def test_presence_is_answered_without_torch(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], check=True)


def test_packages_of_the_extra_are_imported_where_they_are_used() -> None:
    """So that the room can be imported without them."""
    for file in Path(str(data.__file__)).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            roots = {name.split(".")[0] for name in (getattr(node, "module", None) or "", *names)}
            assert not roots & {"torchvision", "PIL", "sklearn", "scipy"}, file
