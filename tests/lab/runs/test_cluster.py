"""What a cluster is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.runs.cluster import (
    JobConfig,
    executor_of,
    make_private_folder,
    slurm_parameters,
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs by the names of Slurm's, which do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def parameters(folder: Path, **options: Any) -> dict[str, Any]:
    executor = executor_of("slurm", JobConfig(**options), folder / "jobs", "mine/level")
    found: dict[str, Any] = executor.parameters
    return found


def test_options_reach_slurm_under_its_names(slurm: Path, tmp_path: Path) -> None:
    asked = parameters(
        tmp_path, partition="gpu", time=90, cpus=6, memory=12.5, at_once=3, setup=("module load x",)
    )
    assert asked == {
        "job_name": "mine-level",
        "partition": "gpu",
        "time": 90,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": 6,
        "gpus_per_node": 1,
        "mem": "12800MB",
        "array_parallelism": 3,
        "setup": ["module load x"],
        "signal_delay_s": 120,
        "additional_parameters": {"requeue": True},
    }


def test_what_is_not_said_is_left_to_the_cluster(slurm: Path, tmp_path: Path) -> None:
    asked = parameters(tmp_path, gpus=0)
    assert not {"partition", "gpus_per_node", "array_parallelism", "setup"} & set(asked)
    assert asked["time"] == 240


def test_any_option_of_sbatch_can_be_given() -> None:
    extra = ("account=mine", "--gres=gpu:a100:1", "exclusive", "comment=a=b", "cpus-per-task=9")
    further = slurm_parameters(JobConfig(extra=extra), "demo")["slurm_additional_parameters"]
    assert further == {
        "requeue": True,
        "account": "mine",
        "gres": "gpu:a100:1",
        "exclusive": True,
        "comment": "a=b",
        "cpus_per_task": "9",
    }


def test_timeouts_are_counted_by_submitit(slurm: Path, tmp_path: Path) -> None:
    executor = executor_of("slurm", JobConfig(timeouts=7), tmp_path / "jobs", "demo")
    assert executor._executor.max_num_timeout == 7


def test_local_jobs_have_no_end(tmp_path: Path) -> None:
    executor = executor_of("local", JobConfig(time=1), tmp_path / "jobs", "demo")
    assert executor.parameters["timeout_min"] > 1e5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": 0}, r"jobs\.time is 0"),
        ({"cpus": 0}, r"jobs\.cpus is 0"),
        ({"memory": 0.0}, r"jobs\.memory is 0"),
        ({"timeouts": -1}, r"jobs\.timeouts is -1"),
        ({"at_once": 0}, r"jobs\.at-once is 0"),
        ({"gpus": 2}, r"jobs\.gpus is 2.*docs/cluster\.md"),
        ({"extra": ("=x",)}, r"jobs\.extra '=x' has an option without a name"),
    ],
)
def test_values_without_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JobConfig(**options)


def test_the_folder_of_jobs_is_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "runs/demo/jobs"
    make_private_folder(folder)
    make_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(ValueError, match=r"Others may write to .*chmod go-w"):
        make_private_folder(folder)
