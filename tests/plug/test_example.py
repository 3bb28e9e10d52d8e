"""Inputs are guessed for models of many kinds, or asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from batchformer import attach, check, export
from batchformer.plug.example import ROWS, as_batch, find_batch, fit_batch


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids).mean(1))


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 6, batch_first=batch_first)
        self.head = nn.Linear(6, 2)
        self.step = (slice(None), -1) if batch_first else -1

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][self.step])


class Lenet(nn.Module):
    """Only 28 x 28 fits its Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5)
        self.head = nn.Linear(4 * 24 * 24, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(7, 2),
        nn.Sequential(nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2)),
        nn.Sequential(nn.Conv1d(2, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv3d(2, 4, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(5, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        Lenet(),
        Text(),
        Recurrent(True),
        Recurrent(False),
        timm.create_model("test_vit", num_classes=2, in_chans=1),  # 160 x 160, no other size
        nn.Linear(7, 2).double(),
        nn.Linear(7, 2).bfloat16(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_batch_is_found_and_accepted(model: nn.Module) -> None:
    state = torch.get_rng_state()
    batch = find_batch(model)
    assert torch.equal(torch.get_rng_state(), state), "guessing advanced the caller's generator"
    assert batch.rows == ROWS and batch.run(model).shape == (ROWS, 2)


class TwoTables(nn.Module):
    """Every embedding sees the same indices, and remembers the largest."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 6) for size in sizes)
        self.head, self.largest = nn.Linear(6, 2), 0

    def forward(self, ids: Tensor) -> Tensor:
        self.largest = max(self.largest, int(ids.max()))
        return self.head(sum(table(ids).mean(1) for table in self.tables))


@pytest.mark.parametrize("sizes", [(1000, 7), (7, 1000), (1000, 1)])
def test_no_guess_is_out_of_range_for_any_embedding(sizes: tuple[int, ...]) -> None:
    model = TwoTables(*sizes)
    assert find_batch(model).run(model).shape == (ROWS, 2)
    # On a GPU one index too large would be an assertion that nothing recovers from.
    assert model.largest < min(sizes)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, image: Tensor, meta: dict[str, Tensor]) -> Tensor:
        return self.head(image + meta["offset"])


def test_what_cannot_be_guessed_is_asked_for() -> None:
    with pytest.raises(ValueError, match="Pass example="):
        find_batch(Odd())
    example = (torch.randn(3, 4), {"offset": torch.zeros(3, 4)})
    assert find_batch(Odd(), example).run(Odd()).shape == (3, 2)
    with pytest.raises(ValueError, match="pass at least 2"):
        find_batch(nn.Linear(4, 2), torch.randn(1, 4))


@pytest.mark.parametrize("example", [3, "word", (), {}, {"lr": 0.1}])
def test_an_example_without_rows_is_refused(example: Any) -> None:
    with pytest.raises(TypeError, match="no tensor with rows"):
        as_batch(example)


def test_an_object_that_hides_its_tensors_is_explained() -> None:
    """As the NestedTensor of DETR's own code."""
    images = SimpleNamespace(tensors=torch.randn(3, 3, 8, 8), mask=torch.zeros(3, 8, 8))
    for example in (images, (images,), {"samples": images}):
        with pytest.raises(TypeError, match=r"NestedTensor.*pass the tensors"):
            as_batch(example)


def test_packed_sequences_are_asked_for_in_another_form() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 2), torch.tensor([5, 4, 2]))
    for example in (packed, (packed,), {"input": packed}):
        with pytest.raises(TypeError, match=r"PackedSequence cannot be split.*let forward pack"):
            as_batch(example)
    beside = as_batch({"x": torch.randn(3, 2), "packed": packed})
    with pytest.raises(TypeError, match="PackedSequence"):
        beside.head(2)


def test_a_dict_that_is_itself_the_argument_is_asked_for_in_a_tuple() -> None:
    class OfADict(nn.Linear):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
            return super().forward(batch["image"])

    model, batch = OfADict(4, 2), {"image": torch.randn(3, 4)}
    with pytest.raises(TypeError, match=r"no keyword arguments image.*tuple: \(batch,\)"):
        fit_batch(model, batch)
    assert fit_batch(model, (batch,)).run(model).shape == (3, 2)


class SequenceFirst(Text):
    """Ids ``(L, N)``."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids).mean(0))


def test_a_guess_has_its_samples_on_the_axis_that_was_named() -> None:
    batch = find_batch(SequenceFirst(), axis=1)
    assert batch.axis == 1 and batch.args[0].shape[1] == batch.rows == ROWS
    model = attach(SequenceFirst(), heads=2, input_axis=1, verbose=False)
    assert model(torch.zeros(5, 4, dtype=torch.long)).shape == (8, 2)
    assert check(model) and export(model)
    with pytest.raises(ValueError, match="Pass example="):
        attach(Text(), input_axis=5)
