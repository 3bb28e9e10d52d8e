"""Promises of the package as a whole."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import batchformer

ROOT = Path(__file__).parents[1]

BLOCK_EVERYTHING_ELSE = """
import importlib.abc, sys
import torch

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("torch", "batchformer"):
            return None
        raise ImportError(f"{name} is blocked")

for name in [n for n in sys.modules if n.partition(".")[0] in {
    "numpy", "timm", "torchvision", "transformers", "scipy", "sklearn", "lightning"}]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
import batchformer as bf
model = bf.attach(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)))
assert bf.check(model, torch.randn(3, 4)).passed
bf.export(model)
"""

IMPORT = """
import sys, time
import batchformer, batchformer.adapters
assert "torch" not in sys.modules
start = time.process_time()
import torch
middle = time.process_time()
from batchformer import attach, check, match
print((time.process_time() - middle) / (middle - start))
import batchformer.adapters.transformers, batchformer.adapters.accelerate
others = {"lightning", "pytorch_lightning", "transformers", "accelerate", "timm", "peft"}
assert not {"torch._dynamo", *others} & sys.modules.keys()
"""


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_core_needs_torch_and_nothing_else() -> None:
    python(BLOCK_EVERYTHING_ELSE)


def test_importing_takes_at_most_a_tenth_of_importing_torch_and_loads_no_other_library() -> None:
    # A share of processor time: a slow or busy machine slows both. The best of a few tries, of
    # which the first may write byte code.
    assert any(float(python(IMPORT)) < 0.1 for _ in range(6))


def test_the_public_surface_is_twelve_names() -> None:
    assert set(batchformer._HOME) == {
        *("BatchFormer", "batch_former", "two_streams", "attach", "detach", "export", "check"),
        *("match", "duplicate", "split", "stream_loss", "param_groups"),
    }
    assert set(batchformer.__all__) == set(batchformer._HOME)
    star: dict[str, object] = {}
    exec("from batchformer import *", star)
    assert star.keys() - {"__builtins__"} == set(batchformer._HOME)
    for name in batchformer._HOME:
        assert callable(getattr(batchformer, name)) and name in dir(batchformer)
    with pytest.raises(AttributeError, match="no attribute 'attatch'"):
        batchformer.attatch  # noqa: B018


def test_no_public_name_is_also_the_name_of_a_file() -> None:
    # Importing such a file would bind it to its name, and hide the function.
    for name in batchformer._HOME:
        assert importlib.util.find_spec(f"batchformer.{name}") is None


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "batchformer", "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "0.1.0\n"


def test_a_built_wheel_installs_and_imports_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
        names = archive.namelist()
    assert (
        "batchformer/py.typed" in names and "batchformer/lab/report/page/page.html.jinja" in names
    )
    assert not any(name.startswith(("tests", "docs", "examples")) for name in names)
    (metadata,) = target.glob("batchformer-*.dist-info/METADATA")
    needs = [w for w in metadata.read_text().splitlines() if w.startswith("Requires-Dist")]
    assert [need for need in needs if "extra" not in need] == ["Requires-Dist: torch>=2.6"]
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import batchformer as bf; bf.attach; "
    python(code + f"assert bf.__file__.startswith({str(target)!r})")


def python_blocks() -> list[pytest.param]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        pytest.param(block, id=f"{page.name}:{index}")
        for page in pages
        for index, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_the_pages_python_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "page", "exec"), {"__name__": "page"})
