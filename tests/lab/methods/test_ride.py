"""RIDE against the losses composed by hand, its experts, its teacher, and when weights begin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batchformer import check
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.losses.ride import RIDE, distillation
from batchformer.lab.models.ride import RideNetwork, ride_resnet32

COUNTS = torch.tensor([50, 20, 10, 5, 1])


def in_eval_norms(method: Any) -> Any:
    for module in method.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    return method


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
    make: Any, batch: Any, reweighted: bool, attend: str
) -> None:
    hyper = {"reweight_epoch": 3, "diversity": -0.3, "temperature_factor": 0.1}
    method = in_eval_norms(make("ride", hyper, heads=2, dropout=0.0, attend=attend))
    method.begin_epoch(3 if reweighted else 2)
    criterion = RIDE(COUNTS, diversity=-0.3, temperature_factor=0.1)
    criterion.reweighted = reweighted
    plain, mixed = stream_logits(method, batch["x"])
    expected = (criterion(plain, batch["y"]) + criterion(mixed, batch["y"])) / 2
    torch.testing.assert_close(method.step(batch)["loss"], expected)


def test_mixed_only_and_sum(make: Any, batch: Any) -> None:
    criterion = RIDE(COUNTS, diversity=-0.45, temperature_factor=0.05)
    only = in_eval_norms(make("ride", heads=2, dropout=0.0, streams="mixed_only"))
    plain, mixed = stream_logits(only, batch["x"])
    torch.testing.assert_close(only.step(batch)["loss"], criterion(mixed, batch["y"]))
    summed = in_eval_norms(make("ride", heads=2, dropout=0.0, loss_scale="sum"))
    expected = criterion(plain, batch["y"]) + criterion(mixed, batch["y"])
    torch.testing.assert_close(summed.step(batch)["loss"], expected)


def test_the_baseline_is_the_loss_of_its_logits(make: Any, batch: Any) -> None:
    method = in_eval_norms(make("ride", enabled=False))
    logits = method.network.expert_logits(method.network.expert_features(batch["x"]))
    criterion = RIDE(COUNTS, diversity=-0.45, temperature_factor=0.05)
    torch.testing.assert_close(method.step(batch)["loss"], criterion(logits, batch["y"]))


def test_experts_never_meet_in_the_encoder(make: Any) -> None:
    method = make("ride", heads=1, dropout=0.0)
    features = torch.randn(2, 6, 8)
    changed = features.clone()
    changed[1] += 1
    before, after = method.encoder(features), method.encoder(changed)
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])
    alone = torch.stack([method.encoder.mix(f.unsqueeze(0))[0] for f in features])
    torch.testing.assert_close(before, alone)


def test_prediction_is_the_plain_mean_of_experts(make: Any, batch: Any) -> None:
    method, without = make("ride").eval(), make("ride", enabled=False).eval()
    x = batch["x"]
    mean = method.network.expert_logits(method.network.expert_features(x)).mean(0)
    for answer in (method.predict(x), method(x), without.predict(x), method.network(x)):
        assert torch.equal(answer, mean)
    assert method.train()(x).shape == (20, 5)


def test_weights_begin_at_their_epoch_and_are_a_phase(make: Any) -> None:
    method = make("ride")
    phases = []
    for epoch in (0, 159, 160):
        method.begin_epoch(epoch)
        phases.append(method.phase())
    assert phases == [False, False, True]


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
    make: Any, batch: Any, hyper: Any, temperature: float, factor: float, times: int
) -> None:
    guide = teacher()
    with torch.no_grad():
        answers = guide.eval()(batch["x"])
    options = {"teacher": guide}
    method = in_eval_norms(make("ride", hyper, options, heads=2, dropout=0.0).train())
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


@pytest.mark.parametrize(
    "module", [{}, {"enabled": False}, {"streams": "mixed_only"}, {"trained": False}], ids=str
)
def test_trained_once(make: Any, batch: Any, module: Any, assert_trained_once: Any) -> None:
    method = make("ride", options={"teacher": teacher()}, **module)
    assert_trained_once(method, batch)
    groups = {g["name"] for g in method.parameter_groups(OptimConfig())}
    on = module.get("enabled", True) and module.get("trained", True)
    assert groups == ({"model", "batchformer"} if on else {"model"})


@pytest.mark.parametrize("guided", [False, True])
def test_resumed_equals_unbroken_across_the_change(
    make: Any, assert_resumes: Any, guided: bool
) -> None:
    def build() -> Any:
        options = {"teacher": teacher()} if guided else {}
        return make("ride", {"reweight_epoch": 3}, options)

    assert_resumes(build)


def test_it_is_acting(make: Any, batch: Any) -> None:
    method = make("ride", heads=1)
    assert check(method, batch["x"], method.optimizers(OptimConfig())["main"]).passed


def test_networks_and_methods_that_do_not_fit_are_named(make: Any) -> None:
    from batchformer.lab.config.methods import ModuleConfig
    from batchformer.lab.methods import build_method
    from batchformer.lab.models.build import build_model

    options: dict[str, Any] = {"class_counts": COUNTS, "module": ModuleConfig(), "seed": 0}
    with pytest.raises(ValueError, match="such as ride_resnet32; DigitsNet has one"):
        build_method("ride", network=build_model("digits_net", 5), **options)
    with pytest.raises(ValueError, match="is for the method ride"):
        build_method("cross_entropy", network=teacher(), **options)


def test_the_losses_agree_with_torch_where_they_are_torchs(make: Any, batch: Any) -> None:
    """One expert, no margin, no diversity: cross-entropy."""
    hyper = {"margin": 0.0, "diversity": 0.0}
    method = in_eval_norms(make("ride", hyper, enabled=False))
    logits = method.network.expert_logits(method.network.expert_features(batch["x"]))
    expected = sum(F.cross_entropy(z, batch["y"]) for z in logits)
    torch.testing.assert_close(method.step(batch)["loss"], expected)
