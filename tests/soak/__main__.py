"""Run all soak tests, with a table and a JSON file: ``PYTHONPATH=tests python -m soak``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from batchformer.insight.files import write_atomically
from soak.full_disk import Full, file_limit, small_disk
from soak.kills import Kill, Unbroken, killed, moments, unbroken
from soak.memory import memory_of_a_run
from soak.nodes import (
    NODES,
    RANKS,
    apart,
    one_node_killed,
    one_process,
    one_rank_killed,
    two_nodes,
)

#: The largest allowed growth of memory between windows of a long training.
FLAT = 0.01
#: The largest allowed difference between several ranks and one process, in weights and scores.
CLOSE = 1e-5
#: Checkpoints that the short training writes.
WRITES = 15

#: Names of the trials.
TRIALS = ("kills", "memory", "disk", "nodes")

Row = dict[str, Any]


def soak(
    to: Path,
    kills: int = 50,
    updates: int = 2000,
    seed: int = 0,
    only: Sequence[str] = TRIALS,
) -> list[Row]:
    """Run the trials, print a table, and write ``soak.json`` to a folder; gives the rows.

    A row says what was tried, whether it ``passed`` (None: it could not be tried), and its figures.
    """
    began, root = time.perf_counter(), Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        rows = []
        if {"kills", "disk"} & set(only):
            whole = unbroken(root)
        if "kills" in only:
            rows.append(_kills(root, whole, kills, seed))
        if "memory" in only:
            rows.append(_memory(root, updates))
        if "disk" in only:
            rows.append(_disk("file size limit", file_limit, root / "limited", whole))
            rows.append(_disk("full disk (8 MB)", small_disk, root / "disk", whole))
        if "nodes" in only:
            rows += _nodes(root / "nodes")
    finally:
        shutil.rmtree(root)
    minutes = round((time.perf_counter() - began) / 60, 1)
    content = {"seed": seed, "minutes": minutes, "rows": rows}
    write_atomically(to / "soak.json", (json.dumps(content, indent=2) + "\n").encode())
    for row in rows:
        state = {True: "passed", False: "FAILED", None: "not tried"}[row["passed"]]
        print(f"{row['what']:<18} {state:<10} {row['words']}")
    print(f"{minutes} minutes; {to / 'soak.json'}")
    return rows


def _kills(root: Path, whole: Unbroken, count: int, seed: int) -> Row:
    done: list[Kill] = []
    # A training may end before its moment; twice as many moments are always enough.
    for number, moment in enumerate(moments(2 * count, seed, whole.seconds, WRITES)):
        if len(done) == count:
            break
        place = root / f"kill{number}"
        kill = killed(place, whole, moment)
        if kill is not None:
            done.append(kill)
        shutil.rmtree(place)
    inside = sum("write" in kill.moment for kill in done)
    equal = sum(not kill.differences for kill in done)
    torn = sum(bool(kill.unreadable) for kill in done)
    partial = sum(kill.partial > 0 for kill in done)
    words = (
        f"{len(done)} kills, {inside} inside a checkpoint's write; {equal} resumed bit-equal; "
        f"{partial} left a partial file, {torn} a damaged file with its final name"
    )
    return {
        "what": "kills",
        "passed": len(done) == count == equal and torn == 0,
        "words": words,
        "kills": [dataclasses.asdict(kill) for kill in done],
    }


def _memory(root: Path, updates: int) -> Row:
    found = memory_of_a_run(root / "long", updates, updates // 4, updates // 8)
    least, most = min(found.megabytes), max(found.megabytes)
    words = f"{updates:,} updates: {least:.1f} to {most:.1f} MB after {found.warm_up}, "
    words += f"{100 * found.spread:.2f}% apart"
    row = dataclasses.asdict(found)
    return {"what": "memory", "passed": found.spread <= FLAT, "words": words, **row}


def _disk(what: str, meet: Callable[[Path, Unbroken], Full], place: Path, whole: Unbroken) -> Row:
    try:
        found = meet(place, whole)
    except PermissionError as error:
        return {"what": what, "passed": None, "words": str(error)}
    clear = found.code == 1 and not found.traceback and "could not be written" in found.message
    row = dataclasses.asdict(found)
    passed = clear and found.intact and not found.partial and not found.differences
    words = f"exit {found.code}; the last checkpoint is {'' if found.intact else 'NOT '}intact; "
    words += "resumed bit-equal" if not found.differences else f"differs: {found.differences}"
    return {"what": what, "passed": passed, "words": words, **row}


def _nodes(root: Path) -> list[Row]:
    """Two nodes against one process, and with a node or a rank killed."""
    one = one_process(root / "one")
    both = two_nodes(root / "both")
    broken = one_node_killed(root / "broken")
    again = one_rank_killed(root / "again")
    rows = []
    for what, found, against, more in (
        ("two nodes", both, one, f"{NODES} agents with {RANKS} ranks each against one process"),
        (
            "a node killed",
            broken.folder,
            both,
            f"{broken.processes} processes killed after update {broken.update}, and started again",
        ),
        (
            "a rank killed",
            again.folder,
            one,
            f"one of {RANKS} killed after update {again.update}, all started again by the agent",
        ),
    ):
        far = apart(against, found)
        words = f"{more}: weights {far.weights:.1e} apart, scores {far.scores:.1e}"
        passed = max(dataclasses.astuple(far)) <= CLOSE
        rows.append({"what": what, "passed": passed, "words": words, **dataclasses.asdict(far)})
    return rows


def main() -> None:
    """From the command line; exits with 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("runs/soak"), help="folder of the result")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=TRIALS, default=TRIALS)
    options = parser.parse_args()
    rows = soak(options.to, options.kills, options.updates, options.seed, options.only)
    if any(row["passed"] is False for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
