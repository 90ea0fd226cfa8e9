"""`rti study`: a fair comparison of token reductions, from a list of rows to a table and figures."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from rti.cli.output import show_json
from rti.errors import InputError


def study(
    plan: Path = typer.Argument(help="The study's JSON file: model, budgets, rows. See docs/study/study.json."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the study; the same command goes on in it."),
    workers: int = typer.Option(2, help="Jobs side by side, with the cores shared among them."),
    only: str = typer.Option(None, help="Only these rows, such as merge-estimate,gaps."),
    kinds: str = typer.Option(None, help="Only these kinds of jobs (train, loss, pictures, time), and what they need."),
    report: bool = typer.Option(False, "--report", help="Run nothing; write the report of what is done."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the commands of all jobs, and which are done."),
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

    from rti.study import plan as planning
    from rti.study.figures import draw_figures
    from rti.study.report import collect, save
    from rti.study.run import result_of, run_jobs

    whole = planning.read_study(plan)
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    chosen = whole
    if only is not None:
        wanted, names = only.split(","), [row.name for row in whole.rows]
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise InputError(f"unknown rows {', '.join(unknown)}; allowed: {', '.join(names)}")
        chosen = replace(whole, rows=tuple(row for row in whole.rows if row.name in wanted))
    jobs = planning.choose(planning.plan(chosen, output), planning.KINDS if kinds is None else kinds.split(","))
    if dry_run:
        for job in jobs:
            done = "done" if result_of(output, job) is not None else "to do"
            print(f"{done}: {shlex.join(['rti', *job.command])}")
        return
    failed = [] if report else run_jobs(output, jobs, workers)
    values = collect(whole, output)
    path = save(output, values)
    figures = draw_figures(values, output)
    print(f"{path}: {values['done']} of {values['jobs']} jobs; tables (*.md) and {len(figures)} figures beside it")
    if json:
        show_json({"output": str(output), "done": values["done"], "jobs": values["jobs"], "failed": failed})
    if failed:
        raise InputError(f"{len(failed)} jobs failed: {', '.join(failed)}; see {output / 'logs'}")
