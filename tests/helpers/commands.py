"""Commands as a fresh process answers them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
    """What a command ended with."""

    code: int
    said: str
    seconds: float  # of computing; waiting for other processes does not count
    torch_is_loaded: bool  # by this command or one before it

    @property
    def words(self) -> str:
        return " ".join(self.said.replace("│", " ").split())


def ask(calls: Sequence[Sequence[str]], before: str = "", data: Path | None = None) -> list[Answer]:
    """What one process answers to the arguments of each command, after some code.

    `data` is its working directory, and where data is looked for.
    """
    env = {**os.environ, "COLUMNS": "200"}
    if data is not None:
        env["BATCHFORMER_DATA"] = str(data)
    command = [sys.executable, "-c", before + CALLS, json.dumps(list(calls))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=data)
    return [Answer(*answer) for answer in json.loads(done.stdout)]
