"""Running a study: its jobs as processes, one after the other, each result kept; the same command goes on."""

from __future__ import annotations

import json
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


def run_jobs(folder: Path, jobs: Sequence[Job]) -> list[str]:
    """Do what has not been done; gives back the names of the jobs that failed, or that need one which did.

    Jobs that time something come last. Their logs are in folder/logs.
    """
    with in_one_line(f"cannot write to {folder}"):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    records = Records(folder)
    left = _to_do(records, jobs)
    failed: list[str] = []
    with tqdm(total=len(jobs), initial=len(jobs) - len(left), unit="job", desc="study") as bar:
        for job in sorted(left, key=lambda job: job.kind == "time"):  # otherwise as planned: what others need is first
            bar.set_postfix_str(job.name)
            if set(job.needs) & set(failed) or not _done(records, job):
                failed.append(job.name)
            bar.update()
    return failed


def _to_do(records: Records, jobs: Sequence[Job]) -> list[Job]:
    """Jobs without a result, and those whose product they need and which is not there: results are small and travel,
    adapters stay behind on the machine that trained them."""
    left = [job for job in jobs if records.of(job) is None]
    needed = {need for job in left for need in job.needs}
    gone = [job for job in jobs if job.name in needed and job.makes and not job.made(records.folder).exists()]
    return [job for job in jobs if job in left or job in gone]


def _done(records: Records, job: Job) -> bool:
    """Run a job and keep its result, its last line of output; False where it failed. Interrupted, it saves and ends."""
    records.forget(job)
    log, started = records.folder / "logs" / f"{job.name}.txt", time.monotonic()
    asked: list[int] = []  # signals to end; they raise nothing, a job that is just being started would be lost
    with on_stop_signal(lambda number, _: asked.append(number)):
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "rti", *job.words(records.folder)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C reaches it through us, once
            )
        while process.poll() is None:
            if asked:
                process.send_signal(signal.SIGTERM)
                process.wait()
            time.sleep(0.05)
        done = process.returncode == 0 and _keep(records, job, time.monotonic() - started, log)
    if asked:
        raise KeyboardInterrupt
    return done


def _keep(records: Records, job: Job, seconds: float, log: Path) -> bool:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    try:
        records.keep(job, seconds, json.loads(lines[-1]))
        return True
    except (ValueError, LookupError, TypeError, OSError) as error:  # InputError is a ValueError
        with log.open("a", encoding="utf-8") as file:
            file.write(f"the study cannot keep what this job left: {error}\n")
        return False
