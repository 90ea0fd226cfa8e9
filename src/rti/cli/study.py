"""`rti study`: a fair comparison of token reductions, from a list of rows to a table and figures."""

from __future__ import annotations

import shlex
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.options import number_option
from rti.cli.output import counted, say, show_json, show_table
from rti.errors import InputError

if TYPE_CHECKING:
    from rti.lab.study.plan import Job


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
    reduction differs. Every job is a command of rti, kept with what it printed.
    Timings run last, with nothing beside them; on a busy machine, leave them for
    later: --kinds loss,pictures now, --kinds time when it is idle. Interrupted,
    the same command goes on. Writes results.json, table.md, leads.md (the first
    row against every other), times.md (the loss by time), faults.md (what is wrong
    with wrong pictures) and figures into the folder.
    """
    from dataclasses import replace

    from rti.lab.study import plan as planning
    from rti.lab.study.figures import draw_figures
    from rti.lab.study.report import collect, save
    from rti.lab.study.run import kept_of, run_jobs

    whole = planning.read_study(plan)
    chosen = whole
    if only is not None:
        wanted, names = only.split(","), [row.name for row in whole.rows]
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise InputError(f"unknown rows {', '.join(unknown)}; allowed: {', '.join(names)}")
        chosen = replace(whole, rows=tuple(row for row in whole.rows if row.name in wanted))
    jobs = planning.choose(planning.plan(chosen, output), planning.KINDS if kinds is None else kinds.split(","))
    if dry_run or commands:
        kept = {job: kept_of(output, job) for job in jobs}
        for job, done in kept.items() if commands else ():
            say(f"{'to do' if done is None else 'done'}: {shlex.join(['rti', *job.command])}")
        _show_plan(kept, workers, json)
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


def _show_plan(kept: dict[Job, dict[str, Any] | None], workers: int, json: bool) -> None:
    """How many jobs there are of each kind, how many are done, and how long the others take at the pace of those."""
    rows = []
    for kind in dict.fromkeys(job.kind for job in kept):
        some = [job for job in kept if job.kind == kind]
        done = [kept[job] for job in some if kept[job] is not None]
        seconds = [one["seconds"] for one in done if isinstance(one.get("seconds"), (int, float))]
        left = len(some) - len(done)
        hours = left * statistics.mean(seconds) / (1 if some[0].alone else workers) / 3600 if seconds else None
        rows.append({"kind": kind, "jobs": len(some), "done": len(done), "hours_left": hours if left else 0.0})
    known = [row["hours_left"] for row in rows if row["hours_left"] is not None]
    total = {"kind": "all", "hours_left": sum(known) if len(known) == len(rows) else None}
    total |= {name: sum(row[name] for row in rows) for name in ("jobs", "done")}
    cells = [
        [row["kind"], row["jobs"], row["done"], "unknown" if row["hours_left"] is None else f"{row['hours_left']:.1f}"]
        for row in (*rows, total)
    ]
    title = f"hours left, {counted(workers, 'worker')}"
    show_table("Jobs by kind; times are those of the jobs done", ("kind", "jobs", "done", title), cells)
    if json:
        show_json(total | {"rows": rows})
