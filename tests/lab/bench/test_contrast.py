"""MoCo-v3's step is measured with and without BatchFormer, on images and on features."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench.contrast import (
    ContrastSubject,
    GivenFeatures,
    TwoViews,
    cases,
    measure,
    module_alone,
)
from batchformer.lab.bench.measure import BenchSettings, Spread
from batchformer.lab.bench.step import EAGER, HALF, RECORDED, Mode, Subject
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.optim import Lars

CPU = torch.device("cpu")
ONCE = BenchSettings(CPU, repeats=1)
IMAGES = TwoViews("ResNet-32", "resnet32", 10, 32, hidden=16, dim=8)
FEATURES = TwoViews("features", "", 0, 0, hidden=16, dim=8, channels=32)


def test_the_sizes() -> None:
    images, features = cases(on_gpu=True)
    assert (images[0].name, images[0].side, images[1]) == ("resnet50", 224, 256)
    assert (features[0].channels, features[1]) == (2048, 4096)
    assert images[2] == features[2] == (HALF, RECORDED)
    assert all(views.hidden == 4096 and views.dim == 256 for views, _, _ in (images, features))
    assert [modes for _, _, modes in cases(on_gpu=False)] == [(EAGER,)] * 2


def test_a_small_measurement() -> None:
    table = measure(ONCE, [(IMAGES, 4, (EAGER,)), (FEATURES, 8, (EAGER,))])
    assert [row[:3] for row in table.rows] == [
        ("ResNet-32", 4, "eager fp32"),
        ("features", 8, "eager fp32"),
    ]
    for row in table.rows:
        size = row[1]
        assert isinstance(size, int)
        plain, both, rate, rate_with, share, alone = row[3:]
        assert isinstance(alone, Spread) and alone.median > 0
        assert isinstance(plain, Spread) and isinstance(both, Spread)
        assert isinstance(rate, Spread) and rate.median == pytest.approx(1000 * size / plain.median)
        assert isinstance(rate_with, Spread)
        assert rate_with.median == pytest.approx(1000 * size / both.median)
        assert isinstance(share, Spread)
        assert share.median == pytest.approx(100 * (1 - plain.median / both.median))


def test_the_module_alone_has_the_features_of_the_network() -> None:
    assert (IMAGES.width, FEATURES.width) == (64, 32)
    found = module_alone(ONCE, 64, 8, (EAGER, HALF))
    assert list(found) == ["eager fp32", "eager bf16"]
    assert all(timing.ms.median > 0 for timing in found.values())


@pytest.mark.parametrize("views", [IMAGES, FEATURES], ids=lambda views: views.title)
def test_a_call_is_one_update_of_all_that_is_trained(views: TwoViews) -> None:
    subject = ContrastSubject(views, EAGER, 6, True, CPU)
    before = {name: p.clone() for name, p in subject.method.named_parameters()}
    subject()
    assert isinstance(subject.optimizers["main"], Lars)
    for name, parameter in subject.method.named_parameters():
        # Those of one dimension may have a gradient of zero at first.
        if parameter.requires_grad and parameter.ndim > 1:
            assert not torch.equal(parameter, before[name]), name
    assert any(n.startswith("encoder.") for n in before)
    assert int(subject.method.updates) == 1  # type: ignore[arg-type]


def test_only_batchformer_tells_the_two_apart() -> None:
    with_it, without = (dict(IMAGES.method(b, CPU).named_parameters()) for b in (True, False))
    assert all(torch.equal(with_it[name], p) for name, p in without.items())
    assert {name.split(".")[0] for name in with_it.keys() - without.keys()} == {"encoder"}


def test_views_differ() -> None:
    for views, shape in ((IMAGES, (5, 3, 32, 32)), (FEATURES, (5, 32))):
        for batch in views.batches(5, CPU, channels_last=True):
            assert batch["x"].shape == batch["view2"].shape == shape
            assert not torch.equal(batch["x"], batch["view2"])
    assert not list(GivenFeatures(4).parameters())


def test_a_mode_that_fails_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Subject.warm_up

    def broken(self: Subject) -> None:
        if self.mode.name == "broken":
            raise RuntimeError("no such kernel")
        original(self)

    monkeypatch.setattr(Subject, "warm_up", broken)
    table = measure(ONCE, [(FEATURES, 4, (EAGER, Mode("broken", TrainConfig(capture=False))))])
    assert [row[2] for row in table.rows] == ["eager fp32"]
    assert sum("broken with" in note and "no such kernel" in note for note in table.notes) == 2
