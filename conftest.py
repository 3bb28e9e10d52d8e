"""What pytest needs to know before any test: kernels to leave alone, and what this CPU can do."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from batchformer.lab.engine.onednn import limit_if_products_die

collect_ignore_glob = (
    []
    if find_spec("triton")
    else ["src/batchformer/kernels/*.py", "src/batchformer/lab/models/kernels/*.py"]
)

LIMIT = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Limit oneDNN before any test uses it; xdist's workers and tests' processes inherit that."""
    if line := limit_if_products_die():
        config.stash[LIMIT] = line


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say that oneDNN is limited; what is printed earlier is captured, or hidden by -q."""
    if line := terminalreporter.config.stash.get(LIMIT, None):
        terminalreporter.write_line(line)
