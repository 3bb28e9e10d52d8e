"""Subjects train as the engine does, on random data."""

from __future__ import annotations

import pytest
import torch

from batchformer.kernels.available import unsupported_reason
from batchformer.lab.bench.step import RESNET32, Mode, Subject, SubjectStopwatch
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.cuda_graph import WARM_UP, Captured
from batchformer.lab.models.kernels import available

CPU = torch.device("cpu")
EAGER = Mode("eager", TrainConfig(capture=False))


def test_batches_are_random_and_normalised() -> None:
    batches = RESNET32.batches(16, CPU, channels_last=True)
    x = torch.cat([batch["x"] for batch in batches])
    assert 0.8 < x.std() < 2 and x[0].ne(x[16]).any()
    assert len({int(label) for batch in batches for label in batch["y"]}) > 10
    assert batches[0]["x"].is_contiguous(memory_format=torch.channels_last)


def test_a_call_is_one_update() -> None:
    subject = Subject(RESNET32, EAGER, 4, True, CPU)
    before = [p.clone() for p in subject.method.parameters()]
    subject()
    assert all(p.ne(q).any() for p, q in zip(subject.method.parameters(), before, strict=True))
    assert subject.optimizers["main"].state


def test_only_batchformer_tells_the_two_apart() -> None:
    both = [Subject(RESNET32, EAGER, 4, with_it, CPU).method for with_it in (True, False)]
    with_it, without = (dict(m.named_parameters()) for m in both)
    assert all(torch.equal(with_it[name], p) for name, p in without.items())
    assert all(name.startswith("encoder.") for name in with_it.keys() - without.keys())
    assert with_it.keys() > without.keys()


def test_kernels_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str | None] = set()

    def look(x: torch.Tensor, conv: torch.nn.Conv2d) -> str:
        seen.add(unsupported_reason(x))
        return "looking"

    monkeypatch.setattr(available, "conv_unsupported_reason", look)
    Subject(RESNET32, Mode("without", TrainConfig(capture=False), kernels=False), 4, True, CPU)()
    assert seen == {"kernels are disabled"}


def test_a_recording_that_fails_is_not_passed_off_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Captured, batch: object) -> None:
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(Captured, "_capture", fail)
    subject = Subject(RESNET32, Mode("recorded", TrainConfig()), 4, False, CPU)
    for _ in range(WARM_UP):
        subject()
    watch = SubjectStopwatch(lambda: subject, CPU)
    with pytest.raises(RuntimeError, match=r"the capture failed .operation not permitted"):
        watch()
