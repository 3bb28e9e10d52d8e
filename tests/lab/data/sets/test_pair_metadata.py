"""Metadata of published sets: plain strings are read, and nothing is run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.data.sets.known_pairs import CONVERTED, metadata_to_csv, read_metadata


def entry(image: str, pair: tuple[str, str], part: str) -> dict[str, str]:
    return {"image": image, "attr": pair[0], "obj": pair[1], "set": part, "_image": "old/x.jpg"}


class Runs:
    """An object whose reading runs a command, as harmful files do."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("new_format", [True, False])
def test_nothing_in_the_metadata_is_run(tmp_path: Path, new_format: bool) -> None:
    entries = [entry("1.jpg", ("wet", "dog"), "train")]
    file, trace = tmp_path / "m.t7", tmp_path / "trace"
    torch.save(entries, file, _use_new_zipfile_serialization=new_format)
    assert read_metadata(file)[0] == [("1.jpg", "wet", "dog", "train")]
    harmful: Sequence[Any] = [{**entries[0], "image": Runs(trace)}]
    torch.save(harmful, file, _use_new_zipfile_serialization=new_format)
    with pytest.raises(ValueError, match=r"m.t7 holds more .*\.mkdir\..*convert-pairs"):
        read_metadata(file)
    with pytest.raises(ValueError, match=CONVERTED):
        metadata_to_csv(file, tmp_path / "m.csv")
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "none.t7")
    assert not trace.exists() and not (tmp_path / "m.csv").exists()


@pytest.mark.parametrize(
    "content", [b"", b"no such file", b"PK\3\4 cut", pickle.dumps(["x"], protocol=2)[:5]]
)
def test_damaged_metadata(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.t7").write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.t7 cannot be read: it is damaged"):
        read_metadata(tmp_path / "m.t7")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"image": "1.jpg"}, "expected a list of dicts, got a dict"),
        ([entry("1.jpg", ("a", "o"), "val"), "2.jpg"], "entry 1 .* got '2.jpg'"),
        ([{"image": "1.jpg", "attr": "a", "set": "val"}], "entry 0 .*image, attr, obj, set"),
        ([{**entry("1.jpg", ("a", "o"), "val"), "obj": 3}], "entry 0 .*'obj': 3"),
        ([entry("1.jpg", ("a", "o"), "dev")], "entry 0 .*train, val, test or NA, got 'dev'"),
    ],
)
def test_metadata_of_other_kinds(tmp_path: Path, content: object, said: str) -> None:
    torch.save(content, tmp_path / "m.t7")
    with pytest.raises(ValueError, match=said):
        read_metadata(tmp_path / "m.t7")
