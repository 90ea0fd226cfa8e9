"""`rti study`: a fair comparison of token reductions, from a list of rows to a table and figures."""

from __future__ import annotations

import shlex
import statistics
from pathlib import Path
from typing import Any

import typer

from rti.cli.options import command, number_option
from rti.cli.output import say
from rti.errors import InputError


@command
def study(
    plan: Path = typer.Argument(help="The study's JSON file: model, budgets, rows. See docs/study/study.json."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the study; the same command goes on in it."),
    workers: int = number_option(2, help="Jobs side by side, with the cores shared among them.", most=1024),
    only: str = typer.Option(None, help="Only these rows, such as merge-estimate,gaps."),
    kinds: str = typer.Option(None, help="Only these kinds of jobs (train, loss, pictures, time), and what they need."),
    report: bool = typer.Option(False, "--report", help="Run nothing; write the report of what is done."),
    dry_run: bool = typer.Option(
        False, "--dry-run", "--commands", help="Run nothing; show every job's command, and how long they take."
    ),
) -> dict[str, Any]:
    """Train, score and time every row of a study, and compare them.

    All rows share backbone, data, steps, budgets, prompts and noise; only the
    reduction differs. Every job is a command of rti; records.jsonl keeps what
    each left. Timings run last, with nothing beside them; on a busy machine, leave
    them for later: --kinds loss,pictures now, --kinds time when it is idle.
    Interrupted, the same command goes on. Writes results.json, table.md, leads.md
    (the first row against every other) and figures into the folder.
    """
    from rti.lab.study.plan import choose, read_study
    from rti.lab.study.records import Records
    from rti.lab.study.report import collect, save
    from rti.lab.study.run import run_jobs

    whole = read_study(plan)
    jobs = choose(whole, only, kinds)
    if dry_run:
        records = Records(output)
        kept = {job: records.of(job) for job in jobs}
        for job, done in kept.items():
            say(f"{'to do' if done is None else 'done'}: {shlex.join(['rti', *job.words(output)])}")
        done, hours = sum(done is not None for done in kept.values()), _hours_left(kept, workers)
        say(f"{done} of {len(jobs)} jobs are done; hours left: {'unknown' if hours is None else f'{hours:.1f}'}")
        return {"done": done, "jobs": len(jobs), "hours_left": hours}
    failed = [] if report else run_jobs(output, jobs, workers)
    values = collect(whole, output)
    figures, done = save(values, output), values["done"]
    say(f"{output}: {done} of {values['jobs']} jobs are done; results.json, tables (*.md) and {len(figures)} figures")
    if failed:
        raise InputError(f"{len(failed)} jobs failed: {', '.join(failed)}; see {output / 'logs'}")
    return {"output": str(output), "done": done, "jobs": values["jobs"]}


def _hours_left(kept: dict[Any, dict[str, Any] | None], workers: int) -> float | None:
    """How long the jobs take that are not done, at the pace of those of their kind that are; None if none is."""
    hours = 0.0
    for kind in {job.kind for job, done in kept.items() if done is None}:
        some = [done for job, done in kept.items() if job.kind == kind]
        seconds = [done["seconds"] for done in some if done is not None]
        if not seconds:
            return None
        hours += (len(some) - len(seconds)) * statistics.mean(seconds) / (1 if kind == "time" else workers) / 3600
    return hours
