from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchformer.lab.report.results.runs import Arrays


def test_arrays_are_those_of_the_file(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"counts": np.arange(5), "names": np.array(["a", "é"])}
    np.savez_compressed(tmp_path / "figures.npz", **kept)
    arrays = Arrays(tmp_path / "figures.npz")
    assert arrays.problem() is None
    assert (len(arrays), sorted(arrays)) == (2, ["counts", "names"])
    assert all(np.array_equal(arrays[name], kept[name]) for name in kept)
    assert arrays.get("confusion") is None


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "figures.npz", trap=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert Arrays(tmp_path / "figures.npz").get("trap") is None


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    arrays = Arrays(tmp_path / "figures.npz")
    assert (len(arrays), arrays.get("per_class")) == (0, None)
    assert arrays.problem() == "figures.npz is missing"


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_changed_byte_gives_the_array_or_nothing(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "figures.npz"
    kept = np.arange(50.0)
    np.savez_compressed(path, kept=kept)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    arrays = Arrays(path)
    found = arrays.get("kept")
    assert found is None or np.array_equal(found, kept)
    assert isinstance(len(arrays), int)
    assert found is not None or arrays.problem() is not None or "kept" not in list(arrays)
