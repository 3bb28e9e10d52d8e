"""What the room can do without torch, and without the packages of the extra `lab`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from batchformer.lab import data

CODE = """
import sys

import batchformer.lab.data.files.lock
from batchformer.lab.data.sets.presence import places

states = {name: state for name, state, _ in places()}
assert states.pop("digits") == states.pop("rotated_digits") == "embedded"
assert len(states) == 22 and {*states.values()} == {"absent"}, states
assert "torch" not in sys.modules
"""


def test_presence_is_answered_without_torch(tmp_path: Path) -> None:
    environment = {**os.environ, "BATCHFORMER_DATA": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CODE], check=True, env=environment)


def test_packages_of_the_extra_are_imported_where_they_are_used() -> None:
    """So that the room can be imported without them."""
    for file in Path(str(data.__file__)).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            roots = {name.split(".")[0] for name in (getattr(node, "module", None) or "", *names)}
            assert not roots & {"torchvision", "PIL", "sklearn", "scipy"}, file
