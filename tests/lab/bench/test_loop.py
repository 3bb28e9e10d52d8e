"""Bare and looped updates alternate on one network, and the loop does all it does in a run."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench import loop
from batchformer.lab.bench.loop import alternated, looped, measure
from batchformer.lab.bench.measure import BenchSettings, Spread
from batchformer.lab.bench.step import OPTIM, RESNET32
from batchformer.lab.engine import stage

CPU = torch.device("cpu")


def test_a_small_measurement_with_records_and_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "BLOCK", 4)
    monkeypatch.setattr(loop, "LOG_EVERY", 2)
    events: list[str] = []
    for name in ("record", "save", "one_update"):
        original = getattr(stage.Stage, name)

        def noted(self: stage.Stage, name: str = name, original: object = original) -> None:
            events.append(name)
            original(self)  # type: ignore[operator]

        monkeypatch.setattr(stage.Stage, name, noted)
    table = measure(BenchSettings(CPU, repeats=2), size=4)
    # After a warm-up of one record, two blocks of two records and one checkpoint each.
    warm_up = ["one_update"] * 2
    assert events[:2] == warm_up
    block = sorted(["record"] * 2 + ["save"] + ["one_update"] * 4)
    assert sorted(events[2:9]) == block and sorted(events[9:]) == block
    bare, by_loop, mean = table.rows
    assert [row[0] for row in table.rows][:2] == ["bare", "by the loop"] and bare[2] is None
    for row in table.rows:
        assert isinstance(row[1], Spread) and row[1].median > 0
    assert isinstance(by_loop[2], Spread) and by_loop[2].rounds == 8
    assert isinstance(mean[2], Spread) and mean[2].rounds == 2
    assert "95% interval" in table.notes[-1]


def test_both_kinds_of_updates_train_the_same_network() -> None:
    method = RESNET32.method(True, CPU).train()
    batches = RESNET32.batches(2, CPU)
    weight = next(method.parameters())
    with looped(method, batches, CPU) as by_loop:
        bare = loop._bare(method, method.optimizers(OPTIM)["main"], batches)
        for update in (by_loop, bare, by_loop, bare):
            before = weight.clone()
            update()
            assert weight.ne(before).any()


def test_neither_always_comes_first() -> None:
    order: list[str] = []
    times = alternated(lambda: order.append("b"), lambda: order.append("l"), 4, CPU)
    assert "".join(order) == "lbbllbbl"
    assert len(times["bare"]) == len(times["loop"]) == 4
