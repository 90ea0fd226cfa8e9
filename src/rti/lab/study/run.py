"""Running a study: its jobs as processes, a few at a time, each result kept; the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm.auto import tqdm

from rti.files import in_one_line
from rti.lab.study.plan import Job
from rti.lab.study.records import Records
from rti.training.signals import on_stop_signal


def run_jobs(folder: Path, jobs: Sequence[Job], workers: int = 2) -> list[str]:
    """Do what has not been done; gives back the names of the jobs that failed. Their logs are in folder/logs.

    Jobs that time something come last, one by one. Interrupted, it stops its processes, which save where they are.
    """
    with in_one_line(f"cannot write to {folder}"):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    records = Records(folder)
    left = _to_do(records, jobs)
    timings = [job for job in left if job.kind == "time"]
    failed: list[str] = []
    with tqdm(total=len(jobs), initial=len(jobs) - len(left), unit="job", desc="study") as bar:
        _run(records, [job for job in left if job not in timings], workers, failed, bar)
        _run(records, timings, 1, failed, bar)
    return failed


def _run(records: Records, waiting: list[Job], workers: int, failed: list[str], bar: tqdm) -> None:
    """So many at a time. The name of a job that fails, or that needs one which did, is added to `failed`."""
    running: dict[Job, tuple[subprocess.Popen, float]] = {}
    asked: list[int] = []  # signals to end; they raise nothing, a job that is just being started would be lost
    try:
        with on_stop_signal(lambda number, _: asked.append(number)):
            while waiting or running:
                if asked:
                    raise KeyboardInterrupt
                for job in [*waiting]:  # those that others need come first, so failure is handed on in one go
                    if set(job.needs) & set(failed):
                        failed.append(job.name)
                        waiting.remove(job)
                not_done = {job.name for job in (*waiting, *running)}
                ready = [job for job in waiting if not not_done & set(job.needs)]
                for job in ready[: workers - len(running)]:
                    waiting.remove(job)
                    records.forget(job)
                    running[job] = (_start(records.folder, job, workers), time.monotonic())
                    bar.set_postfix_str(", ".join(one.name for one in running))
                for job in [job for job, (process, _) in running.items() if process.poll() is not None]:
                    process, started = running.pop(job)
                    if process.returncode != 0 or not _keep(records, job, time.monotonic() - started):
                        failed.append(job.name)
                    bar.update()
                time.sleep(0.05)
    finally:
        for process, _ in running.values():
            process.send_signal(signal.SIGTERM)
        for process, _ in running.values():
            process.wait()


def _to_do(records: Records, jobs: Sequence[Job]) -> list[Job]:
    """Jobs without a result, and those whose product they need and which is not there: results are small and travel,
    adapters stay behind on the machine that trained them."""
    left = [job for job in jobs if records.of(job) is None]
    needed = {need for job in left for need in job.needs}
    gone = [job for job in jobs if job.name in needed and job.makes and not job.made(records.folder).exists()]
    return [job for job in jobs if job in left or job in gone]


def _start(folder: Path, job: Job, workers: int) -> subprocess.Popen:
    threads = max(1, (os.cpu_count() or 1) // workers)
    with open(folder / "logs" / f"{job.name}.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rti", *job.words(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": str(threads)} | os.environ,  # unless the user has said how many
            start_new_session=True,  # a Ctrl-C reaches them through us, once
        )


def _keep(records: Records, job: Job, seconds: float) -> bool:
    """Keep the result of a job that ended, its last line of output; False where there is none."""
    log = records.folder / "logs" / f"{job.name}.txt"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    try:
        records.keep(job, seconds, json.loads(lines[-1]))
        return True
    except (ValueError, LookupError, TypeError, OSError) as error:  # InputError is a ValueError
        with log.open("a", encoding="utf-8") as file:
            file.write(f"the study cannot keep what this job left: {error}\n")
        return False
