"""Commands as users type them, and what they then read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from batchformer.cli import main as cli
from soak.kills import folder_of, train

OPTIONS = ("--train.updates", "4", "--train.eval-every", "2", "--train.checkpoint-every", "2")

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must exit with 1 (or another code); returns its message."""

    def call(*arguments: object, code: int = 1) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr().err
        assert end.value.code == code, said
        assert "Traceback" not in said
        return said

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run; do not change it."""
    root = tmp_path_factory.mktemp("trained") / "runs"
    cli.main(train(root, OPTIONS))
    return root


@pytest.fixture
def runs(tmp_path: Path, trained: Path) -> Path:
    """A copy for one test, with the result removed, so that the command would resume."""
    copy = tmp_path / "runs"
    shutil.copytree(trained, copy)
    (folder_of(copy) / "result.json").unlink()
    return copy


@pytest.fixture
def again(runs: Path) -> list[str]:
    """The command that resumes it; its figures are there already."""
    return train(runs, (*OPTIONS, "--train.no-figures"))
