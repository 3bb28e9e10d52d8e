"""One run: its folder, its initial weights, and what a training leaves, killed or not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from batchformer.cli import main as cli
from batchformer.lab.config.arms import ARMS, with_arm
from batchformer.lab.config.methods import find_method
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.models.build import OWN
from batchformer.lab.models.networks import DigitsNet
from batchformer.lab.models.weights import move_stride
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs import run as run_module
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.runs.compare import run
from batchformer.lab.runs.load_run import restore
from batchformer.lab.runs.run import Run
from helpers.lab_runs import (
    begun,
    config_of,
    metrics_of,
    records_of,
    result_of,
    same,
    short,
    state_of,
    train_one,
)
from helpers.networks import bottlenecks
from soak.processes import finish, start

CPU = torch.device("cpu")


def test_a_run_folder_holds_all_a_report_needs(tmp_path: Path) -> None:
    folder = train_one(short(figures=True), "batchformer", 1, root=tmp_path)
    assert folder == tmp_path / "demo/batchformer/seed1"
    config = config_of(folder)
    assert config["arm"] == "batchformer" and config["seed"] == 1
    assert config["recipe"]["train"]["updates"] == 6 and len(config["data"]["split_sha256"]) == 64
    assert config["provenance"]["torch"] == torch.__version__
    assert len(config["provenance"]["code_sha256"]) == 64
    result = result_of(folder)
    assert result["updates"] == 6 and set(result["metrics"]) >= {"all", "many", "medium", "few"}
    with np.load(folder / "figures.npz", allow_pickle=False) as figures:
        assert figures["per_class"].shape == (10,) and figures["correct"].dtype == bool
    size = sum(p.stat().st_size for p in folder.rglob("*") if "checkpoints" not in p.parts)
    assert size < 5e6


def test_a_choice_by_validation_needs_it_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no validation data; .*--train\.select-on last"):
        train_one(short(select_on="val"), "batchformer", 0, root=tmp_path)
    assert not list(tmp_path.rglob("*.json*")), "nothing of it was begun"


class Normalised(DigitsNet):
    """Batch normalisation where nothing of the image's plane is left, as at the end of a ResNet."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.norm = nn.BatchNorm1d(self.num_features)

    def forward_features(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm(super().forward_features(x))
        return normalised


def test_a_batch_of_one_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = short(updates=2, batch_size=1)
    train_one(one, "baseline", 0, root=tmp_path)
    monkeypatch.setitem(OWN, "normalised", Normalised)
    words = r"given a single image.*--train\.batch-size.*--train\.drop-last.*\[1, 64\]"
    with pytest.raises(ValueError, match=words):
        other = one.changed(name="other", model="normalised")
        train_one(other, "baseline", 0, root=tmp_path)


def test_a_network_for_other_channels_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"digits have one, which digits_net .* by --model"):
        train_one(short().changed(model="resnet32"), "baseline", 0, root=tmp_path)


def test_arms_are_paired(tmp_path: Path) -> None:
    """Adding the module changes no pixel, no order and no shared initial weight."""
    recipe, task = short(), load_task(demo().data, CPU)
    states, batches = {}, {}
    # All of them have random weights, and one of them needs a place inside the network.
    fitting = [arm for arm in ARMS if ARMS[arm].fits(find_method(recipe.method))]
    arms = [arm for arm in fitting if arm not in ("random_weights", "batchformer_identity")]
    for arm in arms:
        armed = with_arm(recipe, arm)
        torch.manual_seed(hash(arm) % 1000)  # whatever the global generator holds
        found = build(armed, 4, task).state_dict()
        # The classifier of baseline_norm comes second, after the normalisation.
        states[arm] = {key.replace(".fc.1.", ".fc."): value for key, value in found.items()}
        if (armed.data, armed.train.batch_size) == (recipe.data, recipe.train.batch_size):
            feed = task.feed(armed.train, 4)
            batches[arm] = [feed.batch(step) for step in (0, 7)]
    assert {*arms} - {*batches} >= {"baseline_batch2x", "mates", "baseline_mates"}
    for arm in arms:
        for key, value in states["baseline"].items():
            assert torch.equal(states[arm][key], value), (arm, key)
        for mine, others in zip(batches.get(arm, ()), batches["baseline"], strict=False):
            assert all(torch.equal(mine[key], others[key]) for key in ("x", "y", "index"))
    modules = {arm: with_arm(recipe, arm).module for arm in arms}
    encoders = [a for a, m in modules.items() if m.enabled and m.encoder == "transformer"]
    other = build(with_arm(recipe, "baseline"), 5, task).state_dict()
    assert any(not torch.equal(other[key], value) for key, value in states["baseline"].items())
    weights = [states[arm]["encoder.layers.0.linear1.weight"] for arm in encoders]
    assert len(weights) > 9 and all(torch.equal(weights[0], w) for w in weights)


@pytest.fixture
def first_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A short recipe that begins with a file of weights whose bottlenecks stride in the 1x1."""
    from safetensors.torch import save_file

    monkeypatch.setitem(OWN, "bottlenecks", bottlenecks)
    file = tmp_path / "w.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(5)
        halves = {k: v.half() for k, v in bottlenecks(10).state_dict().items()}
    save_file(halves, file, metadata={"layout": "stride_in_1x1"})
    recipe = short(updates=2, eval_every=2, checkpoint_every=1)
    return recipe.changed(model="bottlenecks", weights=str(file))


def images() -> Tensor:
    return torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_a_run_keeps_the_stride_of_its_weights(
    tmp_path: Path, first_layout: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(first_layout, "batchformer", 0, root=tmp_path, device=CPU)
    assert "stride in their first 1x1 convolution, as its metadata says" in capsys.readouterr().err
    config = config_of(folder)
    assert (config["recipe"]["stride"], config["trained"]["stride"]) == ("auto", "1x1")
    Path(first_layout.weights).unlink()
    method: Any = restore(folder, CPU)[0]
    network = bottlenecks(10).eval()
    network.load_state_dict(method.network.state_dict())
    with torch.no_grad():
        stock = network(images())
        move_stride(network, "1x1")
        predicted = method.predict(images())
        torch.testing.assert_close(predicted, network(images()))
        assert not torch.allclose(predicted, stock, rtol=1e-2)
    capsys.readouterr()
    cli.main(["evaluate", str(folder), "--device", "cpu"])
    score = metrics_of(folder)["all"]
    assert f"all {score:.2f}" in capsys.readouterr().out
    cli.main(["export", str(folder), "--to", str(tmp_path / "exported.pt")])
    assert "stride in their first 1x1 convolution" in capsys.readouterr().out
    network = bottlenecks(10).eval()
    network.load_state_dict(torch.load(tmp_path / "exported.pt", weights_only=True), strict=True)
    move_stride(network, "1x1")
    with torch.no_grad():
        torch.testing.assert_close(network(images()), predicted)
    run(first_layout, "batchformer", 0, root=tmp_path, device=CPU)  # found finished, not refused


@pytest.mark.parametrize("gone", [False, True])
def test_a_stopped_run_goes_on_with_the_stride_of_its_weights(
    tmp_path: Path, first_layout: Recipe, gone: bool
) -> None:
    folder = train_one(first_layout, "batchformer", 0, root=tmp_path)
    found, configs = [], []
    for again in (False, True):
        if again:  # as it was after the first update
            (folder / "result.json").unlink()
            max((folder / "checkpoints").glob("*.pt")).unlink()
            if gone:
                Path(first_layout.weights).unlink()
            train_one(first_layout, "batchformer", 0, root=tmp_path)
        found.append((metrics_of(folder), state_of(folder)))
        configs.append(config_of(folder))
    assert same(*found)
    for key in ("trained", "weights"):
        assert configs[0][key] == configs[1][key]
    (folder / "result.json").unlink()
    for checkpoint in (folder / "checkpoints").glob("*.pt"):
        checkpoint.unlink()
    if gone:
        with pytest.raises(FileNotFoundError, match="no file of weights"):
            train_one(first_layout, "batchformer", 0, root=tmp_path)


def test_random_weights_are_of_the_network_that_the_file_is_of(
    tmp_path: Path, first_layout: Recipe
) -> None:
    folder = train_one(first_layout, "random_weights", 0, root=tmp_path)
    config = config_of(folder)
    assert (config["trained"]["stride"], config["trained"]["weights"]) == ("1x1", "")
    assert "weights" not in config, "none were loaded"
    method: Any = restore(folder, CPU)[0]
    assert method.network.layer2[0].conv1.stride == (2, 2)
    Path(first_layout.weights).unlink()
    train_one(first_layout, "random_weights", 0, root=tmp_path)  # found finished, not refused
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        train_one(first_layout, "random_weights", 1, root=tmp_path)


def test_a_stopped_run_goes_on_from_its_own_weights_and_data_only(
    tmp_path: Path, first_layout: Recipe
) -> None:
    """Else it would have learnt from two data sets, and its folder would name the second."""
    folder = train_one(first_layout, "batchformer", 0, root=tmp_path)
    (folder / "result.json").unlink()
    before = (folder / "config.json").read_text()
    config = json.loads(before)
    for changed, words in (
        ({"weights": {**config["weights"], "sha256": "0"}}, "weights.sha256 was 0, is "),
        ({"data": {**config["data"], "train": 341, "remarks": []}}, "data.train was 341, is 342"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(ValueError, match=f"other data or weights: {words}[^;]*$"):
            train_one(first_layout, "batchformer", 0, root=tmp_path)
        assert json.loads((folder / "config.json").read_text()) == {**config, **changed}
    moved = {"weights": {**config["weights"], "file": "elsewhere"}}
    facts = {"data": {**config["data"], "remarks": ["other words"]}}
    (folder / "config.json").write_text(json.dumps({**config, **moved, **facts}))
    train_one(first_layout, "batchformer", 0, root=tmp_path)


def started_from(recipe: Recipe) -> Recipe:
    changes: dict[str, Any] = {"name": "second", "method": "crt", "start": "demo/baseline"}
    return recipe.changed(weights="", **changes)


def test_runs_that_start_from_a_run_stride_as_it_does(tmp_path: Path, first_layout: Recipe) -> None:
    train_one(first_layout, "baseline", 0, root=tmp_path)
    second = started_from(first_layout)
    folder = train_one(second, "baseline", 0, root=tmp_path)
    method: Any = restore(folder, CPU)[0]
    assert method.network.layer2[0].conv1.stride == (2, 2)
    shutil.rmtree(tmp_path / "demo")
    train_one(second, "baseline", 0, root=tmp_path)  # found finished, not refused
    method = restore(folder, CPU)[0]
    assert method.network.layer2[0].conv1.stride == (2, 2)


def test_a_run_is_not_kept_when_its_start_was_trained_otherwise(tmp_path: Path) -> None:
    """Else a probe would show the scores of features that are gone."""
    second = short().changed(name="second", method="crt", start="demo/baseline")
    train_one(short(), "baseline", 0, root=tmp_path)
    folder = train_one(second, "baseline", 0, root=tmp_path)
    shutil.rmtree(tmp_path / "demo")
    train_one(short(log_every=6), "baseline", 0, root=tmp_path)
    train_one(second, "baseline", 0, root=tmp_path)  # of a start that is the same
    shutil.rmtree(tmp_path / "demo")
    train_one(short(updates=9), "baseline", 0, root=tmp_path)
    for trace in ("", "result.json"):  # finished, and stopped
        if trace:
            (folder / trace).unlink()
        with pytest.raises(ValueError, match=r"start has been .*train\.updates was 6, is 9"):
            train_one(second, "baseline", 0, root=tmp_path)


def test_a_start_of_another_stride_is_refused(tmp_path: Path, first_layout: Recipe) -> None:
    train_one(first_layout.changed(weights=""), "baseline", 0, root=tmp_path)
    second = started_from(first_layout).changed(stride="1x1")
    with pytest.raises(ValueError, match="seed0 says 3x3, the recipe says 1x1"):
        train_one(second, "baseline", 0, root=tmp_path)


def test_weights_of_a_try_in_which_nothing_was_trained_are_forgotten(tmp_path: Path) -> None:
    one = Run.below(tmp_path, short(), "baseline", 0, CPU)
    one.begin()
    path = one.folder / "config.json"
    before = json.loads(path.read_text())
    before["trained"]["weights"] = "old.pth"
    path.write_text(json.dumps({**before, "weights": {"file": "old.pth", "sha256": "0"}}))
    one.begin()
    assert "weights" not in (found := json.loads(path.read_text()))
    assert found["trained"]["weights"] == ""


# What a training leaves in the folder, killed or not


def trained(run: Run) -> Evaluation:
    steps = begun(run)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            evaluation: Evaluation = end.value
            return evaluation


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    one = Run.below(tmp_path, short(select_on="test"), "batchformer", 0, CPU)
    evaluation = trained(one)
    result = result_of(one.folder)
    assert result.pop("minutes") > 0
    assert result == {"metrics": evaluation.metrics, "updates": 6, "selected": "test"}
    assert (one.folder / "figures.npz").exists() and one.finished


def test_a_run_without_its_figures_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says that all is there is written last."""

    def full(*_: object) -> None:
        raise OSError("no space left")

    one = Run.below(tmp_path, short(), "batchformer", 0, CPU)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_figures", full)
        with pytest.raises(OSError, match="no space left"):
            trained(one)
    assert not one.finished
    trained(one)
    assert one.finished


UPDATES = 60
COMMAND = [
    *("train", "demo", "--arm", "batchformer", "--train.no-figures", "--device", "cpu", "--quiet"),
    *("--train.updates", str(UPDATES), "--train.eval-every", "20", "--train.checkpoint-every", "4"),
]


# SIGKILL at random moments, inside writes too, is in tests/reliability.
# SIGTERM is in test_job.py, and with several ranks in test_torchrun.py.
def test_a_process_stopped_by_ctrl_c_and_resumed_equals_an_unbroken_one(
    tmp_path: Path,
) -> None:
    cli.main([*COMMAND, "--runs", str(tmp_path / "whole")])
    unbroken = tmp_path / "whole/demo/batchformer/seed0"
    for attempt in range(5):  # on a busy machine it may end before the signal comes
        runs = tmp_path / str(attempt)
        command, folder = [*COMMAND, "--runs", str(runs)], runs / "demo/batchformer/seed0"
        process = start(command, tmp_path / "log")
        deadline = time.monotonic() + 300
        while process.is_alive() and not list((folder / "checkpoints").glob("000000*.pt")):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, signal.SIGINT)
        if code := finish(process):
            break
    assert code in (-signal.SIGINT, 128 + signal.SIGINT) and not (folder / "result.json").exists()

    assert finish(start(command, tmp_path / "log")) == 0
    assert records_of(folder) == records_of(unbroken)
    assert metrics_of(folder) == metrics_of(unbroken)
    assert same(state_of(folder), state_of(unbroken))


def test_a_re_weighting_that_will_never_come_is_told_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, told in (("balanced_softmax", False), ("ldam", True)):
        changed = short().changed(method=method)
        one = Run.below(tmp_path / method, changed, "baseline", 0, CPU)
        next(begun(one, quiet=False))
        assert ("re-weighting begins with epoch 160" in capsys.readouterr().err) == told
