"""Methods of generated features, and the classifier that each trains before an evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer import check
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.engine.distributed.gradients import Parallel
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.methods import generated_features
from batchformer.lab.methods.generated_features import mix_rows, new_encoder, train_classifier
from helpers.linear_classes import (
    ADAM,
    SMALL,
    changed,
    features_of,
    feed,
    made,
    optimizer_step,
    snapshot,
)

OFF, ON = ModuleConfig(enabled=False), ModuleConfig(heads=2)


def clusters(rows: int = 230) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (rows,), generator=draw)
    means = 3 * torch.eye(4, 8)
    return means[labels] + torch.randn(rows, 8, generator=draw), labels


def trained(module: ModuleConfig, **changes: Any) -> Any:
    features, labels = clusters()
    options: dict[str, Any] = {"epochs": 3, "seed": 5, "module": module, **changes}
    return train_classifier(features, labels, 6, **options)[0]


@pytest.mark.parametrize("module", [OFF, ON], ids=["plain", "two streams"])
def test_a_function_of_its_arguments(module: ModuleConfig) -> None:
    torch.manual_seed(1)
    first = trained(module)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = trained(module)
    assert torch.equal(first.weight, second.weight) and torch.equal(first.bias, second.bias)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(p.requires_grad for p in first.parameters())
    assert not torch.equal(first.weight, trained(module, seed=6).weight)


def test_adam_step_by_step_without_batchformer() -> None:
    features, labels = clusters(90)  # one batch an epoch: the order plays no part
    start, _ = train_classifier(features, labels, 6, epochs=0, seed=5, module=OFF)
    assert start.weight.std() < 0.03 and not start.bias.any()
    weight = start.weight.double().clone().requires_grad_()
    bias = start.bias.double().clone().requires_grad_()
    adam = torch.optim.Adam([weight, bias], lr=1e-3, betas=(0.5, 0.999))
    for _ in range(4):
        adam.zero_grad()
        F.cross_entropy(features.double() @ weight.T + bias, labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
    got, _ = train_classifier(features, labels, 6, epochs=4, seed=5, module=OFF)
    torch.testing.assert_close(got.weight.double(), weight.detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(got.bias.double(), bias.detach(), atol=1e-6, rtol=1e-4)


def test_every_row_once_an_epoch_in_even_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    original = generated_features.loss_of_streams

    def watch(criterion: Any, logits: Tensor, labels: Tensor, module: ModuleConfig) -> Tensor:
        seen.append(labels)
        return original(criterion, logits, labels, module)

    monkeypatch.setattr(generated_features, "loss_of_streams", watch)
    features = torch.randn(201, 4)
    train_classifier(features, torch.arange(201), 201, epochs=2, seed=0, module=OFF)
    assert [len(labels) for labels in seen] == [67] * 6
    for epoch in (seen[:3], seen[3:]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(201))
    assert not torch.equal(seen[0], seen[3])


def test_streams_and_weights_reach_the_loss() -> None:
    plain, both = trained(OFF), trained(ON)
    assert not torch.equal(plain.weight, both.weight)
    # Without a weight of its own the mixed stream leaves the plain classifier.
    torch.testing.assert_close(trained(ModuleConfig(mixed_weight=0.0)).weight, plain.weight)
    only = trained(ModuleConfig(streams="mixed_only"))
    assert not torch.equal(only.weight, both.weight)
    frozen = trained(ModuleConfig(trained=False))
    assert not torch.equal(frozen.weight, plain.weight)


def test_channels_beside_the_mixed_ones_stay_with_their_sample() -> None:
    rows = torch.randn(6, 11)
    encoder = new_encoder(rows[:, :8], ON, seed=0)
    assert encoder is not None
    encoder.eval().requires_grad_(False)
    assert torch.equal(mix_rows(encoder, rows, ON, 8), rows)
    encoder.train()
    encoder.dropout = 0.0
    doubled = mix_rows(encoder, rows, ON, 8)
    expected = torch.cat((encoder.mix(rows[:, :8]), rows[:, 8:]), 1)
    torch.testing.assert_close(doubled, torch.cat((rows, expected)))
    assert torch.equal(mix_rows(None, rows, OFF, 8), rows)
    alone = mix_rows(encoder, rows, ModuleConfig(heads=2, streams="mixed_only"), 8)
    torch.testing.assert_close(alone, expected)
    # All channels, or some: the classifier is trained on what is mixed.
    weights = [trained(ON, mixed=mixed).weight for mixed in (8, 4)]
    assert not torch.equal(*weights)


@pytest.mark.parametrize("size", [0.01, 100.0])
def test_mixed_rows_start_with_the_size_of_the_features(size: float) -> None:
    features, labels = clusters(90)
    rows = torch.cat((size * features, torch.ones(90, 3)), 1)
    _, encoder = train_classifier(rows, labels, 6, epochs=0, seed=5, module=ON, mixed=8)
    assert encoder is not None
    with torch.no_grad():
        mixed = encoder.mix(rows[:, :8])
    sizes = [float(t.square().mean().sqrt()) for t in (mixed, rows[:, :8])]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    dropout = ModuleConfig(encoder="dropout")
    assert trained(dropout).weight.isfinite().all(), "without layers there is nothing to scale"


# The methods


@pytest.mark.parametrize("name", ["tf_vaegan", "izf"])
def test_batchformer_acts_in_the_classifier_alone(name: str) -> None:
    method, plain, x = made(name), made(name, enabled=False), features_of(name)
    result = check(method, x[::20])
    assert result, str(result)
    with torch.no_grad():
        sizes = [float(t.square().mean().sqrt()) for t in (method.encoder.mix(x), x)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05), "as the classifier's training begins"
    assert plain.encoder is None
    for key, value in plain.state_dict().items():
        assert torch.equal(value, method.state_dict()[key]), key
    for one in (method, plain):
        torch.manual_seed(0)
        one.train().update(feed(features=x).batch(0), one.optimizers(ADAM), optimizer_step())
    trained = snapshot(method)
    assert not changed(plain, {key: trained[key] for key in snapshot(plain)}), "arms are paired"
    for one in (method, plain):
        one.before_evaluation()
    assert not torch.equal(method.classifier.weight, plain.classifier.weight)
    assert changed(method, trained) == {"classifier", "encoder"}, "that of the last classifier"
    method.eval()
    assert torch.equal(method(x), method.predict(x))
    torch.testing.assert_close(method.deployed()(x), method.predict(x))


@pytest.mark.parametrize("name", SMALL)
def test_resumed_equals_unbroken(name: str, assert_resumes: Any) -> None:
    x = features_of(name)

    def evaluate(method: Any, _: Any) -> Evaluation:
        return Evaluation({"sum": float(method.predict(x).double().sum())})

    # Three updates an epoch: the run is stopped inside the second, where tf_vaegan has feedback.
    assert_resumes(lambda: made(name), feed(100, 2, x), evaluate, ADAM, eval_every=4)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("train", [{"precision": "bf16"}, {"accumulate": 2}, {"clip_norm": 0.1}])
def test_half_precision_accumulation_and_clipping(name: str, train: dict[str, Any]) -> None:
    method = made(name).train()
    method.begin_epoch(1)
    before, optimizers = snapshot(method), method.optimizers(ADAM)
    batch = feed(features=features_of(name)).batch(0)
    losses = method.update(batch, optimizers, optimizer_step(**train))
    assert all(value.isfinite() for value in losses.values())
    held = {id(p) for o in optimizers.values() for g in o.param_groups for p in g["params"]}
    trained = {key.split(".")[0] for key, p in method.named_parameters() if id(p) in held}
    assert changed(method, before) == trained


@pytest.mark.parametrize("name", SMALL)
def test_parts_of_weights_or_of_a_batch_are_refused(name: str) -> None:
    method, batch = made(name), feed().batch(0)
    optimizers, sharded = method.optimizers(ADAM), optimizer_step()
    with pytest.raises(ValueError, match=r"set train\.parallel ddp"):
        sharded.parallel = Parallel(optimizers.values(), sharded=True)
        method.update(batch, optimizers, sharded)
    if name != "izf":  # the others have a critic
        with pytest.raises(ValueError, match=r"2 equal batches .* got 31 rows"):
            method.update(feed(31, 1).batch(0), optimizers, optimizer_step())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_captured_updates_equal_eager_ones(
    assert_captured_equals_eager: Any, name: str, enabled: bool
) -> None:
    batches = feed(32, 2, features_of(name))
    assert_captured_equals_eager(lambda: made(name, enabled=enabled), batches.batch, ADAM)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_are_those_run_eagerly(capsys: pytest.CaptureFixture[str]) -> None:
    features, labels = (tensor.cuda() for tensor in clusters())
    options: dict[str, Any] = {"epochs": 20, "seed": 5, "module": OFF}
    eager, _ = train_classifier(features, labels, 6, **options)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert generated_features._can_capture(features.device, None)
        captured, _ = train_classifier(features, labels, 6, **options)
    assert capsys.readouterr().err == ""
    torch.testing.assert_close(captured.weight, eager.weight, rtol=1e-5, atol=1e-7)
