"""CE-GZSL: what each step trains, on what, and that unseen classes come to be known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.feeds.memory import FeatureFeed
from batchformer.lab.engine.cuda_graph import Captured, Eager
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.losses.ce_gzsl import supervised_contrast
from batchformer.lab.methods import build_method
from batchformer.lab.methods import ce_gzsl as feature_classifier
from batchformer.lab.methods.ce_gzsl import CeGzsl, frozen, train_classifier
from batchformer.lab.metrics.generalized import class_accuracy, generalized_accuracy
from batchformer.nn import streams

CPU = torch.device("cpu")
ADAM = OptimConfig(name="adam", lr=1e-3, betas=(0.5, 0.999), weight_decay=0.0)
SEEN, UNSEEN = torch.tensor([0, 1, 3, 4, 5, 6, 8, 9]), torch.tensor([2, 7])
HYPER: dict[str, Any] = {
    "noise": 4,
    "gan_hidden": 128,
    "critic_steps": 2,
    "synthetic": 40,
    "classifier_epochs": 4,
    "contrast": 0.1,
}
WIDTH = 64


def linear_classes(rows: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, 12) and labels of ten classes, whose means are linear in attributes (10, 5)."""
    draw = torch.Generator().manual_seed(0)
    attributes = F.normalize(torch.randn(10, 5, generator=draw), dim=1)
    labels = torch.arange(10).repeat_interleave(rows)
    means = 1 + 0.5 * attributes @ torch.randn(5, 12, generator=draw)
    features = (means[labels] + 0.1 * torch.randn(len(labels), 12, generator=draw)).clamp(min=0)
    return features, labels, attributes


FEATURES, LABELS, ATTRIBUTES = linear_classes()
TRAINED = torch.isin(LABELS, SEEN)


def made(hyper: dict[str, Any] | None = None, seed: int = 0, **module: Any) -> Any:
    return build_method(
        "ce_gzsl",
        features=FEATURES[TRAINED],
        labels=LABELS[TRAINED],
        attributes=ATTRIBUTES,
        seen=SEEN,
        unseen=UNSEEN,
        module=ModuleConfig(heads=2, **module),
        seed=seed,
        hyper=MethodConfig(**{**HYPER, **(hyper or {})}),
        embedding=WIDTH,
        direction=8,
        comparator=16,
    )


def feed(batch_size: int = 32, times: int = 2) -> FeatureFeed:
    return FeatureFeed(FEATURES[TRAINED], LABELS[TRAINED], batch_size, seed=1, times=times)


def optimizer_step(**train: Any) -> OptimizerStep:
    return OptimizerStep(TrainConfig(**train), CPU)


def one_part(n: int = 16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    batch = feed(n, 1).batch(0)
    noise, share = torch.randn(n, 4, generator=draw), torch.rand(n, 1, generator=draw)
    return {"x": batch["x"], "y": batch["y"], "noise": noise, "share": share}


def snapshot(method: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in method.named_parameters()}


def changed(method: nn.Module, before: dict[str, Tensor]) -> set[str]:
    after = dict(method.named_parameters())
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


PLACES: list[dict[str, Any]] = [
    {"enabled": False},
    {"module_at": "embedding"},
    {"module_at": "classifier"},
    {"module_at": "embedding", "trained": False},
    {"module_at": "embedding", "streams": "mixed_only"},
]


def placed(place: dict[str, Any], **changes: Any) -> Any:
    module = {k: v for k, v in place.items() if k != "module_at"}
    return made({k: v for k, v in place.items() if k == "module_at"} | changes, **module)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_parameter_in_one_optimizer(place: dict[str, Any]) -> None:
    method = placed(place)
    optimizers = method.optimizers(ADAM)
    assert list(optimizers) == ["critic", "generator"]
    held = [p for o in optimizers.values() for g in o.param_groups for p in g["params"]]
    wanted = {id(p) for p in method.parameters() if p.requires_grad}
    assert len(held) == len(wanted) and {id(p) for p in held} == wanted
    generator = [p for g in optimizers["generator"].param_groups for p in g["params"]]
    assert {id(p) for p in generator} == {id(p) for p in method.generator.parameters()}
    assert all(g["betas"] == (0.5, 0.999) for o in optimizers.values() for g in o.param_groups)


def test_batchformer_has_its_own_rate() -> None:
    groups = made(lr_factor=0.25).optimizers(ADAM)["critic"].param_groups
    assert [(g["name"], g["lr"]) for g in groups] == [("model", 1e-3), ("batchformer", 2.5e-4)]


def test_the_critics_loss_by_hand() -> None:
    method = made(dropout=0.0).train()
    part = one_part()
    x, y, a = part["x"], part["y"], ATTRIBUTES[part["y"]]
    fake = method.generator(part["noise"], a).detach()
    distance = method.critic(x, a).mean() - method.critic(fake, a).mean()
    between = (part["share"] * x + (1 - part["share"]) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(method.critic(between, a).sum(), between)
    penalty = (slope.square().sum(1).sqrt() - 1).square().mean()
    plain = method.embedding(x)
    rows, twice = torch.cat((plain, method.encoder.mix(plain))), torch.cat((y, y))
    instance = supervised_contrast(method.embedding.direction(rows), twice, 0.1)
    scores = method.comparator(rows, ATTRIBUTES[SEEN])
    places = torch.tensor([SEEN.tolist().index(c) for c in twice.tolist()])
    classes = F.cross_entropy(scores / 0.1, places)
    losses = method.step(part)
    expected = {
        "loss": -distance + 10 * penalty + instance + classes,
        "distance": distance,
        "penalty": penalty,
        "instance": instance,
        "classes": classes,
    }
    assert set(losses) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, msg=name)


def test_the_generators_loss_by_hand() -> None:
    method = made({"contrast": 0.3}).train()
    part = one_part()
    y, a = part["y"], ATTRIBUTES[part["y"]]
    fake = method.generator(part["noise"], a)
    h, real = method.embedding(fake), method.embedding(part["x"])  # plain: no mixed stream
    z = method.embedding.direction(torch.cat((h, real)))
    instance = supervised_contrast(z, torch.cat((y, y)), 0.1)
    places = torch.tensor([SEEN.tolist().index(c) for c in y.tolist()])
    classes = F.cross_entropy(method.comparator(h, ATTRIBUTES[SEEN]) / 0.1, places)
    expected = -method.critic(fake, a).mean() + 0.3 * (instance + classes)
    torch.testing.assert_close(method.generator_step(part)["loss"], expected)


@pytest.mark.parametrize(("scale", "factor"), [("mean", 1.0), ("sum", 2.0)])
def test_scales_of_two_streams(scale: str, factor: float) -> None:
    method = made(loss_scale=scale, dropout=0.0).train()
    part = one_part()
    instance, classes = method.contrasts(method.streams(method.embedding(part["x"])), part["y"])
    usual = made(dropout=0.0).train()
    wanted = usual.contrasts(usual.streams(usual.embedding(part["x"])), part["y"])
    torch.testing.assert_close((instance, classes), tuple(factor * value for value in wanted))


def test_each_step_trains_its_own_and_leaves_the_other() -> None:
    method = made().train()
    optimizers, part = method.optimizers(ADAM), one_part()
    before = snapshot(method)
    optimizer_step().minimise(method.step, part, optimizers["critic"], [])
    assert changed(method, before) == {"critic", "embedding", "comparator", "encoder"}
    method.zero_grad()
    before = snapshot(method)
    with frozen(method.critic, method.embedding, method.comparator):
        optimizer_step().minimise(method.generator_step, part, optimizers["generator"], [])
    assert changed(method, before) == {"generator"}
    # The other parts were not even differentiated, and can be trained again.
    assert all(p.grad is None for p in method.critic.parameters())
    assert all(p.requires_grad for p in method.comparator.parameters())


def test_an_update_is_its_steps_one_after_the_other() -> None:
    """Several critic steps on the parts of the rows, each with gradients of its own alone."""
    method, other = (made({"critic_steps": 3}, dropout=0.0).train() for _ in range(2))
    batch = feed(times=3).batch(0)
    optimizers = method.optimizers(ADAM)
    torch.manual_seed(7)
    losses = method.update(batch, optimizers, optimizer_step())
    torch.manual_seed(7)
    noise, share = torch.randn(4, 32, 4), torch.rand(3, 32, 1)
    judged = (other.critic, other.embedding, other.comparator)
    groups: list[Any] = [{"params": list(part.parameters())} for part in judged]
    groups.append({"params": list(other.encoder.parameters()), "lr": 1e-4})
    judges = torch.optim.Adam(groups, lr=1e-3, betas=(0.5, 0.999))
    made_by = torch.optim.Adam(other.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    part: dict[str, Tensor] = {}
    for k in range(3):
        cut = slice(32 * k, 32 * (k + 1))
        part = {"x": batch["x"][cut], "y": batch["y"][cut], "noise": noise[k], "share": share[k]}
        other.zero_grad()
        expected = other.step(part)["loss"]
        expected.backward()
        judges.step()
    torch.testing.assert_close(losses["loss"], expected.detach())
    other.zero_grad()
    expected = other.generator_step({**part, "noise": noise[3]})["loss"]
    expected.backward()
    made_by.step()
    torch.testing.assert_close(losses["generator"], expected.detach())
    for (name, got), wanted in zip(method.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, msg=name)


def test_arms_share_initial_weights_and_noise() -> None:
    plain, mixed = made(enabled=False), made()
    assert plain.encoder is None and mixed.encoder is not None
    for name, value in plain.state_dict().items():
        assert torch.equal(value, mixed.state_dict()[name]), name
    # The critic sees nothing of the embedding; dropout between its steps changes no noise.
    batch, ends = feed().batch(0), []
    for method in (plain, mixed):
        torch.manual_seed(0)
        method.train().update(batch, method.optimizers(ADAM), optimizer_step())
        ends.append(snapshot(method.critic))
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


@pytest.mark.parametrize("place", PLACES[:2], ids=str)
def test_unseen_classes_come_to_be_known(place: dict[str, Any]) -> None:
    torch.manual_seed(1)
    method = placed(place, classifier_epochs=40).train()
    optimizers, batches = method.optimizers(replace(ADAM, lr=5e-3)), feed(64)
    for step in range(100):
        method.update(batches.batch(step), optimizers, optimizer_step())
    judged = [method]
    if method.encoder is None:  # what was trained is the same with BatchFormer in the classifier
        judged.append(placed(PLACES[2], classifier_epochs=40).train())
        judged[1].load_state_dict(method.state_dict())
    for one in judged:
        one.before_evaluation()
        tested = generalized(one)
        # One of ten classes is right by chance.
        assert tested["unseen"] > 50 and tested["seen"] > 50, tested
    assert len(judged) == 1 or not torch.equal(*(one.classifier.weight for one in judged))


def generalized(method: Any) -> dict[str, float]:
    method.eval()
    with torch.no_grad():
        answers = method.predict(FEATURES).argmax(1)
    method.train()
    return generalized_accuracy(class_accuracy(answers, LABELS, 10), UNSEEN)


@pytest.mark.parametrize("place", PLACES[1:3], ids=str)
def test_the_classifier_depends_on_the_weights_alone(place: dict[str, Any]) -> None:
    method = placed(place).train()
    torch.manual_seed(0)
    method.before_evaluation()
    first = method.classifier.weight.clone()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    method.before_evaluation()
    assert torch.equal(first, method.classifier.weight) and first.any()
    assert torch.equal(state, torch.get_rng_state())
    restored = placed(
        place,
    )
    restored.load_state_dict(method.state_dict())
    x = FEATURES[:5]
    assert torch.equal(restored.eval().predict(x), method.eval().predict(x))
    assert torch.equal(method.deployed()(x), method.predict(x))


def test_rows_of_the_classifier() -> None:
    method = made()
    h, y = method.classifier_rows()
    real = int(TRAINED.sum())
    assert h.shape == (real + 2 * 40, WIDTH) and torch.equal(y[:real], LABELS[TRAINED])
    assert y[real:].bincount(minlength=10).tolist() == [0, 0, 40, 0, 0, 0, 0, 40, 0, 0]
    torch.testing.assert_close(h[:real], method.embedding(FEATURES[TRAINED]))
    assert not h.requires_grad


def test_the_place_of_batchformer() -> None:
    embedding, classifier, plain = made(), made({"module_at": "classifier"}), made(enabled=False)
    assert embedding.encoder is not None and classifier.encoder is None
    x = FEATURES[:8]
    assert embedding.streams(embedding.embedding(x)).shape == (16, WIDTH)
    assert classifier.streams(classifier.embedding(x)).shape == (8, WIDTH)
    weights = []
    for method in (classifier, plain):
        method.train().before_evaluation()
        weights.append(method.classifier.weight.clone())
    assert not torch.equal(*weights), "its mixed stream trains the classifier"
    embedding.train().before_evaluation()
    assert torch.equal(embedding.classifier.weight, weights[1]), "and on the embedding it does not"


def test_answers_in_eval_are_of_one_sample_alone() -> None:
    method = made()
    method.before_evaluation()
    method.eval()
    torch.testing.assert_close(method.predict(FEATURES[:9])[3:4], method.predict(FEATURES[3:4]))
    assert method.predict(FEATURES[:9]).shape == (9, 10)


def test_resumed_equals_unbroken(assert_resumes: Any) -> None:
    def evaluate(method: Any, _: Any) -> Evaluation:
        return Evaluation({"sum": float(method.predict(FEATURES).double().sum())})

    assert_resumes(made, feed(), evaluate, ADAM, eval_every=3)


def test_the_data_is_not_in_checkpoints() -> None:
    kept = {name.split(".")[0] for name in made().state_dict()}
    parts = {"generator", "critic", "embedding", "comparator"}
    assert kept == parts | {"encoder", "classifier"}


@pytest.mark.parametrize("train", [{"precision": "bf16"}, {"accumulate": 2}, {"clip_norm": 0.1}])
def test_half_precision_accumulation_and_clipping(train: dict[str, Any]) -> None:
    method = made().train()
    before = snapshot(method)
    losses = method.update(feed().batch(0), method.optimizers(ADAM), optimizer_step(**train))
    assert all(value.isfinite() for value in losses.values())
    parts = {"generator", "critic", "embedding", "comparator", "encoder"}
    assert changed(method, before) == parts


def test_what_has_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="no released code"):
        made(loss_scale="official")
    with pytest.raises(ValueError, match="cannot have its own weight"):
        made(mixed_weight=0.5)
    made({"module_at": "classifier"}, mixed_weight=0.5)
    with pytest.raises(ValueError, match=r"hyper\.critic-steps is 0, below 1"):
        made({"critic_steps": 0})
    with pytest.raises(ValueError, match=r"leave hyper\.swad off"):
        made({"swad": True})
    method = made()
    with pytest.raises(ValueError, match=r"set train\.ema 0"):
        method.update(feed().batch(0), method.optimizers(ADAM), optimizer_step(ema=0.9))
    with pytest.raises(ValueError, match="got 31 rows"):
        method.update(feed(31, 1).batch(0), method.optimizers(ADAM), optimizer_step())
    with pytest.raises(ValueError, match=r"leave train\.compile off"):
        method.compile_step()
    assert method.rows_per_update(2048) == 4096
    with pytest.raises(ValueError, match="seen classes only"):
        module, hyper = ModuleConfig(enabled=False), MethodConfig(**HYPER)
        CeGzsl(FEATURES, LABELS, ATTRIBUTES, SEEN, UNSEEN, module, 0, hyper, 8, 8, 8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("enabled", [False, True])
def test_captured_updates_equal_eager_ones(enabled: bool) -> None:
    device = torch.device("cuda")
    ends = []
    for kind in (Eager, Captured):
        method = made(enabled=enabled).to(device).train()
        optimizers = method.optimizers(ADAM)
        machinery = OptimizerStep(TrainConfig(), device)

        def work(batch: Any, m: Any = method, o: Any = optimizers, k: Any = machinery) -> Any:
            return m.update(batch, o, k)

        said: list[str] = []
        updater: Any = (
            Eager(work, device)
            if kind is Eager
            else Captured(work, device, lambda: None, said.append)
        )
        batches = FeatureFeed(FEATURES[TRAINED], LABELS[TRAINED], 32, 1, device, times=2)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            losses = [float(updater(batches.batch(k), seed=k)["loss"]) for k in range(12)]
        assert not said
        if kind is Captured:
            assert updater.graphs
        ends.append(losses)
    assert ends[1] == pytest.approx(ends[0], rel=1e-3, abs=1e-4)


# The classifier on fixed features.


OFF, ON = ModuleConfig(enabled=False), ModuleConfig(heads=2)


def clusters(rows: int = 230) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (rows,), generator=draw)
    means = 3 * torch.eye(4, 8)
    return means[labels] + torch.randn(rows, 8, generator=draw), labels


def trained(module: ModuleConfig, **changes: Any) -> Any:
    features, labels = clusters()
    options: dict[str, Any] = {"epochs": 3, "seed": 5, "module": module, **changes}
    return train_classifier(features, labels, 6, **options)


@pytest.mark.parametrize("module", [OFF, ON], ids=["plain", "two streams"])
def test_it_learns(module: ModuleConfig) -> None:
    features, labels = clusters()
    linear = trained(module, epochs=20)
    assert linear.weight.shape == (6, 8)
    assert (linear(features).argmax(1) == labels).float().mean() > 0.85
    assert not any(p.requires_grad for p in linear.parameters())


@pytest.mark.parametrize("module", [OFF, ON], ids=["plain", "two streams"])
def test_a_function_of_its_arguments(module: ModuleConfig) -> None:
    torch.manual_seed(1)
    first = trained(module)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = trained(module)
    assert torch.equal(first.weight, second.weight) and torch.equal(first.bias, second.bias)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first.weight, trained(module, seed=6).weight)


def test_adam_step_by_step_without_batchformer() -> None:
    features, labels = clusters(90)  # one batch an epoch: the order plays no part
    start = train_classifier(features, labels, 6, epochs=0, seed=5, module=OFF)
    assert start.weight.std() < 0.03 and not start.bias.any()
    weight = start.weight.double().clone().requires_grad_()
    bias = start.bias.double().clone().requires_grad_()
    adam = torch.optim.Adam([weight, bias], lr=1e-3, betas=(0.5, 0.999))
    for _ in range(4):
        adam.zero_grad()
        F.cross_entropy(features.double() @ weight.T + bias, labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
    got = train_classifier(features, labels, 6, epochs=4, seed=5, module=OFF)
    torch.testing.assert_close(got.weight.double(), weight.detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(got.bias.double(), bias.detach(), atol=1e-6, rtol=1e-4)


def test_every_row_once_an_epoch_in_even_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    original = streams.stream_loss

    def watch(criterion: Any, logits: Tensor, labels: Tensor, **rest: Any) -> Tensor:
        seen.append(labels)
        return original(criterion, logits, labels, **rest)

    monkeypatch.setattr(feature_classifier, "stream_loss", watch)
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_are_those_run_eagerly(capsys: pytest.CaptureFixture[str]) -> None:
    features, labels = (tensor.cuda() for tensor in clusters())
    options: dict[str, Any] = {"epochs": 20, "seed": 5, "module": OFF}
    eager = train_classifier(features, labels, 6, **options)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert feature_classifier._can_capture(features.device, None)
        captured = train_classifier(features, labels, 6, **options)
    assert capsys.readouterr().err == ""
    torch.testing.assert_close(captured.weight, eager.weight, rtol=1e-5, atol=1e-7)
