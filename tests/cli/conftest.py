"""Commands as a fresh process answers them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from batchformer.cli import main as cli

#: Calls commands one after the other in a process that has loaded nothing before.
CALLS = """
import contextlib, io, json, sys, time, traceback
from batchformer.cli.main import main

answers = []
for arguments in json.loads(sys.argv[1]):
    said, code, started = io.StringIO(), 0, time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
    seconds = time.process_time() - started
    answers.append((code, said.getvalue(), seconds, "torch" in sys.modules))
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    """What a command ended with.

    Args:
        code: exit code.
        said: all that it printed.
        seconds: of computing; waiting for other processes does not count.
        torch_is_loaded: by this command or one before it.
    """

    code: int
    said: str
    seconds: float
    torch_is_loaded: bool

    @property
    def words(self) -> str:
        return " ".join(self.said.replace("│", " ").split())


def ask(calls: Sequence[Sequence[str]], before: str = "", data: Path | None = None) -> list[Answer]:
    """What one process answers.

    Args:
        calls: arguments of each command.
        before: code that is run first.
        data: working directory, and where data is looked for.
    """
    env = {**os.environ, "COLUMNS": "200"}
    if data is not None:
        env["BATCHFORMER_DATA"] = str(data)
    command = [sys.executable, "-c", before + CALLS, json.dumps(list(calls))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=data)
    return [Answer(*answer) for answer in json.loads(done.stdout)]


@pytest.fixture
def failing(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Calls a command that fails; gives its exit code and its words."""

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return int(stop.value.code or 0), " ".join((seen.err + seen.out).replace("│", " ").split())

    return call


@pytest.fixture(scope="session")
def answers() -> Callable[..., list[Answer]]:
    """Calls several commands in one fresh process."""
    return ask
