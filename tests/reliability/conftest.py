"""Commands as a person gives them, and what a person then reads."""

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
    """What a command says that ends with 1 (or another code), in words and without a traceback."""

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
    """A folder of runs with one that has finished; not to be changed."""
    root = tmp_path_factory.mktemp("trained") / "runs"
    cli.main(train(root, OPTIONS))
    return root


@pytest.fixture
def runs(tmp_path: Path, trained: Path) -> Path:
    """The same for each test alone, and not finished, so that its command would go on."""
    copy = tmp_path / "runs"
    shutil.copytree(trained, copy)
    (folder_of(copy) / "result.json").unlink()
    return copy


@pytest.fixture
def again(runs: Path) -> list[str]:
    """The command that goes on with it."""
    return train(runs, OPTIONS)
