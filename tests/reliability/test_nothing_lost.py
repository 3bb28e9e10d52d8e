"""A killed and resumed training ends bit-equal to one that was not killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.simulated_networks import known
from soak.full_disk import file_limit
from soak.kills import Unbroken, killed, moments, unbroken
from soak.processes import PLACES

OPTIONS = ("--train.updates", "40", "--train.eval-every", "20", "--train.checkpoint-every", "5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    return unbroken(tmp_path_factory.mktemp("whole"), OPTIONS)


def test_three_kills_and_each_goes_on_to_the_same_bits(tmp_path: Path, whole: Unbroken) -> None:
    kills = []
    # Drawn from the first half of the training, and inside one write.
    for number, moment in enumerate(moments(3, seed=5, seconds=whole.seconds / 2, writes=8)):
        # Where the machine was busier when it measured the whole, a training ends too early.
        tries = (killed(tmp_path / f"{number}-{n}", whole, moment, OPTIONS) for n in range(3))
        kills.append(known(next(filter(None, tries), None)))
    assert [kill.unreadable for kill in kills] == [()] * 3
    assert [kill.differences for kill in kills] == [()] * 3
    assert PLACES[0] in kills[1].moment and kills[1].partial == 1


def test_no_room_for_a_checkpoint_is_said_and_nothing_is_lost(
    tmp_path: Path, whole: Unbroken
) -> None:
    found = file_limit(tmp_path / "limited", whole, OPTIONS)
    assert found.code == 1 and not found.traceback
    assert "File too large" in found.message and "could not be written" in found.message
    assert str(tmp_path / "limited") in found.message and "continues" in found.message
    assert found.intact and found.partial == 0 and found.differences == ()
