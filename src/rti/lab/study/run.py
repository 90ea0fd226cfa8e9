"""Running a study: its jobs as processes, a few at a time, each result kept; the same command goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from rti.errors import InputError
from rti.files import write_whole
from rti.lab.study.plan import Job


def result_of(folder: Path, job: Job) -> dict[str, Any] | None:
    """What a job printed, or None if it has not been done. Refuses the result of another command of that name."""
    kept = kept_of(folder, job)
    return None if kept is None else kept["result"]


def kept_of(folder: Path, job: Job) -> dict[str, Any] | None:
    """A job's command, result and seconds, as `_finish` keeps them."""
    from rti.files import read_json

    path = folder / "jobs" / f"{job.name}.json"
    if not os.path.isfile(path):
        return None
    try:
        kept = read_json(path)
        command, _ = [*map(str, kept["command"])], kept["result"]
    except (InputError, KeyError, TypeError):
        raise InputError(f"{path} is damaged; delete it to do the job again") from None
    if not _is_same(command, job.command, folder):
        raise InputError(f"{path} is the result of another command ({' '.join(command)}); choose another folder")
    return kept


def _is_same(kept: Sequence[str], command: Sequence[str], folder: Path) -> bool:
    """Whether two commands do the same; what lies in the study's folder may have lain elsewhere: folders are copied."""

    def moved(before: str, now: str) -> bool:
        inside = now.startswith(f"{folder}{os.sep}") if folder != Path() else os.sep in now
        return inside and before.endswith(os.sep + os.path.relpath(now, folder))

    return len(kept) == len(command) and all(
        before == now or moved(before, now) for before, now in zip(kept, command, strict=True)
    )


def run_jobs(folder: Path, jobs: Sequence[Job], workers: int = 2) -> list[str]:
    """Do what has not been done; gives back the names of the jobs that failed. Their logs are in folder/logs.

    Jobs that time something wait until they are alone. Interrupted, it stops its processes, which save where they are.
    """
    for name in ("jobs", "logs"):
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    waiting = _to_do(folder, jobs)
    names = {job.name for job in jobs}
    unknown = sorted({need for job in jobs for need in job.needs} - names)
    if unknown:
        raise InputError(f"jobs need {', '.join(unknown)}, which are not in the study")
    running: dict[Job, tuple[subprocess.Popen, float]] = {}
    failed: list[str] = []
    with tqdm(total=len(jobs), initial=len(jobs) - len(waiting), unit="job", desc="study") as bar:
        try:
            with _asked_to_stop() as asked:
                while waiting or running:
                    if asked:
                        raise KeyboardInterrupt
                    open_names = {job.name for job in (*waiting, *running)} | set(failed)
                    for job in _startable(waiting, running, open_names, workers):
                        waiting.remove(job)
                        running[job] = (_start(folder, job, workers), time.monotonic())
                        bar.set_postfix_str(", ".join(one.name for one in running))
                    for job in [job for job, (process, _) in running.items() if process.poll() is not None]:
                        process, started = running.pop(job)
                        if not _finish(folder, job, process.returncode, time.monotonic() - started):
                            failed.append(job.name)
                            waiting = _without_those_that_need(job.name, waiting, failed)
                        bar.update()
                    time.sleep(0.05)
        finally:
            for process, _ in running.values():
                process.send_signal(signal.SIGTERM)
            for process, _ in running.values():
                process.wait()
    return failed


def _to_do(folder: Path, jobs: Sequence[Job]) -> list[Job]:
    """Jobs without a result, and those whose product they need and which is not there: results are small and travel,
    adapters stay behind on the machine that trained them."""
    wanted = {job.name for job in jobs if result_of(folder, job) is None}
    needed = {need for job in jobs if job.name in wanted for need in job.needs}
    wanted |= {job.name for job in jobs if job.name in needed and job.makes is not None and not job.makes.exists()}
    return [job for job in jobs if job.name in wanted]


def _startable(waiting: list[Job], running: dict, open_names: set[str], workers: int) -> list[Job]:
    if any(job.alone for job in running):
        return []
    ready = [job for job in waiting if not open_names & set(job.needs)]
    beside = [job for job in ready if not job.alone][: workers - len(running)]
    if beside or running:
        return beside
    return [job for job in ready if job.alone][:1]  # timings come last, one by one


def _start(folder: Path, job: Job, workers: int) -> subprocess.Popen:
    # One that is done again is not done until it ends: interrupted, it leaves half a product behind.
    (folder / "jobs" / f"{job.name}.json").unlink(missing_ok=True)
    cores = os.cpu_count() or 1
    threads = cores if job.alone else max(1, cores // workers)
    with open(folder / "logs" / f"{job.name}.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rti", *job.command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": str(threads)} | os.environ,  # unless the user has said how many
            start_new_session=True,  # a Ctrl-C reaches them through us, once
        )


def _finish(folder: Path, job: Job, code: int, seconds: float) -> bool:
    """Keep the result of a job that ended; False where it did not end well."""
    lines = (folder / "logs" / f"{job.name}.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if code != 0 or not lines:
        return False
    with contextlib.suppress(ValueError):
        values = {"command": list(job.command), "seconds": round(seconds, 1), "result": json.loads(lines[-1])}
        write_whole(folder / "jobs" / f"{job.name}.json", json.dumps(values) + "\n")
        return True
    return False


def _without_those_that_need(name: str, waiting: list[Job], failed: list[str]) -> list[Job]:
    """Jobs that cannot be done any more fail with what they need."""
    left = [job for job in waiting if name not in job.needs]
    for job in waiting:
        if name in job.needs:
            failed.append(job.name)
            left = _without_those_that_need(job.name, left, failed)
    return left


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Fills with the signals that ask us to end. They raise nothing: a job that is just being started would be lost."""
    asked: list[int] = []
    before = {
        one: signal.signal(one, lambda number, _: asked.append(number)) for one in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
