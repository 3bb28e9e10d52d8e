from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchformer.insight.optional import extra
from batchformer.lab import report
from batchformer.lab.report.figures.training import draw
from batchformer.lab.report.page.html import write_page
from batchformer.lab.report.results.comparison import compare_runs
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.tables import print_table
from helpers.run_folders import RunTree


def test_reading_and_comparing_import_no_optional_library() -> None:
    folder = Path(report.__file__ or "").parent
    paths = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    modules = [".".join(path.parts) for path in paths if path.name != "__init__"]
    assert len(modules) > 10
    imports = "; ".join(f"import batchformer.lab.report.{module}" for module in modules)
    found = "{'matplotlib', 'jinja2', 'rich', 'scipy', 'torchvision'} & sys.modules.keys()"
    code = f"import sys; {imports}; assert not ({found}), {found}"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize(
    ("library", "name"), [("matplotlib", "report"), ("jinja2", "report"), ("rich", "lab")]
)
def test_a_missing_library_is_one_line_that_names_its_extra(
    tree: RunTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, name: str
) -> None:
    tree.write("baseline", 0)
    runs = tree.runs()
    for module in [m for m in sys.modules if m.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    uses: dict[str, Callable[[], object]] = {
        "matplotlib": lambda: draw(one_group(runs)),
        "jinja2": lambda: write_page(runs, tmp_path / "page.html"),
        "rich": lambda: print_table(compare_runs(runs)),
    }
    with pytest.raises(ModuleNotFoundError) as caught:
        uses[library]()
    assert str(caught.value) == f"{library} is not installed: pip install 'batchformer[{name}]'"
    assert not (tmp_path / "page.html").exists()


def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), extra("report"):
        _ = 1 / 0
