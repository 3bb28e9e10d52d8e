"""The command line on several ranks, as ``torchrun`` starts them; most of it is in `soak`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.distributed.torchrun import is_follower, several_ranks
from soak.kills import folder_of
from soak.nodes import apart, start_ranks
from soak.processes import finish

SHORT = ("--train.updates", "6", "--train.eval-every", "3", "--train.log-every", "5")
EXACT = ("--train.sync-norm", "--module.exchange", "--train.precision", "fp64")


def train(runs: Path, *options: str, arm: str = "batchformer") -> list[str]:
    fixed = ("--arm", arm, "--device", "cpu", "--runs", str(runs))
    return ["train", "demo", *fixed, *options]


class Ranks:
    """A command on two ranks."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.outputs = [folder / f"rank{rank}.out" for rank in range(2)]
        self.processes = start_ranks(command, self.outputs)

    def end(self) -> tuple[list[int], list[str]]:
        """Exit codes, and what each rank said but of torch's own warnings."""
        codes = [finish(process) for process in self.processes]
        said = [output.read_text() for output in self.outputs]
        return codes, ["\n".join(x for x in s.splitlines() if "[W" not in x) for s in said]


def test_a_whole_run_on_two_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    started = Ranks(tmp_path / "two", train(tmp_path / "two", *SHORT, *EXACT))
    codes, said = started.end()
    assert codes == [0, 0], said
    assert "Finished:" in said[0] and "ranks exchange" not in said[1] and said[1] == ""
    cli.main(train(tmp_path / "one", *SHORT, *EXACT))
    far = apart(folder_of(tmp_path / "one"), folder_of(tmp_path / "two"))
    assert far.weights < 1e-12 and far.scores == 0 and far.losses < 1e-5
    files = {
        kind: sorted(
            path.name
            for path in folder_of(tmp_path / kind).iterdir()
            if not path.name.startswith("events")
        )
        for kind in ("one", "two")
    }
    assert files["one"] == files["two"] and "insight.npz" in files["two"]
    weights = tmp_path / "plain.pt"
    cli.main(["export", str(folder_of(tmp_path / "two")), "--to", str(weights), "--device", "cpu"])
    assert "fc.weight" in torch.load(weights, weights_only=True)
    # Another setting in the same folder is refused by all, and said once.
    codes, said = Ranks(tmp_path / "two", train(tmp_path / "two", *SHORT)).end()
    assert codes == [1, 1]
    words = [text.count("holds a run of this name with other settings") for text in said]
    assert sum(words) == 1, said


def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on(tmp_path: Path) -> None:
    long = ("--train.updates", "100000", "--train.checkpoint-every", "3", "--train.eval-every", "0")
    started = Ranks(tmp_path / "runs", train(tmp_path / "runs", *long, arm="baseline"))
    folder = tmp_path / "runs" / "demo" / "baseline" / "seed0" / "checkpoints"
    end = time.monotonic() + 300
    while not list(folder.glob("[0-9]*.pt")) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(started.processes[1].pid or 0, signal.SIGTERM)
    codes, said = started.end()
    assert codes == [143, 143], said
    assert sum(text.count("stopped and saved at update") for text in said) == 1, said
    state = checkpoint.load_newest(folder)
    assert state is not None and f"saved at update {state['counters']['update']}." in "".join(said)


def test_what_several_ranks_cannot_do_is_said_once(tmp_path: Path) -> None:
    refused = {
        "take one or the other": ["compare", "demo", "--together", "2", "--device", "cpu"],
        "train.drop-last": train(tmp_path / "few", "--train.batch-size", "1", "--quiet"),
        "Unrecognized options": train(tmp_path / "few", "--train.updatez", "1"),
    }
    for words, command in refused.items():
        codes, said = Ranks(tmp_path / words[:4], [*command, "--runs", str(tmp_path)]).end()
        assert set(codes) in ({1}, {2}), said
        assert sum(text.count(words) for text in said) == (2 if "Unrec" in words else 1), said


def test_ranks_are_told_by_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not several_ranks() and not is_follower()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not several_ranks()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert several_ranks() and is_follower()
