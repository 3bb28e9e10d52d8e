"""``python -m batchformer`` is the command."""

import subprocess
import sys


def test_the_module_runs() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "batchformer", "--version"], capture_output=True, text=True
    )
    assert result.stdout == "0.1.0\n"
