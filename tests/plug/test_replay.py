"""Passes that reuse what the backbone computed give what full passes give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer import attach
from batchformer.plug.batches import repeated_index, replaced_index
from batchformer.plug.example import as_batch
from batchformer.plug.noise import without_noise
from batchformer.plug.observe import Experiment
from batchformer.plug.preserve import ModelState

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Adds to the output of one layer in place, and changes the input of another in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(inplace=True)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        out = self.first(x)
        out += x
        return self.relu(self.second(out)) * scale


class Model(nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.mixes = mixes

    def forward(self, x: Tensor) -> Any:
        f = self.norm(self.block(x, x[:, :1]))
        return self.head(f - f.mean(0) if self.mixes else f)


@pytest.mark.parametrize("mixes", [False, True])
def test_it_gives_what_a_full_pass_gives(mixes: bool) -> None:
    torch.manual_seed(0)
    model: Any = attach(Model(mixes), verbose=False).train()
    ran: list[int] = []
    model.block.first.register_forward_hook(lambda module, args, out: ran.append(len(out)))
    batch = as_batch(X)
    with without_noise(model, batch):
        experiment = Experiment(model, batch, [])
        for index in (None, replaced_index(4, 0)):
            experiment.run_recorded(index)
        assert experiment.replay is not None
        assert set(experiment.replay.known) == {"block", "norm"}
        ran.clear()
        for index in ([3, 1, 0, 2], repeated_index(4, 20)):
            (rows,) = experiment.run_again(index).rows
            assert not ran
            (expected,) = experiment.run(as_batch(X[index])).rows
            torch.testing.assert_close(rows, expected)
            assert ran.pop() == len(index)
        # Other inputs than those that were seen are computed.
        with experiment.replay.replaying([0, 1, 2, 3]):
            other = experiment.run(as_batch(2 * X)).rows[0]
        assert ran == [4] and not torch.allclose(other, experiment.run().rows[0])


def test_a_part_that_mixes_rows_or_is_called_twice_is_run_again() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.once = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            f = self.twice(self.twice(x))
            return self.once(f + f.mean(0))

    experiment = Experiment(Mixes(), as_batch(X), [])
    for index in (None, replaced_index(4, 0)):
        experiment.run_recorded(index)
    assert experiment.replay is not None and not experiment.replay.known


class Counts(nn.Module):
    default = 5

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.history, self.average = 0, list[int](), torch.zeros(2)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.default += 2
        self.history.append(self.steps)
        self.average += 1
        self.seen += 1
        return x


def test_every_pass_starts_from_the_same_state_and_counters_can_be_moved_ahead() -> None:
    model: Any = Counts()
    state = ModelState(model)
    for _ in range(2):
        state.restore()
        model(X)
        assert (model.steps, model.default, model.history, int(model.seen)) == (1, 7, [1], 1)
        assert model.average.tolist() == [1.0, 1.0]
    state.skip_steps(10)
    assert (model.steps, model.default, int(model.seen)) == (11, 27, 11)
    state.restore()
    assert (model.steps, model.default, model.history, int(model.seen)) == (0, 5, [], 0)
