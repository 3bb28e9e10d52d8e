"""What a cluster is asked for: options of jobs, and what submitit makes of them; without torch."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchformer.lab.config.training import require

Launcher = Literal["none", "local", "slurm"]

#: Seconds between Slurm's warning and the end of a job: for the update, and to save.
WARNING_S = 120
#: Minutes of a job on this machine, where nobody else waits for its place.
UNLIMITED_MIN = 365 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Jobs of --launcher slurm, one for every run; local jobs heed the folder and at-once alone."""

    partition: str | None = None
    """Partition of the cluster; by default its own."""
    time: int = 240
    """Minutes until a job is stopped; its run is saved, queued again, and goes on from there."""
    timeouts: int = 20
    """How often a run may reach that limit before it is given up."""
    gpus: int = 1
    """GPUs of a job, 0 or 1."""
    cpus: int = 4
    """Processor cores of a job; it needs one, and one for each of --train.workers."""
    memory: float = 32.0
    """Gigabytes of memory of a job."""
    at_once: int | None = None
    """Jobs that run at the same time; by default up to 256, and local one for each GPU, or one."""
    folder: Path | None = None
    """Folder of logs and job files, yours alone; by default RUNS/RECIPE/jobs."""
    setup: tuple[str, ...] = ()
    """Lines of shell that a job begins with, such as 'module load cuda'."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch as NAME=VALUE, or NAME, such as account=mine constraint=a100."""

    def __post_init__(self) -> None:
        for name in ("time", "cpus"):
            value = getattr(self, name)
            require(value >= 1, f"jobs.{name} is {value} and must be at least 1")
        require(self.timeouts >= 0, f"jobs.timeouts is {self.timeouts}, below 0")
        require(self.memory > 0, f"jobs.memory is {self.memory} and must be above 0")
        require(
            self.at_once is None or self.at_once >= 1,
            f"jobs.at-once is {self.at_once} and must be at least 1",
        )
        require(
            self.gpus in (0, 1),
            f"jobs.gpus is {self.gpus}: a job has one GPU, or none; docs/cluster.md says how one "
            "run takes several",
        )
        require(
            all(option.partition("=")[0].strip("-") for option in self.extra),
            f"jobs.extra {' '.join(self.extra)!r} has an option without a name",
        )


def slurm_parameters(config: JobConfig, name: str) -> dict[str, Any]:
    """The options as submitit names them.

    >>> slurm_parameters(JobConfig(extra=("mail-type=END",)), "demo")["slurm_additional_parameters"]
    {'requeue': True, 'mail_type': 'END'}
    """
    further: dict[str, str | bool] = {"requeue": True}  # some clusters have it off
    for option in config.extra:
        key, given, value = option.partition("=")
        # With the spelling of submitit's own, so that it takes their place.
        further[key.strip("-").replace("-", "_")] = value if given else True
    asked = {
        "name": name.replace("/", "-"),
        "timeout_min": config.time,
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": config.cpus,
        "gpus_per_node": config.gpus or None,
        "mem_gb": config.memory,
        "slurm_partition": config.partition,
        "slurm_array_parallelism": config.at_once,
        "slurm_setup": list(config.setup) or None,
        "slurm_signal_delay_s": WARNING_S,
        "slurm_additional_parameters": further,
    }
    return {key: value for key, value in asked.items() if value is not None}


def ensure_launcher(launcher: Launcher) -> None:
    """Refuse to begin where jobs cannot be submitted.

    Raises:
        ImportError: submitit is not installed.
        ValueError: this is no cluster.
    """
    try:
        import submitit  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"--launcher {launcher} needs submitit: pip install 'batchformer[cluster]'"
        ) from error
    missing = [tool for tool in ("sbatch", "srun") if shutil.which(tool) is None]
    if launcher == "slurm" and missing:
        raise ValueError(
            f"--launcher slurm: there is no {' and no '.join(missing)} here. Call it on a machine "
            "of the cluster from which jobs are submitted, or train here by --launcher local."
        )


def executor_of(launcher: Launcher, config: JobConfig, folder: Path, name: str) -> Any:
    """Submitit's executor of jobs.

    Args:
        launcher: where jobs run.
        config: what they are given.
        folder: of logs and job files.
        name: of the jobs, in the queue.

    Raises:
        ImportError: submitit is not installed.
        ValueError: this is no cluster, or others could put jobs into the folder.
    """
    ensure_launcher(launcher)
    import submitit

    own_folder(folder)
    executor = submitit.AutoExecutor(folder, launcher, slurm_max_num_timeout=config.timeouts)
    if launcher == "slurm":
        executor.update_parameters(**slurm_parameters(config, name))
    else:
        executor.update_parameters(timeout_min=UNLIMITED_MIN)
    return executor


def own_folder(folder: Path) -> None:
    """Make a folder that nobody else may write to: a job runs what it finds there.

    Raises:
        ValueError: it is there, and others may.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ValueError(
            f"Others may write to {folder}, and a job runs whatever program lies there. Take the "
            f"right from them: chmod go-w {folder}, or name a folder of your own: --jobs.folder"
        )
