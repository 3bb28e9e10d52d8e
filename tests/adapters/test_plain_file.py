"""The plain weights in a file: complete, loadable without this library, never half written."""

from __future__ import annotations

import copy
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import Tensor, nn

from batchformer import attach
from batchformer.adapters.plain_file import write_plain
from helpers.networks import BodyAndHead


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3, bias=False)
    )


def test_the_file_is_the_plain_models_and_needs_no_batchformer(tmp_path: Path) -> None:
    model = attach(network(), verbose=False)
    model(torch.randn(8, 6))  # moves the running statistics
    path = write_plain(model, tmp_path / "a" / "b" / "model.pt")
    plain, x = network(), torch.randn(5, 6)
    plain.load_state_dict(torch.load(path, weights_only=True), strict=True)
    assert torch.equal(plain.eval()(x), model.eval()(x))
    assert [file.name for file in path.parent.iterdir()] == ["model.pt"]
    with zipfile.ZipFile(path) as archive:
        assert not any(b"batchformer" in archive.read(name) for name in archive.namelist())


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = attach(network(), verbose=False), tmp_path / "model.pt"
    write_plain(model, path)
    before = path.read_bytes()

    def fail(state: Any, file: BinaryIO) -> None:
        file.write(b"half")
        raise RuntimeError("disk full")  # what torch raises

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        write_plain(model, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_the_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, there = tmp_path / "model.pt", []
    monkeypatch.setattr(os, "fsync", lambda handle: there.append(path.exists()))
    write_plain(attach(network(), verbose=False), path)
    assert there[0] is False


class Scaled(BodyAndHead):
    """Takes what cannot be guessed: two tensors that fit together."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.body(x) * scale[:, None]))


def test_an_example_where_none_can_be_guessed(tmp_path: Path) -> None:
    example = (torch.randn(4, 4), torch.rand(4))
    model = attach(Scaled(), example=example, verbose=False)
    twin = copy.deepcopy(model)  # attach remembers an example of the model itself alone
    with pytest.raises(ValueError, match="Pass example="):
        write_plain(twin, tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())
    for path in (
        write_plain(model, tmp_path / "model.pt"),
        write_plain(twin, tmp_path / "twin.pt", example),
    ):
        Scaled().load_state_dict(torch.load(path, weights_only=True), strict=True)
