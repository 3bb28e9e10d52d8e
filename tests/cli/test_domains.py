"""The command line on data of several domains, as a person meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from batchformer.cli import main as cli
from batchformer.lab.models.build import build_model
from batchformer.lab.runs.load_run import restore
from helpers.commands import ask
from helpers.lab_runs import config_of, metrics_of, result_of

CPU = torch.device("cpu")
QUICK = ["--quiet", "--device", "cpu", "--train.batch-size", "20"]


def test_every_target_is_compared_and_its_parts_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failing: Any
) -> None:
    arguments = ["compare", "rotated_digits_erm", "--seeds", "1", "--runs", str(tmp_path)]
    arguments += ["--arms", "batchformer", "--train.updates", "2", "--train.eval-every", "2"]
    cli.main([*arguments, "--train.no-figures", *QUICK])
    out = capsys.readouterr().out
    shown = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {"Average", "r0", "r15", "r30", "r45", "r60", "r75"} <= shown
    folder = tmp_path / "rotated_digits_erm/batchformer/seed0"
    metrics = metrics_of(folder)
    cli.main(["evaluate", str(folder / "r30"), "--device", "cpu"])
    assert f"{folder / 'r30'}: r30 {metrics['r30']:.2f} val" in capsys.readouterr().out
    code, seen = failing("evaluate", str(folder), "--device", "cpu")
    assert code == 1 and "r0, r15, r30, r45, r60, r75. Name the folder of one of them" in seen


@pytest.mark.parametrize("name", ["rotated_digits_irm", "rotated_digits_mdd"])
def test_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", name, "--device", "cpu"])
    assert "BatchFormer is acting." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["train", "rotated_digits_mdd", "--data.source", "r1", "--device", "cpu"],
            "has no domain 'r1'; choose data.source of r0, r15, r30, r45, r60, r75",
        ),
        (["compare", "my_domains"], "by --data.root"),
        (
            ["compare", "rotated_digits_erm", "--method", "mdd"],
            "mdd adapts to a target; set data.adapt, and name data.target",
        ),
        (["compare", "pacs_erm", "--method", "coral"], "set data.sampler domains"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, seen = failing(*arguments)
    assert code in (1, 2) and words in seen
    assert not list(tmp_path.rglob("result.json"))


def test_a_try_that_failed_before_training_is_in_nobodys_way(tmp_path: Path, failing: Any) -> None:
    arguments = ["train", "rotated_digits_coral", "--data.target", "r45", "--quiet"]
    arguments += ["--device", "cpu", "--train.updates", "2", "--runs", str(tmp_path)]
    code, seen = failing(*arguments, "--train.batch-size", "61")
    assert code == 1 and "set train.batch-size to a multiple of 5, or to 0" in seen
    folder = tmp_path / "rotated_digits_coral/batchformer/seed0"
    assert (folder / "config.json").exists()
    cli.main([*arguments, "--train.batch-size", "60"])
    recorded = config_of(folder)
    assert recorded["trained"]["train"]["batch_size"] == 60
    code, seen = failing(*arguments, "--train.batch-size", "20")
    assert code == 1 and "train.batch_size was 60, is 20" in seen


def test_a_wrong_root_is_answered_with_what_was_looked_for(tmp_path: Path) -> None:
    """At once, before anything heavy is loaded."""
    (tmp_path / "photo").mkdir()
    (answer,) = ask([["compare", "pacs_coral", "--data.root", str(tmp_path)]])
    assert answer.code == 1 and "Traceback" not in answer.said
    assert not answer.torch_is_loaded and answer.seconds < 3
    words = answer.words
    assert f"PACS not found: looked in {tmp_path}, and there is no folder of art_painting" in words
    assert "no folder of cartoon, no folder of sketch" in words and "of photo" not in words
    assert "Expected there: art_painting/<class>/<image>, cartoon/<class>/<image>" in words
    assert "of 7 classes" in words and "https://domaingeneralization.github.io" in words
    assert "--data.root" in words and "BATCHFORMER_DATA" in words


def test_epochs_of_a_shuffled_order_follow_from_the_data(tmp_path: Path) -> None:
    arguments = ["train", "rotated_digits_mdd", "--train.epochs", "2", "--train.eval-every", "0"]
    cli.main([*arguments, "--runs", str(tmp_path), "--quiet", "--device", "cpu"])
    folder = tmp_path / "rotated_digits_mdd/batchformer/seed0"
    result = result_of(folder)
    assert result["updates"] == 2 * (300 // 36)
    assert list(result["metrics"]) == ["r45", "mean_class"]


def mdd_network(width: int) -> Any:
    """The network that a person builds for the weights of an adapted run."""
    network: Any = build_model("digits16_net", 10)
    network.fc = nn.Sequential(
        *(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout(), nn.Linear(width, 10)),
    )
    return network.eval()


def test_an_adapted_network_is_exported_with_its_classifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "rotated_digits_mdd", "--train.updates", "3", "--runs", str(tmp_path)]
    cli.main([*arguments, "--hyper.bottleneck", "24", *QUICK])
    folder, file = tmp_path / "rotated_digits_mdd/batchformer/seed0", tmp_path / "w.pt"
    capsys.readouterr()
    cli.main(["export", str(folder), "--to", str(file)])
    out = capsys.readouterr().out
    assert "the weights of digits16_net, with the classifier of mdd" in out and "1x1" not in out
    network = mdd_network(24)
    network.load_state_dict(torch.load(file, weights_only=True), strict=True)
    x = torch.rand(7, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network(x), restore(folder, CPU)[0].predict(x))
