"""Options of jobs on a cluster, and submitit's executor for them; nothing here needs torch."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchformer.lab.config.training import above_zero, at_least, require, require_limits

Launcher = Literal["none", "local", "slurm"]

#: Seconds between Slurm's warning and the end of a job: time to end the update and to save.
WARNING_S = 120
#: Minutes of a job on this machine: no limit in practice.
UNLIMITED_MIN = 365 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Jobs of --launcher slurm, one for every run; local jobs use only folder and at-once."""

    partition: str | None = None
    """Partition of the cluster; by default the cluster's default."""
    time: int = at_least(1, 240)
    """Minutes until a job is stopped; its run is saved, queued again, and continues from there."""
    timeouts: int = at_least(0, 20)
    """How often a run may reach that limit before it fails."""
    gpus: int = 1
    """GPUs of a job, 0 or 1."""
    cpus: int = at_least(1, 4)
    """Processor cores of a job; it needs one, and one for each of --train.workers."""
    memory: float = above_zero(32.0)
    """Gigabytes of memory of a job."""
    at_once: int | None = at_least(1, None)
    """Jobs that run at the same time; by default up to 256, and local one for each GPU, or one."""
    folder: Path | None = None
    """Folder of logs and job files, yours alone; by default RUNS/RECIPE/jobs."""
    setup: tuple[str, ...] = ()
    """Lines of shell that a job begins with, such as 'module load cuda'."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch as NAME=VALUE, or NAME, such as account=mine constraint=a100."""

    def __post_init__(self) -> None:
        require_limits(self, "jobs")
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
    further: dict[str, str | bool] = {"requeue": True}  # off by default on some clusters
    for option in config.extra:
        key, given, value = option.partition("=")
        # Spelled as submitit spells its own options, so that it replaces them.
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
    """Refuse a launcher that cannot submit jobs here."""
    try:
        import submitit  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"--launcher {launcher} needs submitit: pip install 'batchformer[cluster]'"
        ) from error
    missing = [tool for tool in ("sbatch", "srun") if shutil.which(tool) is None]
    if launcher == "slurm" and missing:
        raise ValueError(
            f"--launcher slurm: there is no {' and no '.join(missing)} here. Run it on a machine "
            "of the cluster that can submit jobs, or train here by --launcher local."
        )


def executor_of(launcher: Launcher, config: JobConfig, folder: Path, name: str) -> Any:
    """Submitit's executor of jobs; :func:`ensure_launcher` says if there can be none."""
    import submitit

    make_private_folder(folder)
    executor = submitit.AutoExecutor(folder, launcher, slurm_max_num_timeout=config.timeouts)
    if launcher == "slurm":
        executor.update_parameters(**slurm_parameters(config, name))
    else:
        executor.update_parameters(timeout_min=UNLIMITED_MIN)
    return executor


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user may write to, since a job runs the programs in it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ValueError(
            f"Others may write to {folder}, and a job runs the programs in it. Take that right "
            f"from them, chmod go-w {folder}, or name a folder of your own: --jobs.folder"
        )
