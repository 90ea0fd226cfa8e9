"""`rti study`: a fair comparison of token reductions, from a list of rows to a table and figures."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from rti.cli.options import command
from rti.cli.output import say
from rti.errors import InputError


@command
def study(
    plan: Path = typer.Argument(help="The study's JSON file: model, budgets, rows. See docs/study/study.json."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the study; the same command goes on in it."),
    only: str = typer.Option(None, help="Only these rows, such as merge-estimate,gaps."),
    kinds: str = typer.Option(None, help="Only these kinds of jobs (train, loss, pictures, time), and what they need."),
    report: bool = typer.Option(False, "--report", help="Run nothing; write the report of what is done."),
    dry_run: bool = typer.Option(
        False, "--dry-run", "--commands", help="Run nothing; show commands, and which are done."
    ),
) -> dict[str, Any]:
    """Train, score and time every row of a study, and compare them.

    All rows share backbone, data, steps, budgets, prompts and noise; only the
    reduction differs. Every job is a command of rti; records.jsonl keeps what
    each left. Timings run last; on a busy machine, leave them for later: --kinds
    loss,pictures now, --kinds time when it is idle. Interrupted, the same command
    goes on. Writes results.json (where the first row is also compared with every
    other), table.md and figures into the folder.
    """
    from rti.lab.study.plan import choose, read_study
    from rti.lab.study.records import Records
    from rti.lab.study.report import collect, save
    from rti.lab.study.run import run_jobs

    whole = read_study(plan)
    jobs = choose(whole, only, kinds)
    if dry_run:
        records = Records(output)
        done = [job for job in jobs if records.of(job) is not None]
        for job in jobs:
            say(f"{'done' if job in done else 'to do'}: {shlex.join(['rti', *job.words(output)])}")
        say(f"{len(done)} of {len(jobs)} jobs are done")
        return {"done": len(done), "jobs": len(jobs)}
    failed = [] if report else run_jobs(output, jobs)
    values = collect(whole, output)
    figures, found = save(values, output), {name: values[name] for name in ("done", "jobs")}
    say(
        f"{output}: {found['done']} of {found['jobs']} jobs are done; results.json, table.md and {len(figures)} figures"
    )
    if failed:
        raise InputError(f"{len(failed)} jobs failed: {', '.join(failed)}; see {output / 'logs'}")
    return {"output": str(output)} | found
