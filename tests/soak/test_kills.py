"""What is called a difference between two runs, and a file that is not whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.engine import checkpoint
from soak.kills import differences, folder_of, train, unreadable


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    cli.main(train(root, ("--train.updates", "4", "--train.checkpoint-every", "2")))
    return folder_of(root)


def change_weights(folder: Path) -> None:
    state = checkpoint.load_newest(folder / "checkpoints")
    assert state is not None
    weight = next(iter(state["method"].values())).view(-1)
    weight[0] = torch.nextafter(weight[0], torch.tensor(9.0))
    checkpoint.save(folder / "checkpoints", 4, state)


def change_records(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")


def change_scores(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    result["metrics"]["all"] += 1e-9
    (folder / "result.json").write_text(json.dumps(result))


def change_figures(folder: Path) -> None:
    with np.load(folder / "figures.npz") as found:
        arrays = dict(found)
    arrays["per_class"][0] += 1e-9
    np.savez(folder / "figures.npz", **arrays)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda folder: None, []),
        (change_weights, ["checkpoint: method"]),
        (change_records, ["metrics.jsonl"]),
        (change_scores, ["result.json"]),
        (change_figures, ["figures.npz"]),
    ],
)
def test_one_bit_is_a_difference(
    tmp_path: Path, finished: Path, change: Callable[[Path], None], found: list[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    change(copy)
    assert list(differences(finished, copy)) == found


def test_torn_files_are_found(tmp_path: Path, finished: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    assert list(unreadable(copy)) == []
    torn = [max((copy / "checkpoints").glob("*.pt")), copy / "config.json", copy / "figures.npz"]
    for path in torn:
        path.write_bytes(path.read_bytes()[:200])
    found = " ".join(unreadable(copy))
    assert all(path.name in found for path in torn) and "result.json" not in found
