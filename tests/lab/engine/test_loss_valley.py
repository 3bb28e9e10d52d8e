"""The valley of the loss: worked examples, and the rule written out with explicit lists."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchformer.lab.engine.swad import LossValley


def answers(
    losses: list[float], converge: int, tolerance: int, ratio: float
) -> tuple[list[list[int]], list[int], LossValley]:
    """What joins at each evaluation, what joins at the end, and the valley after all of it."""
    valley = LossValley(converge, tolerance, ratio)
    return [list(valley.tell(loss)) for loss in losses], list(valley.finish()), valley


def test_a_valley_and_what_follows_it() -> None:
    # Converged at segment 4 (1.0 of 1.0, 1.1, 1.2): mean 1.1, threshold 1.43. The window of six
    # reaches back to segment 1; segment 2 (1.5) lies above, so 3 and 4 begin the average.
    # Segment 5 joins when it is the oldest of the window, at segment 10; then one at a time. At
    # segment 13 all of 8..13 lies above, so 7 was the last.
    losses = [3.0, 2.0, 1.5, 1.4, 1.0, 1.1, 1.2, 1.3, 1.9, 1.8, 2.0, 2.1, 2.2, 2.3, 2.4, 0.1]
    during, end, valley = answers(losses, 3, 6, 0.3)
    assert valley.threshold == pytest.approx(1.43)
    assert during[:6] == [[]] * 6
    assert during[6] == [3, 4]
    assert during[7:10] == [[], [], []]  # the oldest are 2, 3 and 4
    assert during[10:13] == [[5], [6], [7]]
    assert during[13:] == [[], [], []]  # a later low loss revives nothing
    assert valley.dead and end == [] and list(valley.pending) == []


@pytest.mark.parametrize(
    ("second", "tolerance", "expected"),
    [
        (1.5, 6, [2, 3]),  # segment 0 is low again, but 1 lies in between
        (1.4, 6, [0, 1, 2, 3]),
        (1.4, 5, [1, 2, 3]),
        (1.4, 4, [2, 3]),
        (1.4, 3, [3]),
        (1.4, 2, [3, 4]),
        (1.4, 1, [3, 4, 5]),
    ],
)
def test_what_the_average_begins_with(second: float, tolerance: int, expected: list[int]) -> None:
    # Converged at segment 3 with threshold 1.43.
    during, _, _ = answers([1.4, second, 1.3, 1.0, 1.1, 1.2], 3, tolerance, 0.3)
    assert during == [[], [], [], [], [], expected]


def test_what_is_no_number_counts_as_infinite() -> None:
    during, _, valley = answers([1.0, math.nan, 1.0, 1.0, math.inf, math.nan, math.nan], 2, 2, 0.5)
    assert during == [[], [], [], [2], [3], [], []]
    assert valley.dead and valley.threshold == 1.5


def by_lists(
    losses: list[float], converge: int, tolerance: int, ratio: float
) -> tuple[list[list[int]], list[int]]:
    """The rule as it is described, with both windows as lists of (segment, loss)."""
    first: list[tuple[int, float]] = []
    second: list[tuple[int, float]] = []
    during: list[list[int]] = []
    average: list[int] = []
    began, threshold = -1, None
    dead = False
    for number, loss in enumerate(losses):
        new: list[int] = []
        first, second = [*first, (number, loss)], [*second, (number, loss)]
        if len(first) > converge:
            first.pop(0)
        if len(second) > tolerance:
            second.pop(0)
        if dead:
            pass
        elif threshold is None:
            if len(first) == converge and all(first[0][1] <= other for _, other in first):
                began = first[0][0]
                threshold = (1 + ratio) * (sum(other for _, other in first) / converge)
                new = [began]
                if tolerance > converge:
                    for earlier, other in reversed(second):
                        if earlier < began:
                            if other > threshold:
                                break
                            new.insert(0, earlier)
                elif tolerance < converge:
                    new += [later for later, _ in first[1 : converge - tolerance + 1]]
        elif second[0][0] > began and second[0][0] not in average:
            if all(other > threshold for _, other in second):
                dead = True
            else:
                new = [second[0][0]]
        during.append(new)
        average += new
    end: list[int] = []
    if threshold is None:
        end = [len(losses) - 1] if losses else []
    elif not dead:
        rest = [pair for pair in second if pair[0] > max(average)]
        while rest and min(other for _, other in rest) <= threshold:
            end.append(rest.pop(0)[0])
    return during, end


values = st.integers(1, 12).map(lambda number: number / 4)
sequences = st.lists(values, max_size=25)
windows = st.integers(1, 7)


@given(sequences, windows, windows, st.sampled_from([0.0, 0.2, 0.3, 1.0]))
@example([1.0] * 12, 3, 6, 0.3)
def test_the_rule_is_that_of_explicit_lists(
    losses: list[float], converge: int, tolerance: int, ratio: float
) -> None:
    during, end, valley = answers(losses, converge, tolerance, ratio)
    assert (during, end) == by_lists(losses, converge, tolerance, ratio)
    joined = [number for new in during for number in new] + end
    if joined:
        assert joined == list(range(joined[0], joined[-1] + 1))
        assert joined[0] >= 0 and joined[-1] < len(losses)
    assert list(valley.extent() or ()) == joined
    assert list(valley.finish()) == end  # asked twice


@given(sequences, windows, windows, st.sampled_from([0.0, 0.3]))
def test_what_joins_was_pending_and_what_was_dropped_never_joins(
    losses: list[float], converge: int, tolerance: int, ratio: float
) -> None:
    valley = LossValley(converge, tolerance, ratio)
    kept: set[int] = set()
    for number, loss in enumerate(losses):
        kept.add(number)
        assert kept.issuperset(valley.tell(loss))
        kept &= set(valley.pending)
        assert len(kept) <= max(converge, tolerance, 2) - 1
        assert kept.issuperset(valley.finish())


@given(sequences, windows, windows, st.integers(0, 25))
def test_a_restored_valley_goes_on(
    losses: list[float], converge: int, tolerance: int, cut: int
) -> None:
    during, end, valley = answers(losses, converge, tolerance, 0.3)
    _, _, before = answers(losses[:cut], converge, tolerance, 0.3)
    after = dataclasses.replace(before)
    assert [list(after.tell(loss)) for loss in losses[cut:]] == during[cut:]
    assert list(after.finish()) == end and after == valley
    assert after.extent() == valley.extent()
