"""Runs as jobs of Slurm: submitted, waited for, and never submitted twice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchformer.lab.engine.interrupt import Interrupted, stop_requests
from batchformer.lab.runs.folder import RECORD as RECORD
from batchformer.lab.runs.folder import read_json, write_json
from batchformer.lab.runs.launch import Launch, say_ended, still_to_train
from batchformer.lab.runs.run import Run

#: What Slurm calls jobs that will still do something.
IN_QUEUE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED")
#: Seconds until a file that another machine wrote is seen.
SEEN_LATE_S = 10.0


def submit(launch: Launch, runs: Sequence[Run]) -> list[tuple[Run, Any]]:
    """Submit what has neither finished nor a job in the queue; say which jobs these are.

    Returns:
        Runs with their jobs, those that were in the queue already among them.
    """
    executor, missing = launch.executor(), still_to_train(runs)
    above = launch.root / launch.name
    keys = {run.folder: run.folder.relative_to(above).as_posix() for run in missing}
    before = queued(above / RECORD, keys.values())
    new = [run for run in missing if keys[run.folder] not in before]
    try:
        jobs = executor.submit_array([launch.job_of(run) for run in new]) if new else []
    except RuntimeError as error:  # what sbatch had to say
        raise ValueError(f"Slurm did not take the jobs: {str(error).strip()}") from error
    begun = {keys[run.folder]: job for run, job in zip(new, jobs, strict=True)}
    if begun:
        _remember(above / RECORD, launch.folder, begun)
    print(f"{len(runs) - len(missing)} of {len(runs)} runs have finished.")
    for run in missing:
        key = keys[run.folder]
        job, state = (begun[key], "submitted") if key in begun else (before[key], "already there")
        print(f"{run.title}: job {job.job_id}, {state}")
    if missing:
        print(f"Logs: {launch.folder}")
        page = above / "report.html"
        print(f"Report of what has finished: batchformer report {above} --to {page}", flush=True)
    return [(run, (before | begun)[keys[run.folder]]) for run in missing]


def wait_for(submitted: Sequence[tuple[Run, Any]], quiet: bool = False, every: float = 5) -> None:
    """Wait until all jobs have ended, and say how.

    Raises:
        Interrupted: a signal came; jobs are left to themselves.
    """
    waiting = list(submitted)
    with stop_requests() as request:
        while waiting and not request.signal_number:
            for one in [one for one in waiting if one[1].done()]:
                waiting.remove(one)
                end = time.monotonic() + SEEN_LATE_S
                while not one[0].finished and time.monotonic() < end:
                    time.sleep(0.1)
                say_ended(*one, quiet)
            time.sleep(every if waiting else 0)
    if request.signal_number and waiting:
        words = f"No longer waiting for {len(waiting)} jobs, which go on without."
        raise Interrupted(request.signal_number, words)


def queued(record: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Those of these runs that a record names a job of which is waiting or running."""
    from submitit import SlurmJob

    known = _recorded(record)
    # All of them first: then Slurm is asked once for all.
    jobs = {key: SlurmJob(known[key]["folder"], known[key]["job"]) for key in keys if key in known}
    return {
        key: job
        for key, job in jobs.items()
        if not job.paths.result_pickle.exists() and job.state.split(" ")[0] in IN_QUEUE
    }


def not_begun(folder: Path) -> list[str]:
    """A line for each run at or below a folder that was submitted and has not begun."""
    return [
        f"{record.parent / key} (job {one['job']})"
        for record in sorted({*folder.glob(RECORD), *folder.glob(f"*/{RECORD}")})
        for key, one in _recorded(record).items()
        if not (record.parent / key / "config.json").exists()
    ]


def _recorded(record: Path) -> Mapping[str, Mapping[str, str]]:
    jobs: Mapping[str, Mapping[str, str]] = {}
    return read_json(record, "jobs")["jobs"] if record.exists() else jobs


def _remember(record: Path, folder: Path, jobs: Mapping[str, Any]) -> None:
    new = {key: {"job": job.job_id, "folder": str(folder)} for key, job in jobs.items()}
    write_json(record, {"jobs": {**_recorded(record), **new}})
