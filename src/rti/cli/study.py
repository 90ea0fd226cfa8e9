"""`rti study`: a fair comparison of token reductions, from a list of rows to a table and figures."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from rti.cli.options import number_option
from rti.cli.output import counted, say, show_json, show_table
from rti.errors import InputError


def study(
    plan: Path = typer.Argument(help="The study's JSON file: model, budgets, rows. See docs/study/study.json."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the study; the same command goes on in it."),
    workers: int = number_option(2, help="Jobs side by side, with the cores shared among them.", most=1024),
    only: str = typer.Option(None, help="Only these rows, such as merge-estimate,gaps."),
    kinds: str = typer.Option(None, help="Only these kinds of jobs (train, loss, pictures, time), and what they need."),
    report: bool = typer.Option(False, "--report", help="Run nothing; write the report of what is done."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Run nothing; count the jobs, and say how long they take."),
    commands: bool = typer.Option(False, "--commands", help="As --dry-run, with every job's command."),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Train, score and time every row of a study, and compare them.

    All rows share backbone, data, steps, budgets, prompts and noise; only the
    reduction differs. Every job is a command of rti; records.jsonl keeps what
    each left. Timings run last, with nothing beside them; on a busy machine, leave
    them for later: --kinds loss,pictures now, --kinds time when it is idle.
    Interrupted, the same command goes on. Writes results.json, table.md, leads.md
    (the first row against every other), times.md (the loss by time), faults.md
    (what is wrong with wrong pictures) and figures into the folder.
    """
    from rti.lab.study.figures import draw_figures
    from rti.lab.study.plan import KINDS, choose, read_study
    from rti.lab.study.plan import plan as jobs_of
    from rti.lab.study.records import Records
    from rti.lab.study.report import collect, save
    from rti.lab.study.run import run_jobs

    whole = read_study(plan)
    names = [row.name for row in whole.rows]
    wanted = names if only is None else only.split(",")
    if unknown := [name for name in wanted if name not in names]:
        raise InputError(f"unknown rows {', '.join(unknown)}; allowed: {', '.join(names)}")
    chosen = replace(whole, rows=tuple(row for row in whole.rows if row.name in wanted))
    jobs = choose(jobs_of(chosen), KINDS if kinds is None else kinds.split(","))
    if dry_run or commands:
        records = Records(output)
        kept = {job: records.of(job) for job in jobs}
        for job, done in kept.items() if commands else ():
            say(f"{'to do' if done is None else 'done'}: {shlex.join(['rti', *job.words(output)])}")
        total = _show_plan(kept, workers)
        if json:
            show_json(total)
        return
    failed = [] if report else run_jobs(output, jobs, workers)
    values = collect(whole, output)
    path = save(output, values)
    figures = draw_figures(values, output)
    say(f"{path}: {values['done']} of {values['jobs']} jobs; tables (*.md) and {len(figures)} figures beside it")
    if json:
        show_json({"output": str(output), "done": values["done"], "jobs": values["jobs"], "failed": failed})
    if failed:
        raise InputError(f"{len(failed)} jobs failed: {', '.join(failed)}; see {output / 'logs'}")


def _show_plan(kept: dict[Any, dict[str, Any] | None], workers: int) -> dict[str, Any]:
    """How many jobs there are of each kind, how many are done, and how long the others take at the pace of those."""
    rows = []
    for kind in dict.fromkeys(job.kind for job in kept):
        some = {job: done for job, done in kept.items() if job.kind == kind}
        seconds = [done["seconds"] for done in some.values() if done is not None]
        left = len(some) - len(seconds)
        pace = statistics.mean(seconds) / (1 if kind == "time" else workers) / 3600 if seconds else None
        hours = 0.0 if not left else None if pace is None else left * pace
        rows.append({"kind": kind, "jobs": len(some), "done": len(seconds), "hours_left": hours})
    hours = None if any(row["hours_left"] is None for row in rows) else sum(row["hours_left"] for row in rows)
    total = {"kind": "all", "hours_left": hours} | {name: sum(row[name] for row in rows) for name in ("jobs", "done")}
    cells = [
        [
            "unknown" if value is None else f"{value:.1f}" if isinstance(value, float) else value
            for value in row.values()
        ]
        for row in (*rows, {name: total[name] for name in rows[0]})
    ]
    title = f"hours left, {counted(workers, 'worker')}"
    show_table("Jobs by kind; times are those of the jobs done", ("kind", "jobs", "done", title), cells)
    return total | {"rows": rows}
