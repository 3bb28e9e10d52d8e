"""Pairs of attributes and objects: closed and open world, against sets of words."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.data.sets.pairs import Compositions, Pair

words = st.sampled_from(["burnt", "old", "wet", "Faux.Fur", "ancient", "Boots.Mid-Calf"])
some_pairs = st.lists(st.tuples(words, words), max_size=12)
some_train = st.lists(st.tuples(words, words), min_size=1, max_size=12)


def flagged(compositions: Compositions, flags: torch.Tensor) -> set[Pair]:
    return {pair for pair, on in zip(compositions.names, flags.tolist(), strict=True) if on is True}


@given(some_train, some_pairs, some_pairs)
def test_the_closed_world(train: list[Pair], val: list[Pair], test: list[Pair]) -> None:
    made = Compositions.of(train, val, test)
    union = {*train, *val, *test}
    assert list(made.names) == sorted(union) and len(made) == len(union)
    assert list(made.attributes) == sorted({attribute for attribute, _ in union})
    assert list(made.objects) == sorted({thing for _, thing in union})
    for flags, part in ((made.seen, train), (made.val, val), (made.test, test)):
        assert flags.dtype == torch.bool and flagged(made, flags) == {*part}
    for numbers in (made.attribute, made.object):
        assert numbers.dtype == torch.int64 and numbers.shape == (len(union),)


@given(some_train, some_pairs, some_pairs)
def test_candidates_are_the_pairs_of_a_phase_and_the_seen(
    train: list[Pair], val: list[Pair], test: list[Pair]
) -> None:
    made = Compositions.of(train, val, test)
    assert flagged(made, made.candidates("train")) == {*train}
    assert flagged(made, made.candidates("val")) == {*train, *val}
    assert flagged(made, made.candidates("test")) == {*train, *test}


@given(some_train, some_pairs, some_pairs)
def test_the_open_world(train: list[Pair], val: list[Pair], test: list[Pair]) -> None:
    closed = Compositions.of(train, val, test)
    made = closed.opened()
    assert made.names == tuple(product(closed.attributes, closed.objects))
    assert (made.attributes, made.objects) == (closed.attributes, closed.objects)
    for flags, part in ((made.seen, train), (made.val, val), (made.test, test)):
        assert flags.dtype == torch.bool and flagged(made, flags) == {*part}
    again = made.opened()
    assert again.names == made.names
    for name in ("attribute", "object", "seen", "val", "test"):
        assert torch.equal(getattr(again, name), getattr(made, name))


@given(some_train, some_pairs, some_pairs)
def test_the_order_of_lists_and_repeats_play_no_part(
    train: list[Pair], val: list[Pair], test: list[Pair]
) -> None:
    mixed = sorted(train * 2, reverse=True)
    first, second = Compositions.of(train, val, test), Compositions.of(mixed, val[::-1], test)
    assert first.names == second.names and torch.equal(first.seen, second.seen)
    assert torch.equal(first.val, second.val) and torch.equal(first.test, second.test)


def test_nothing_to_train_on() -> None:
    with pytest.raises(ValueError, match="no pair to train on"):
        Compositions.of([], [("wet", "dog")], [])


def test_an_unknown_phase() -> None:
    with pytest.raises(KeyError):
        Compositions.of([("wet", "dog")], [], []).candidates("validation")  # type: ignore[arg-type]
