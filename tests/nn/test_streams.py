"""Doubling, splitting and the loss over both streams."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer import duplicate, match, split, stream_loss


@dataclasses.dataclass(frozen=True)
class Boxes:
    boxes: torch.Tensor
    names: list[str]


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def rows(n: int, *shape: int) -> torch.Tensor:
    return torch.arange(n).view(n, *[1] * len(shape)).expand(n, *shape).clone()


leaf = st.sampled_from(["labels", "soft", "mask", "weights", "list", "detection", "none", "number"])


def make(kind: str, n: int) -> Any:
    return {
        "labels": rows(n),
        "soft": rows(n, 5).float(),
        "mask": rows(n, 4, 4) > 0,
        "weights": rows(n).double(),
        "list": [f"name{i}" for i in range(n)],
        "detection": [{"boxes": torch.zeros(i, 4), "id": i} for i in range(n)],
        "none": None,
        "number": 0.3,
    }[kind]


trees = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(inner, inner), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=6,
)


def build(tree: Any, n: int) -> Any:
    if isinstance(tree, tuple):
        return tuple(build(part, n) for part in tree)
    if isinstance(tree, dict):
        return {key: build(part, n) for key, part in tree.items()}
    return make(tree, n)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@settings(max_examples=60, deadline=None)
@given(tree=trees, n=st.integers(1, 5))
def test_split_undoes_duplicate_on_any_nest(tree: Any, n: int) -> None:
    targets = build(tree, n)
    halves = split(duplicate(targets))
    assert same(halves.plain, targets) and same(halves.mixed, targets)


@settings(max_examples=60, deadline=None)
@given(tree=trees, n=st.integers(1, 5))
def test_match_doubles_exactly_when_rows_do(tree: Any, n: int) -> None:
    targets = build(tree, n)
    assert same(match(torch.zeros(n, 3), targets), targets)
    assert same(match(torch.zeros(2 * n, 3), targets), duplicate(targets))


def test_containers_keep_their_types() -> None:
    boxes = duplicate(Boxes(torch.zeros(2, 4), ["a", "b"]))
    assert isinstance(boxes, Boxes) and boxes.boxes.shape == (4, 4) and len(boxes.names) == 4
    pair = duplicate(Pair(torch.zeros(2), torch.ones(2)))
    assert isinstance(pair, Pair) and pair.b.tolist() == [1, 1, 1, 1]
    ordered = duplicate(OrderedDict(b=torch.zeros(1), a="word"))
    assert type(ordered) is OrderedDict and list(ordered) == ["b", "a"]
    user = duplicate(UserDict(x=torch.zeros(2)))
    assert type(user) is UserDict and user["x"].shape == (4,)


def test_the_given_targets_are_not_changed() -> None:
    targets = {"y": torch.zeros(2), "names": ["a", "b"]}
    duplicate(targets)
    assert targets["y"].shape == (2,) and targets["names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        (torch.zeros(8, 2), torch.zeros(3), "8 rows.*targets: 3"),
        (torch.zeros(7, 2), torch.zeros(3), "7 rows"),
        (torch.zeros(8, 2), {"y": torch.zeros(4), "z": torch.zeros(8)}, "every part"),
        (torch.zeros(8, 2), [torch.zeros(4), torch.zeros(4)], "tuple or dict"),
        ({"a": torch.zeros(8), "b": torch.zeros(4)}, torch.zeros(4), "match\\(out.logits, y\\)"),
        (None, torch.zeros(4), "no rows"),
    ],
)
def test_disagreement_is_an_error_that_says_what_to_do(
    outputs: Any, targets: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        match(outputs, targets)


def test_odd_rows_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="That is odd"):
        split(torch.zeros(3))


def test_numpy_arrays_are_doubled_wherever_they_are() -> None:
    labels, logits = np.array([3, 1, 2]), torch.zeros(6, 5)
    assert match(logits, labels).tolist() == [3, 1, 2, 3, 1, 2]
    assert match(logits[:3], labels) is labels
    nest = match(logits, {"y": labels, "parts": (labels, torch.tensor([3, 1, 2]), np.float32(2))})
    assert nest["y"].tolist() == nest["parts"][0].tolist() == nest["parts"][1].tolist()
    assert len(nest["y"]) == 6 and nest["parts"][2] == 2
    assert split(nest).mixed["y"].tolist() == [3, 1, 2]
    with pytest.raises(ValueError, match=r"targets\['y'\]: 4"):
        match(logits, {"y": np.zeros(4)})


class Column:
    """As a column of a table is: it has rows, and is neither a tensor nor NumPy's."""

    ndim = 1

    def __array__(self) -> object:
        return np.zeros(3)


@pytest.mark.parametrize("double", [duplicate, lambda y: match(torch.zeros(6, 5), y)])
def test_what_cannot_be_doubled_says_what_to_pass(double: Callable[[Any], Any]) -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)])
    for targets in (packed, {"y": packed}):
        with pytest.raises(TypeError, match=r"PackedSequence has no rows to double\. Pad it"):
            double(targets)
    with pytest.raises(TypeError, match=r"Column cannot be doubled.*torch\.as_tensor"):
        double((torch.zeros(3), Column()))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 9), w=st.floats(0, 3), seed=st.integers(0, 99))
def test_stream_loss_against_the_definitions(n: int, w: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2 * n, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (n,), generator=generator)
    per_row = [float(-logits[i].log_softmax(0)[y[i % n]]) for i in range(2 * n)]
    plain, mixed = sum(per_row[:n]) / n, sum(per_row[n:]) / n
    expected = {
        "mean": (plain + w * mixed) / (1 + w),
        "sum": plain + w * mixed,
        "official": 1.5 * (plain + w * mixed),
    }
    for scale, value in expected.items():
        got = stream_loss(F.cross_entropy, logits, y, loss_scale=scale, mixed_weight=w)  # type: ignore[arg-type]
        assert float(got) == pytest.approx(value)


@pytest.mark.parametrize("scale", ["mean", "sum", "official"])
def test_without_a_second_stream_every_scale_is_the_plain_loss(scale: Any) -> None:
    logits, y = torch.randn(5, 4), torch.randint(4, (5,))
    loss = stream_loss(F.cross_entropy, logits, y, loss_scale=scale, mixed_weight=0.2)
    assert torch.equal(loss, F.cross_entropy(logits, y))


def test_exchange_changes_nothing_in_one_process() -> None:
    logits, y = torch.randn(8, 5, requires_grad=True), torch.tensor([0, 1, 2, 3])
    plain = stream_loss(F.cross_entropy, logits, y, mixed_weight=0.5)
    assert torch.equal(
        stream_loss(F.cross_entropy, logits, y, mixed_weight=0.5, exchange=True), plain
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("counts", [(3, 5), (0, 4), (2, 2, 1)])
def test_losses_of_ranks_average_to_that_of_all_rows(
    reduction: Literal["mean", "sum"], counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks one after the other, each told how many rows there are."""
    total = sum(counts)
    monkeypatch.setattr("batchformer.nn.streams.world_size", lambda group=None: len(counts))
    monkeypatch.setattr(
        "batchformer.nn.streams.total_rows", lambda rows, device, group: torch.tensor(total)
    )
    plain, mixed = torch.randn(2, total, 5, dtype=torch.float64)
    y = torch.randint(5, (total,))
    for criterion in (
        torch.nn.CrossEntropyLoss(reduction=reduction),
        functools.partial(F.cross_entropy, reduction=reduction),
    ):
        losses = []
        for own, target in zip(
            torch.stack((plain, mixed)).split(counts, dim=1), y.split(counts), strict=True
        ):
            outputs = own.flatten(0, 1).requires_grad_()
            loss = stream_loss(criterion, outputs, target, exchange=True, loss_scale="official")
            loss.backward()
            assert outputs.grad is not None
            losses.append(loss.detach())
            with torch.no_grad():  # validation: the loss of this rank's rows
                alone = stream_loss(criterion, outputs, target, exchange=True)
            assert alone.equal(stream_loss(criterion, outputs, target)) or not len(target)
        expected = 1.5 * (criterion(plain, y) + criterion(mixed, y))
        torch.testing.assert_close(torch.stack(losses).mean(), expected, rtol=1e-12, atol=1e-12)


def test_exchange_needs_a_tensor_to_connect_a_loss_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchformer.nn.streams.world_size", lambda group=None: 2)
    with pytest.raises(ValueError, match="the outputs contain no tensor"):
        stream_loss(F.cross_entropy, [], torch.zeros(0), exchange=True)
