"""A CPU that advertises AMX and does not allow it: a stand-in for the child dies as it would."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.engine import onednn

#: As a child that executes an instruction which the CPU refuses.
REFUSED = partial(signal.raise_signal, signal.SIGILL)
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit, also where this machine needs one; it is back after each test."""
    for name in (onednn.VARIABLE, onednn.OLD_VARIABLE):
        monkeypatch.setenv(name, "")  # so that it is restored, whatever a test leaves
        del os.environ[name]


def test_a_product_that_kills_its_child_limits_onednn_here_and_in_processes_started_here() -> None:
    line = onednn.limit_if_products_die(REFUSED)
    assert line and "advertises AMX" in line and "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in line
    code = "import os; print(os.environ['ONEDNN_MAX_CPU_ISA'])"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout.strip() == "AVX512_CORE_BF16"
    assert onednn.limit_if_products_die(REFUSED) is None, "said once"


@pytest.mark.parametrize("product", [lambda: None, lambda: 1 / 0])
def test_a_child_that_survives_limits_nothing(product: object) -> None:
    assert onednn.limit_if_products_die(product) is None  # type: ignore[arg-type]
    assert onednn.VARIABLE not in os.environ


@pytest.mark.parametrize("name", [onednn.VARIABLE, onednn.OLD_VARIABLE])
def test_a_persons_own_setting_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "AVX2")
    before = dict(os.environ)
    assert onednn.limit_if_products_die(REFUSED) is None and dict(os.environ) == before


def test_without_fork_a_fresh_interpreter_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert onednn.limit_if_products_die(REFUSED) is not None


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "PATIENCE_S", 0.1)
    assert onednn.limit_if_products_die(signal.pause) is None
    assert not multiprocessing.active_children()


def test_only_reduced_precision_on_a_cpu_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onednn, "_dies", lambda product: True)
    onednn.prepare(torch.device("cpu"), ["fp32", "tf32", "fp64"])
    onednn.prepare(torch.device("cuda"), ["bf16"])
    assert onednn.VARIABLE not in os.environ and capsys.readouterr().err == ""
    onednn.prepare(torch.device("cpu"), ["fp32", "bf16"])
    assert os.environ[onednn.VARIABLE] == "AVX512_CORE_BF16"
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_training_and_evaluation_in_bf16_on_a_cpu_try_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onednn, "_dies", lambda product: True)
    quick = ["--train.updates", "2", "--train.no-figures", "--quiet", "--device", "cpu"]
    cli.main(["train", "demo", *quick, "--train.precision", "bf16", "--runs", str(tmp_path)])
    assert "advertises AMX" in capsys.readouterr().err
    del os.environ[onednn.VARIABLE]
    cli.main(["evaluate", str(tmp_path / "demo/batchformer/seed0"), "--device", "cpu"])
    assert "advertises AMX" in capsys.readouterr().err


def test_the_suite_limits_itself_before_tests_and_says_so_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onednn, "_dies", lambda product: True)
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    assert spec and spec.loader
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    lines: list[str] = []
    config = SimpleNamespace(stash=pytest.Stash())
    reporter = SimpleNamespace(config=config, write_line=lines.append)
    conftest.pytest_terminal_summary(reporter)
    conftest.pytest_configure(config)
    assert not lines and os.environ[onednn.VARIABLE] == onednn.WITHOUT_AMX
    conftest.pytest_terminal_summary(reporter)
    assert len(lines) == 1 and "advertises AMX" in lines[0]
