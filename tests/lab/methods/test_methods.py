"""What holds for every method, by its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer import check
from batchformer.lab.config.methods import METHODS
from batchformer.lab.config.training import OptimConfig

#: Methods for batches of several domains; accumulation would separate them.
DOMAINS = ("coral", "irm", "vrex", "mixstyle")
#: Tasks of features or boxes; their own files have the same tests.
OTHER_TASKS = {"generalized", "detection"}
#: All but the vote of neighbours, which trains nothing.
OF_IMAGES = [
    name
    for name, entry in METHODS.items()
    if name != "knn" and not OTHER_TASKS.intersection(entry.tasks)
]
#: Their stopping is in their own files, or is that of the same class.
NEVER_STOPPED = ("cross_entropy", "balanced_softmax", "coral", "vrex")
#: They answer with features, or by routers that are no part of the network.
NOT_DEPLOYED = ("moco_v2", "moco_v3", "ride_assignment")
TRAIN: list[dict[str, Any]] = [{"precision": "bf16"}, {"accumulate": 2}]
KEYS: dict[str, Any] = {"queue": 16, "dim": 4, "temperature": 0.2, "momentum": 0.9}
MOCO = {**KEYS, "projection_hidden": 16, "momentum_schedule": "cosine"}
#: Settings for small networks and few updates.
HYPER: dict[str, dict[str, Any]] = {
    "mixstyle": {"mixstyle_after": ("layer1",)},
    "mdd": {"bottleneck": 16, "reversal": 0.5, "reversal_updates": 10},
    "paco": KEYS,
    "moco_v2": MOCO,
    "moco_v3": MOCO,
    # The loss changes between the updates at which a run is stopped and ends.
    "ldam": {"reweight_epoch": 3},
    "ride": {"reweight_epoch": 3},
    "irm": {"penalty": 5.0, "penalty_from": 3},
    "oltr": {"fresh_layer": True},
    "cge": {"graph_hidden": 12, "image_embedding": 20},
    "compcos": {
        "image_embedding": 10,
        "image_hidden": 12,
        "feasibility": "margin",
        "feasibility_margin": 0.4,
        "feasibility_epochs": 5,
    },
}
ACTING = [name for name in OF_IMAGES if METHODS[name].batchformer == "trains"]
CASES = [(name, t) for name in OF_IMAGES for t in (TRAIN[:1] if name in DOMAINS else TRAIN)]


def made(make: Any, name: str, **module: Any) -> Any:
    groups = {"groups": 2} if name in DOMAINS else None
    method = make(name, HYPER.get(name), groups, **module)
    method.begin_training(8)
    return method


@pytest.fixture
def everything(batch: Any) -> dict[str, Any]:
    """A batch with all that any method asks for."""
    return {**batch, "x_target": batch["view2"]}


@pytest.mark.parametrize(("name", "train"), CASES, ids=str)
def test_half_precision_and_accumulation(
    make: Any, everything: Any, update: Any, name: str, train: dict[str, Any]
) -> None:
    method = made(make, name)
    before = {k: v.clone() for k, v in method.named_parameters()}
    losses = update(method, everything, batch_size=10, **train)
    assert losses["loss"].isfinite() and losses["loss"].dtype == torch.float32
    for key, value in method.named_parameters():
        assert value.isfinite().all(), key
        # Attention that is uniform at first has next to no gradient for some biases.
        if value.requires_grad and value.ndim > 1:
            assert not torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", OF_IMAGES)
def test_arms_begin_alike_and_predict_alike(make: Any, batch: Any, name: str) -> None:
    """BatchFormer adds weights of its own, changes no other, and has no part in predictions."""
    own, other = (made(make, name, enabled=enabled).eval() for enabled in (True, False))
    state = own.state_dict()
    assert all(torch.equal(state[key], value) for key, value in other.state_dict().items())
    extra = {key.split(".")[0] for key in set(state) - set(other.state_dict())}
    assert extra == {"encoder"} if name in ACTING else extra <= {"encoder"}
    with torch.no_grad():
        whole, alone = own.predict(batch["x"]), own.predict(batch["x"][3:4])
        assert torch.equal(whole, other.predict(batch["x"]))
        if (figures := own.relations()) is not None:
            torch.testing.assert_close(figures.classify(figures.features(batch["x"])), whole)
        if name not in NOT_DEPLOYED:
            torch.testing.assert_close(own.deployed().eval()(batch["x"]), whole)
    torch.testing.assert_close(whole[3:4], alone)  # nor has one sample in another's


@pytest.mark.parametrize("name", ACTING)
def test_samples_attend_to_one_another_in_training(make: Any, batch: Any, name: str) -> None:
    method = made(make, name)
    found = check(method, batch["x"], method.optimizers(OptimConfig())["main"])
    assert found.passed, str(found)


@pytest.mark.parametrize(
    "name",
    [
        *("ldam", "crt", "lws", "balms", "bbn", "oltr_plain", "oltr"),
        *("lfme", "linear_probe", "paco", "moco_v2", "moco_v3", "ride", "mdd", "cge", "compcos"),
        *DOMAINS,
    ],
)
@pytest.mark.parametrize(
    "module", [{}, {"enabled": False}, {"streams": "mixed_only"}, {"trained": False}], ids=str
)
def test_every_parameter_is_trained_once(
    make: Any, everything: Any, name: str, module: dict[str, Any], assert_trained_once: Any
) -> None:
    assert_trained_once(made(make, name, **module), everything)


@pytest.mark.parametrize("name", [n for n in OF_IMAGES if n not in NEVER_STOPPED])
def test_resumed_equals_unbroken(make: Any, assert_resumes: Any, name: str) -> None:
    assert_resumes(lambda: made(make, name))


@pytest.mark.parametrize("name", ["paco", "moco_v2", "moco_v3", "bbn", "oltr", "lfme"])
def test_an_update_writes_its_state_in_place(
    make: Any, everything: Any, update: Any, name: str
) -> None:
    """As a captured update must; what changes with the epoch is in tensors."""
    method = made(make, name).train()
    places = {key: value.data_ptr() for key, value in method.state_dict().items()}
    update(method, everything)
    method.begin_epoch(1)
    assert {key: value.data_ptr() for key, value in method.state_dict().items()} == places
    assert method.why_eager() is None and method.phase() is None


def test_updates_that_cannot_be_captured_say_why(make: Any) -> None:
    assert "trial step" in make("balms").why_eager() and "trained" in make("knn").why_eager()


@pytest.mark.parametrize("name", ["tau_norm", "knn"])
def test_updates_without_training_change_nothing(
    make: Any, batch: Any, update: Any, name: str
) -> None:
    method = make(name)
    assert method.optimizers(OptimConfig()) == {}
    assert not any(p.requires_grad for p in method.parameters())
    before = {key: value.clone() for key, value in method.state_dict().items()}
    losses = update(method, batch)
    assert losses["loss"].isfinite() and not losses["loss"].requires_grad
    after = method.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("name", ["oltr", "lfme"])
def test_what_measures_training_images_is_refused_without_them(make: Any, name: str) -> None:
    method = make(name, options={"bank": None})
    method.begin_epoch(3)  # a network that is loaded to predict measures nothing
    with pytest.raises(ValueError, match=f"{name} measures the training images before the train"):
        method.begin_training(1)


@pytest.mark.parametrize(
    ("name", "hyper", "phases"),
    [
        ("ldam", {"reweight_epoch": 160}, {0: False, 159: False, 160: True, 199: True}),
        ("ride", {}, {0: False, 159: False, 160: True}),
        ("coral", {"penalty": 0.3, "penalty_from": 5}, {0: 0.3, 4: 0.3, 5: 0.3}),
        ("irm", {"penalty": 5.0, "penalty_from": 2}, {0: 1.0, 1: 1.0, 2: 5.0, 9: 5.0}),
        ("irm", {"penalty": 5.0}, {0: 5.0}),
        ("vrex", {"penalty": 3.0, "penalty_from": 1}, {0: 1.0, 1: 3.0}),
    ],
    ids=str,
)
def test_a_loss_that_changes_at_an_epoch_is_a_phase(
    make: Any, name: str, hyper: dict[str, Any], phases: dict[int, Any]
) -> None:
    method = make(name, hyper, {"groups": 2} if name in DOMAINS else None)
    assert method.phase() == phases[0], "before the first epoch"
    for epoch, phase in [*phases.items(), (0, phases[0])]:
        method.begin_epoch(epoch)
        assert method.phase() == phase
