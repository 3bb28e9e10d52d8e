"""The examples: what they print, and that two ranks print it too."""

from __future__ import annotations

import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from helpers.processes import fork, script, wait_for
from soak.nodes import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[[str], list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The lines that an example prints; its working folder is its own, and it has no network.

    Warnings are errors: a user would see them.
    """

    def lines_of(name: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(sys, "argv", [name])
        capsys.readouterr()
        with warnings.catch_warnings():
            for category in (UserWarning, FutureWarning, RuntimeWarning):
                warnings.simplefilter("error", category)
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        said = capsys.readouterr()
        assert not said.err, said.err
        return said.out.splitlines()

    return lines_of


def on_ranks(name: str, folder: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that an example prints on ranks that are told what ``torchrun`` tells them."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    started, outputs = [], [folder / f"rank{rank}" for rank in range(ranks)]
    for rank, output in enumerate(outputs):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        started.append(fork(script, EXAMPLES / name, output))
    wait_for(started, outputs)
    said = [output.with_suffix(".err").read_text() for output in outputs]
    assert not any(said), said
    return outputs[0].with_suffix(".out").read_text().splitlines()


def validation_losses(lines: list[str]) -> list[float]:
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("epoch")]


def test_plain_pytorch(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    lines = run("plain_pytorch.py")
    assert lines[0].startswith("BatchFormer attached before '6' (256 channels)")
    assert "BatchFormer is acting." in lines
    losses = validation_losses(lines)
    assert losses[-1] < 0.5 * losses[0]
    last = r"accuracy (.*)%, on the three rarest digits (.*)%; saved runs.digits\.pt"
    found = re.fullmatch(last, lines[-1])
    assert found, lines[-1]
    assert float(found[1]) > 70
    assert float(found[2]) > 30
    state = torch.load(tmp_path / "runs" / "digits.pt", weights_only=True)
    assert list(state) == [f"{layer}.{part}" for layer in (0, 2, 6) for part in ("weight", "bias")]


def test_timm_fine_tuning(run: Run) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("sklearn")
    lines = run("gallery/timm_fine_tuning.py")
    assert lines[0].startswith("BatchFormer attached before 'fc'")
    assert "BatchFormer is acting." in lines
    losses = [float(line.split()[-1]) for line in lines if line.startswith("epoch")]
    assert losses[-1] < losses[0]
    found = re.fullmatch(r"accuracy (.*)% with ResNet, BatchFormer removed", lines[-1])
    assert found, lines[-1]
    assert float(found[1]) > 90


def test_ddp_exchange(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of two ranks are those of one process, but for rounding."""
    pytest.importorskip("sklearn")
    one = run("ddp_exchange.py")
    two = on_ranks("ddp_exchange.py", tmp_path, 2, monkeypatch)
    for lines in (one, two):
        assert "over the samples of all ranks" in lines[0]
        assert "BatchFormer is acting." in lines
    losses = validation_losses(one)
    assert losses[-1] < 0.5 * losses[0]
    assert validation_losses(two) == pytest.approx(losses, abs=5e-3)
    found = [re.fullmatch(r"accuracy (.*)% after training on \d ranks", r[-1]) for r in (one, two)]
    accuracies = [float(match[1]) for match in found if match]
    assert len(accuracies) == 2 and min(accuracies) > 85


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("own_folder", "Page: "),
        ("text", "The first text of the first batch: "),
        ("multi_label", "epoch 12"),
        ("segmentation", r"\d+\.\d% of the digits' pixels are right"),
        ("look_into_a_batch", "relations.html"),
    ],
)
def test_the_gallery_runs(run: Run, name: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert re.match(last, run(f"gallery/{name}.py")[-1])
