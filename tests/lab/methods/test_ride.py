"""RIDE against losses composed by hand, its teacher, and the routers of its last stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from batchformer import check
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.losses.ride import RIDE, distillation
from batchformer.lab.methods import build_method
from batchformer.lab.methods.ride import (
    AssignedExperts,
    ExpertRouters,
    RideMethod,
    running_means,
    worth_going_on,
)
from batchformer.lab.models.build import build_model
from batchformer.lab.models.ride import RideNetwork, ride_resnet32
from batchformer.nn.randomness import drawing

COUNTS = torch.tensor([50, 20, 10, 5, 1])


def teacher() -> RideNetwork:
    torch.manual_seed(5)
    return ride_resnet32(5, 3, in_channels=1, widths=(4, 6, 8), depth=8)


def stream_logits(method: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain and mixed logits (E, N, K), expert after expert."""
    plain, mixed = [], []
    for expert, features in enumerate(method.network.expert_features(x)):
        # The encoder as the layout (N, C) would use it: this expert's samples alone.
        alone = method.encoder.mix(features.unsqueeze(0)).squeeze(0)
        plain.append(method.network.classify(features, expert))
        mixed.append(method.network.classify(alone, expert))
    return torch.stack(plain), torch.stack(mixed)


@pytest.mark.parametrize("reweighted", [False, True])
@pytest.mark.parametrize("attend", ["batch", "self"])
def test_both_streams_of_every_expert_by_hand(
    make: Any, batch: Any, reweighted: bool, attend: str, quiet: Any
) -> None:
    hyper = {"reweight_epoch": 3, "diversity": -0.3, "temperature_factor": 0.1}
    method = quiet(make("ride", hyper, heads=2, dropout=0.0, attend=attend))
    method.begin_epoch(3 if reweighted else 2)
    criterion = RIDE(COUNTS, diversity=-0.3, temperature_factor=0.1)
    criterion.reweighted = reweighted
    plain, mixed = stream_logits(method, batch["x"])
    expected = (criterion(plain, batch["y"]) + criterion(mixed, batch["y"])) / 2
    torch.testing.assert_close(method.step(batch)["loss"], expected)


@pytest.mark.parametrize(
    ("module", "weights"),
    [
        ({"enabled": False}, (1, 0)),
        ({"streams": "mixed_only"}, (0, 1)),
        ({"loss_scale": "sum"}, (1, 1)),
    ],
)
def test_the_baseline_mixed_only_and_sum(
    make: Any, batch: Any, quiet: Any, module: Any, weights: tuple[int, int]
) -> None:
    criterion = RIDE(COUNTS, diversity=-0.45, temperature_factor=0.05)
    both = stream_logits(quiet(make("ride", heads=2, dropout=0.0)), batch["x"])
    expected = sum(w * criterion(z, batch["y"]) for w, z in zip(weights, both, strict=True))
    method = quiet(make("ride", heads=2, dropout=0.0, **module))
    torch.testing.assert_close(method.step(batch)["loss"], expected)


@pytest.mark.parametrize("chosen", ["many", "not_many"])
@pytest.mark.parametrize("streams", ["shared", "mixed_only"])
def test_only_samples_of_some_classes_take_their_mixed_features(
    batch: Any, chosen: str, streams: str, quiet: Any
) -> None:
    counts = torch.tensor([500, 101, 100, 19, 1])  # the first two are many-shot classes
    network, module = teacher(), ModuleConfig(heads=2, dropout=0.0, streams=streams)  # type: ignore[arg-type]
    options: dict[str, Any] = {"class_counts": counts, "module": module, "seed": 0}
    hyper = MethodConfig(mixed_classes=chosen)  # type: ignore[arg-type]
    method: Any = quiet(build_method("ride", network=network, hyper=hyper, **options))
    plain, mixed = stream_logits(method, batch["x"])
    for sample, label in enumerate(batch["y"].tolist()):
        if (label < 2) != (chosen == "many"):
            mixed[:, sample] = plain[:, sample]
    criterion = RIDE(counts, diversity=-0.45, temperature_factor=0.05)
    losses = [criterion(rows, batch["y"]) for rows in (plain, mixed)]
    expected = sum(losses) / 2 if streams == "shared" else losses[1]
    torch.testing.assert_close(method.step(batch)["loss"], expected)
    found = check(method, batch["x"], mixed_only=streams == "mixed_only")
    assert found.passed, str(found)


@pytest.mark.parametrize(
    ("counts", "chosen", "words"),
    [
        ([9, 1], "many", "0 of 2 classes have more than 100.*would be on none of them; leave"),
        ([9, 1], "not_many", "0 of 2 classes have more than 100.*would be on all of them; leave"),
        ([900, 101], "not_many", "2 of 2 classes.*on none"),
    ],
)
def test_classes_that_make_no_difference_are_refused(
    counts: list[int], chosen: Any, words: str
) -> None:
    hyper = MethodConfig(mixed_classes=chosen)
    with pytest.raises(ValueError, match=words):
        RideMethod(ride_resnet32(2), torch.tensor(counts), ModuleConfig(), 0, hyper)
    RideMethod(ride_resnet32(2), torch.tensor(counts), ModuleConfig(enabled=False), 0, hyper)


@pytest.mark.parametrize(
    ("hyper", "temperature", "factor", "times"),
    [
        ({}, 1.5, 1.0, 1),
        ({"distillation_temperature": 3.0}, 3.0, 1.0, 1),
        ({"distillation_factor": 0.25}, 1.5, 0.25, 1),
        ({"distillation_count": "per_expert"}, 1.5, 1.0, 2),
    ],
)
def test_distillation_is_added_in_both_streams(
    make: Any, batch: Any, hyper: Any, temperature: float, factor: float, times: int, quiet: Any
) -> None:
    guide = teacher()
    with torch.no_grad():
        answers = guide.eval()(batch["x"])
    options = {"teacher": guide}
    method = quiet(make("ride", hyper, options, heads=2, dropout=0.0).train())
    assert not guide.training and all(not m.training for m in guide.modules())
    plain, mixed = stream_logits(method, batch["x"])
    criterion = RIDE(COUNTS, diversity=-0.45, temperature_factor=0.05)
    expected = sum(
        criterion(logits, batch["y"]) + factor * distillation(logits.mean(0), answers, temperature)
        for logits in (plain, mixed)
    )
    torch.testing.assert_close(method.step(batch)["loss"], times * expected / 2)


def test_the_teachers_mode_is_by_name(make: Any, batch: Any) -> None:
    guide = teacher()
    method = make("ride", {"teacher_mode": "train"}, {"teacher": guide}).train()
    assert guide.training and not method.eval().teacher.training
    method.train()
    before = guide.shared.bn1.running_mean.clone()
    method.step(batch)
    assert not torch.equal(before, guide.shared.bn1.running_mean), "statistics move, as released"
    still = make("ride", options={"teacher": teacher()}).train()
    before = still.teacher.shared.bn1.running_mean.clone()
    still.step(batch)
    assert torch.equal(before, still.teacher.shared.bn1.running_mean)


def test_a_teacher_is_not_trained(make: Any, batch: Any, assert_trained_once: Any) -> None:
    method = make("ride", options={"teacher": teacher()})
    assert_trained_once(method, batch)
    assert not any(p.requires_grad for p in method.teacher.parameters())


def test_with_a_teacher_resumed_equals_unbroken(make: Any, assert_resumes: Any) -> None:
    hyper = {"reweight_epoch": 3}
    assert_resumes(lambda: make("ride", hyper, {"teacher": teacher()}))


@pytest.mark.parametrize(
    ("name", "network", "words"),
    [
        ("ride", "digits_net", "such as ride_resnet32; DigitsNet has one"),
        ("ride_assignment", "digits_net", "at least two experts"),
        ("cross_entropy", "", "RideNetwork has no forward_head.*is for the method ride"),
    ],
)
def test_networks_and_methods_that_do_not_fit_are_named(
    name: str, network: str, words: str
) -> None:
    given = build_model(network, 5) if network else teacher()
    with pytest.raises(ValueError, match=words):
        build_method(name, network=given, class_counts=COUNTS, module=ModuleConfig(), seed=0)


@settings(max_examples=30)
@given(experts=st.integers(2, 5), seed=st.integers(0, 100))
def test_means_and_targets_by_loops(experts: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(experts, 7, 3, generator=draw)
    y = torch.randint(3, (7,), generator=draw)
    means, worth = running_means(logits), worth_going_on(running_means(logits), y)
    assert worth.shape == (experts - 1, 7)
    for n in range(7):
        answers = []
        for e in range(experts):
            mean = sum(logits[i, n] for i in range(e + 1)) / (e + 1)
            torch.testing.assert_close(means[e, n], mean)
            answers.append(int(means[e, n].argmax()))
        for e in range(experts - 1):
            later = any(answer == y[n] for answer in answers[e + 1 :])
            assert bool(worth[e, n]) == (answers[e] != y[n] and later)


def test_scores_by_hand() -> None:
    torch.manual_seed(0)
    routers = ExpertRouters(experts=3, in_features=6, top=2, width=4)
    features, logits = torch.randn(5, 6), torch.randn(5, 3)
    for expert in range(2):
        layer = routers.hidden[expert]
        own = F.relu(features / features.norm(dim=1, keepdim=True) @ layer.weight.T + layer.bias)
        both = torch.cat((own, logits.sort(dim=1, descending=True).values[:, :2]), 1)
        expected = both @ routers.output.weight[0] + routers.output.bias
        torch.testing.assert_close(routers(expert, features, logits), expected)
    assert len(routers.hidden) == 2


def assigned(experts: int = 3, **hyper: Any) -> AssignedExperts:
    with drawing(0, "weights"):
        network = ride_resnet32(5, experts, in_channels=1, widths=(4, 6, 8), depth=8)
    config = MethodConfig(**hyper)
    return AssignedExperts(network, COUNTS, ModuleConfig(), seed=0, hyper=config)


def labelled(method: AssignedExperts, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Even samples are right by the last answer, odd ones by the first; the two differ."""
    first = method.network.classifiers[0]
    with torch.no_grad():
        first.weight.copy_(-method.network.classifiers[1].weight)
        first.scale = 5.0
        logits = method.network.expert_logits(method.network.expert_features(x))
    answers = running_means(logits).argmax(-1)
    even = torch.arange(len(x)) % 2 == 0
    return {"x": x, "y": torch.where(even, answers[-1], answers[0])}


def one_by_one(method: AssignedExperts, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Answers and numbers of experts, sample by sample, all experts computed."""
    features = method.network.expert_features(x)
    logits = method.network.expert_logits(features)
    means, answers, used = running_means(logits), [], []
    for n in range(len(x)):
        e = 0
        while e < len(logits) - 1:
            score = method.routers(e, features[e, n : n + 1], means[e, n : n + 1])
            if torch.sigmoid(score) <= 0.5:
                break
            e += 1
        answers.append(means[e, n])
        used.append(e + 1)
    return torch.stack(answers), used


@torch.no_grad()
def test_answers_are_means_of_the_experts_a_sample_was_shown_to(batch: Any) -> None:
    method = assigned().eval()
    features = method.network.expert_features(batch["x"])
    scores = method.routers(0, features[0], method.network.classify(features[0], 0))
    method.routers.output.bias.sub_(scores.median())  # so that about half go on
    expected, used = one_by_one(method, batch["x"])
    torch.testing.assert_close(method.predict(batch["x"]), expected)
    assert len(set(used)) > 1, "samples differ in how many experts they need"
    assert int(method.asked.sum()) == sum(used)

    network = method.network
    with FlopCounterMode(display=False) as whole:
        network.expert_features(batch["x"][:1])
    with FlopCounterMode(display=False) as trunk:
        network.shared(batch["x"][:1])
    everything, shared = whole.get_total_flops(), trunk.get_total_flops()
    branch = (everything - shared) / 3
    spent = shared + branch * sum(used) / len(used)
    saved = method.further_scores()["saved_computation"]
    assert saved == pytest.approx(100 * (1 - spent / everything))
    assert method.further_scores() == {}, "counted anew"


@torch.no_grad()
@pytest.mark.parametrize(("bias", "experts"), [(-1e4, 1), (1e4, 3)])
def test_one_expert_and_all_of_them(batch: Any, bias: float, experts: int) -> None:
    method = assigned().eval()
    method.routers.output.bias.fill_(bias)
    logits = method.network.expert_logits(method.network.expert_features(batch["x"]))
    torch.testing.assert_close(method.predict(batch["x"]), logits[:experts].mean(0))
    saved = method.further_scores()["saved_computation"]
    assert saved == pytest.approx(0.0) if experts == 3 else 20 < saved < 67


def test_routers_are_not_lost_on_export() -> None:
    with pytest.raises(ValueError, match="Export the run that this one starts from"):
        assigned().deployed()


def test_the_loss_of_routers_by_hand(batch: Any) -> None:
    method = assigned(router_positive_weight=7.0, router_top=4).train()
    batch = labelled(method, batch["x"])
    features = method.network.expert_features(batch["x"])  # its normalisation is in eval
    means = running_means(method.network.expert_logits(features))
    worth = worth_going_on(means, batch["y"])
    losses = []
    for e in range(2):
        p = torch.sigmoid(method.routers(e, features[e], means[e]))
        losses.append(torch.where(worth[e], -7 * p.log(), -(1 - p).log()))
    assert worth.any() and not worth.all()
    torch.testing.assert_close(method.step(batch)["loss"], torch.stack(losses).mean())


def test_only_routers_are_trained(batch: Any, assert_trained_once: Any) -> None:
    method = assigned()
    assert_trained_once(method, batch)
    assert {n.split(".")[0] for n, p in method.named_parameters() if p.requires_grad} == {"routers"}
    assert not method.train().network.training
    assert assigned(frozen_mode="train").train().network.shared.bn1.training
