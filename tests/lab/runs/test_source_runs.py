"""Runs that start from others: the weights, the pairing, and what is said when they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.module import ModuleConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.models.networks import digits_net
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs.folder import write_json
from batchformer.lab.runs.load_run import restore, restore_deployed
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.source_runs import require_finished, trained_network, training_hash
from helpers.lab_runs import compare, train_one

CPU = torch.device("cpu")


def first(**train: Any) -> Recipe:
    return demo().changed(train=TrainConfig(batch_size=64, updates=8, figures=False, **train))


def second(method: str, start: str = "demo", **changes: Any) -> Recipe:
    train = TrainConfig(batch_size=64, updates=6, figures=False)
    fields = {"name": f"demo_{method}", "method": method, "start": start, "train": train}
    return demo().changed(**{**fields, **changes})


def test_a_run_starts_from_the_network_of_the_same_arm_and_seed(tmp_path: Path) -> None:
    for arm in ("baseline", "batchformer"):
        train_one(first(), arm, 1, root=tmp_path)
    states = {}
    for arm in ("baseline", "batchformer"):
        folder = train_one(second("crt"), arm, 1, root=tmp_path)
        start = trained_network(tmp_path / f"demo/{arm}/seed1")
        method, _, _ = restore(folder, CPU)
        states[arm] = method.network.state_dict()  # type: ignore[union-attr]
        for key, value in start.items():
            same = torch.equal(states[arm][key], value)
            assert same != key.startswith("fc."), (arm, key)
    assert not torch.equal(
        states["baseline"]["conv1.weight"], states["batchformer"]["conv1.weight"]
    )


def test_what_starts_from_batchformer_inside_a_network_gets_the_plain_network(
    tmp_path: Path,
) -> None:
    inside = first(ema=0.5).changed(module=ModuleConfig(at=("hidden",)))
    source = train_one(inside, "batchformer", 0, root=tmp_path)
    start, plain = trained_network(source), digits_net(10)
    assert start.keys() == plain.state_dict().keys()
    folder = train_one(second("crt"), "batchformer", 0, root=tmp_path)
    state = restore(folder, CPU)[0].network.state_dict()  # type: ignore[union-attr]
    assert torch.equal(state["hidden.weight"], start["hidden.weight"])
    deployed, _ = restore_deployed(source, CPU)
    assert deployed.state_dict().keys() == plain.state_dict().keys()
    assert type(deployed.hidden) is torch.nn.Linear


def test_a_named_arm_serves_every_arm(tmp_path: Path) -> None:
    train_one(first(), "baseline", 0, root=tmp_path)
    recipe = second("lws", start="demo/baseline")
    folders = list(compare(recipe, ["baseline", "batchformer"], [0], root=tmp_path))
    start = trained_network(tmp_path / "demo/baseline/seed0")
    for folder in folders:
        state = restore(folder, CPU)[0].network.state_dict()  # type: ignore[union-attr]
        assert torch.equal(state["conv1.weight"], start["conv1.weight"])
        assert torch.equal(state["fc.classifier.weight"], start["fc.weight"])


def test_tau_norm_is_of_the_trained_weights_also_after_restoring(tmp_path: Path) -> None:
    train_one(first(), "batchformer", 0, root=tmp_path)
    folder = train_one(second("tau_norm"), "batchformer", 0, root=tmp_path)
    weight = trained_network(tmp_path / "demo/batchformer/seed0")["fc.weight"]
    got = restore(folder, CPU)[0].network.fc.weight  # type: ignore[union-attr]
    torch.testing.assert_close(got, weight / weight.norm(dim=1, keepdim=True))


def test_an_average_of_weights_is_what_others_start_from(tmp_path: Path) -> None:
    folder = train_one(first(ema=0.5), "baseline", 0, root=tmp_path)
    evaluated = restore(folder, CPU)[0].network.state_dict()  # type: ignore[union-attr]
    start = trained_network(folder)
    assert set(start) == set(evaluated)
    assert all(torch.equal(start[key], value) for key, value in evaluated.items())


def test_a_missing_run_is_answered_with_the_command_before_any_work(tmp_path: Path) -> None:
    train_one(first(), "baseline", 3, root=tmp_path)
    words = f"batchformer train demo --arm batchformer --seed 3 --runs {tmp_path}"
    with pytest.raises(FileNotFoundError, match=words):
        list(compare(second("crt"), ["baseline", "batchformer"], [3], root=tmp_path))
    assert not (tmp_path / "demo_crt").exists()


def test_another_training_set_is_refused(tmp_path: Path) -> None:
    folder = train_one(first(), "baseline", 0, root=tmp_path)
    with pytest.raises(ValueError, match="another training set"):
        require_finished(folder, "0" * 64)
    other = second("crt", data={"ratio": 20.0})
    with pytest.raises(ValueError, match="another training set"):
        train_one(other, "baseline", 0, root=tmp_path)


def test_another_test_set_is_no_reason_to_refuse(tmp_path: Path) -> None:
    facts = {"split_sha256": "1" * 64, "train_sha256": "2" * 64}
    write_json(tmp_path / "config.json", {"data": facts})
    write_json(tmp_path / "result.json", {"metrics": {}})
    require_finished(tmp_path, training_hash({**facts, "split_sha256": "3" * 64}))
    with pytest.raises(ValueError, match="another training set"):
        require_finished(tmp_path, training_hash({**facts, "train_sha256": "3" * 64}))


def test_a_finished_run_without_checkpoints_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no checkpoint to start from"):
        trained_network(tmp_path)


def test_a_run_does_not_start_from_itself(tmp_path: Path) -> None:
    recipe = first().changed(start="demo/baseline")
    with pytest.raises(ValueError, match="would start from itself"):
        train_one(recipe, "baseline", 0, root=tmp_path)
    taught = first().changed(method="ride", teacher="demo")
    with pytest.raises(ValueError, match=r"would be its own teacher: .* by --teacher") as refused:
        train_one(taught, "baseline", 0, root=tmp_path)
    assert "--weights" not in str(refused.value), "no file takes the place of a teacher"


def test_two_stages_of_one_recipe_are_told_what_works(tmp_path: Path) -> None:
    """Another recipe of the method, which starts from the same runs; or a file, elsewhere."""
    refusal = r"start from itself.*batchformer compare cifar100_lt_crt\..*export RUN --to FILE\.pth"
    with pytest.raises(ValueError, match=refusal):
        train_one(second("crt", name="demo"), "baseline", 0, root=tmp_path)
    train_one(first(), "baseline", 0, root=tmp_path)
    other = second("crt", name="cifar100_lt_crt")
    train_one(other, "baseline", 0, root=tmp_path)
    exported = tmp_path / "demo.pth"
    torch.save(dict(trained_network(tmp_path / "demo/baseline/seed0")), exported)
    by_file = second("crt", name="demo", start="", weights=str(exported))
    folder = train_one(by_file, "baseline", 0, root=tmp_path / "other")
    results = [
        path / "figures.npz" for path in (folder, tmp_path / "cifar100_lt_crt/baseline/seed0")
    ]
    scores = [np.load(path)["per_class"] for path in results]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize(
    ("role", "name", "words"),
    [
        ("start", "demmo", r"--start demmo: There is no recipe 'demmo'\. Did you mean demo.*\?"),
        ("start", "demo/basline", r"no arm 'basline'\. Did you mean demo/baseline\?"),
        ("start", "runs/demo/baseline", r"no recipe 'runs'.*named RECIPE or RECIPE/ARM"),
        ("teacher", "cifar100_lt_rid", r"--teacher cifar100_lt_rid: .*mean cifar100_lt_ride"),
    ],
)
def test_names_that_nothing_has_are_answered_with_near_ones(
    tmp_path: Path, role: str, name: str, words: str
) -> None:
    recipe = second("ride", **{"start": "", role: name})
    with pytest.raises(ValueError, match=words):
        train_one(recipe, "baseline", 0, root=tmp_path)


def test_runs_under_names_of_their_own_can_be_started_from(tmp_path: Path) -> None:
    train_one(first().changed(name="mine"), "baseline", 0, root=tmp_path)
    folder = train_one(second("crt", start="mine"), "baseline", 0, root=tmp_path)
    assert (folder / "result.json").exists()
    with pytest.raises(FileNotFoundError, match="batchformer train mine --arm baseline --seed 1"):
        train_one(second("crt", start="mine"), "baseline", 1, root=tmp_path)


def test_sources(tmp_path: Path) -> None:
    recipe = demo().changed(method="ride", start="a", teacher="b/baseline")
    one = Run(recipe, "batchformer", 2, tmp_path / "demo/batchformer/seed2", CPU)
    assert one.sources == {
        "start": tmp_path / "a/batchformer/seed2",
        "teacher": tmp_path / "b/baseline/seed2",
    }
