"""Where data is looked for, without opening it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from batchformer.lab.data.files.location import available, layout_of, looked_in


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert looked_in() == tmp_path and looked_in(Path("~/x")) == Path.home() / "x"
    monkeypatch.delenv("BATCHFORMER_DATA")
    assert looked_in() == Path.home() / ".cache/batchformer"


def test_official_files_must_be_complete(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / name).touch()
    assert available("cifar100", tmp_path) is None
    (folder / "meta").touch()
    assert available("cifar100", tmp_path) == folder == available("cifar100", folder)
    assert available("cifar10", tmp_path) is None


def test_an_npz_by_path_or_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cifar100_lt.npz"
    assert available("cifar100", path) is None
    path.touch()
    assert available("cifar100", path) == path == available("cifar100", tmp_path)


def test_unknown_data_is_named() -> None:
    with pytest.raises(ValueError, match="cifar10, cifar100"):
        layout_of("cifar1000")


def test_looking_needs_no_torch() -> None:
    code = "import batchformer.lab.data.files.location, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
