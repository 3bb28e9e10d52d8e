"""What is kept of a network: all of it or nothing, and no more than a folder should hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchformer.insight import record


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / record.FILE
    given = {"classes": np.array(["a", "b"]), "cam_heat": np.ones((2, 3, 3), np.float16)}
    record.save(file, given)
    with np.load(file, allow_pickle=False) as found:
        assert set(found) == set(given)
        for name, array in given.items():
            assert found[name].dtype == array.dtype and (found[name] == array).all()


def test_too_much_is_refused_and_what_was_there_stays(tmp_path: Path) -> None:
    file = tmp_path / record.FILE
    record.save(file, {"x": np.zeros(3)})
    before = file.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, record.MOST_BYTES + 10**5, dtype=np.uint8)
    with pytest.raises(ValueError, match=r"5\.1 MB, more than 5"):
        record.save(file, {"x": noise})
    assert file.read_bytes() == before and [*tmp_path.iterdir()] == [file]
