"""Shuffled keys on real groups of two and three ranks, for the momentum encoder, PaCo and MoCo.

Run as a script, this file is one of the ranks: it saves what it computed, and the tests check it.
The ranks start once for all tests, because starting them takes longer than what they do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import test_moco
import test_momentum
import test_paco

SUBJECTS = ("shuffle", "paco", "moco")


@pytest.fixture(scope="module")
def folder(
    run_ranks: Callable[[str, Path, int], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the ranks left."""
    made = tmp_path_factory.mktemp("ranks")
    for name in SUBJECTS:
        (made / name).mkdir()
    run_ranks(__file__, made, 3)
    return made


def test_a_shuffle_between_ranks(folder: Path) -> None:
    test_momentum.assert_ranks(folder / "shuffle")


def test_ranks_of_paco_shuffle_their_keys(folder: Path) -> None:
    test_paco.assert_ranks(folder / "paco")


def test_two_ranks_of_moco_are_one_batch(folder: Path) -> None:
    test_moco.assert_ranks(folder / "moco")


def work(rank: int, folder: Path) -> None:
    """Be a rank of groups of three and then, without the last rank, of two."""
    for ranks in (3, 2):
        if rank < ranks:
            test_momentum.work(rank, ranks, str(folder / "shuffle"))
            test_paco.work(rank, ranks, str(folder / "paco"))
    if rank < 2:
        test_moco.work(rank, str(folder / "moco"))


if __name__ == "__main__":
    work(int(sys.argv[2]), Path(sys.argv[1]))
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
