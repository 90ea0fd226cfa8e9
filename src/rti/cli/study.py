"""`rti study`: a fair comparison of token reductions, from a list of rows to a table and figures."""

from __future__ import annotations

import shlex
import statistics
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
    from rti.lab.study.plan import choose, read_study
    from rti.lab.study.records import Records
    from rti.lab.study.report import collect, save
    from rti.lab.study.run import run_jobs

    whole = read_study(plan)
    jobs = choose(whole, only, kinds)
    if dry_run or commands:
        records = Records(output)
        kept = {job: records.of(job) for job in jobs}
        for job, done in kept.items() if commands else ():
            say(f"{'to do' if done is None else 'done'}: {shlex.join(['rti', *job.words(output)])}")
        found, failed = _show_plan(kept, workers), []
    else:
        failed = [] if report else run_jobs(output, jobs, workers)
        values = collect(whole, output)
        path, figures = save(output, values), draw_figures(values, output)
        say(f"{path}: {values['done']} of {values['jobs']} jobs; tables (*.md) and {len(figures)} figures beside it")
        found = {"output": str(output), "done": values["done"], "jobs": values["jobs"], "failed": failed}
    if json:
        show_json(found)
    if failed:
        raise InputError(f"{len(failed)} jobs failed: {', '.join(failed)}; see {output / 'logs'}")


def _show_plan(kept: dict[Any, dict[str, Any] | None], workers: int) -> dict[str, Any]:
    """How many jobs there are of each kind, how many are done, and how long the others take at the pace of those."""
    rows = []
    for kind in dict.fromkeys(job.kind for job in kept):
        some = [done for job, done in kept.items() if job.kind == kind]
        seconds = [done["seconds"] for done in some if done is not None]
        left, beside = len(some) - len(seconds), 1 if kind == "time" else workers
        hours = left * statistics.mean(seconds) / beside / 3600 if seconds else None if left else 0.0
        rows.append({"kind": kind, "jobs": len(some), "done": len(seconds), "hours_left": hours})
    total = {"kind": "all"} | {name: sum(row[name] for row in rows) for name in ("jobs", "done")}
    known = [row["hours_left"] for row in rows if row["hours_left"] is not None]
    total["hours_left"] = sum(known) if len(known) == len(rows) else None
    cells = []
    for *counts, hours in (row.values() for row in (*rows, total)):
        cells.append([*counts, "unknown" if hours is None else f"{hours:.1f}"])
    title = f"hours left, {counted(workers, 'worker')}"
    show_table("Jobs by kind; times are those of the jobs done", ("kind", "jobs", "done", title), cells)
    return total | {"rows": rows}
