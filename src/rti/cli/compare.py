"""`rti compare`: runs side by side in the layout of the paper's Table 1, with paired differences."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import typer

from rti.cli.options import command, number_option
from rti.cli.output import say, show_table

Run = dict[str, Any]  # rti.lab.pictures.compare's
# GenEval's tasks as the paper's table heads them.
TASKS = {
    **{"single_object": "sng", "two_object": "two", "counting": "cnt"},
    **{"colors": "col", "position": "pos", "color_attr": "att"},
}
_WIDTH = 160


@command
def compare(
    folders: list[Path] = typer.Argument(
        help="The reference (dense), then what to compare with it: folders of rti generate, or folders of those."
    ),
    resamples: int = number_option(2000, help="Bootstrap resamples.", most=100000),
) -> dict:
    """Compare scored folders: a row each, and each one's paired difference to the first with its 95 % interval.

    rti compare runs/dense runs/r256 runs/r64

    A row may be a folder that holds one folder per benchmark, such as
    runs/dense/geneval and runs/dense/parti. Prompts and seeds must be the same;
    intervals come from resampling prompts, for GenEval within each task.
    """
    from rti.lab.pictures.compare import compare_folders

    runs = compare_folders(folders, resamples)
    _show_scores(runs)
    _show_differences(runs)
    for run in runs:
        if run["also"]:
            say(f"{run['row']} also differs in {', '.join(run['also'])}")
    return {"reference": str(folders[0]), "resamples": resamples, "rows": runs}


def _show_scores(runs: list[Run]) -> None:
    """A score has ± half the interval of its difference to the reference."""
    from rti.lab.pictures.scorers.results import METRICS

    there = {metric: METRICS[metric] for metric in METRICS if any(metric in run["scores"] for run in runs)}
    groups = [run["scores"].get("geneval", {}).get("groups", {}) for run in runs]
    tasks = sorted({task for some in groups for task in some}, key=[*TASKS, *chain(*groups)].index)
    heads = ["Model", "R", "img/s", "Speed", *(TASKS.get(task, task) for task in tasks)]
    heads += ["Ovr." if metric == "geneval" else there[metric].name for metric in there]
    lines = []
    for run, some in zip(runs, groups, strict=True):
        speed, base = run["images_per_second"], runs[0]["images_per_second"]
        line = [_name(run, runs[0]), str(run["patches"] if run["budget"] == "dense" else run["budget"])]
        line += [f"{speed:.2f}" if speed else "", f"{speed / base:.2f}x" if speed and base else ""]
        line += [f"{100 * some[task]:.1f}" if task in some else "" for task in tasks]
        for metric, (_, _, scale, digits, _, near) in there.items():
            score, change = run["scores"].get(metric), run["differences"].get(metric) or {}
            text = f"{scale * score['score']:.{digits}f}" if score else ""
            if interval := (score or {}).get("interval") if near else change.get("interval"):
                text += f" ±{scale * (interval[1] - interval[0]) / 2:.{digits}f}"
            line.append(text)
        lines.append(line)
    title = f"Compared with {runs[0]['row']}; ± is half the 95 % interval of the paired difference"
    show_table(title, heads, lines, width=max(_WIDTH, len(title)))  # a table of 14 columns is not to be folded


def _name(run: Run, reference: Run) -> str:
    """The model, and below it the reductions of the same model, as in the paper."""
    if run["budget"] == "dense":
        return Path(str(run["model"])).name
    name = (run["reduction"] or {}).get("reduction", "region")
    return f"  {name}" if run["model"] == reference["model"] else f"{run['model']} {name}"


def _show_differences(runs: list[Run]) -> None:
    from rti.lab.pictures.scorers.results import METRICS

    lines = []
    for run in runs:
        for metric, change in run["differences"].items():
            name, _, scale, digits, paired, _ = METRICS[metric]
            value, *interval = (
                f"{scale * one:+.{digits + (scale == 1)}f}" for one in (change["value"], *(change["interval"] or ()))
            )
            lines.append([run["row"], name, value, " to ".join(interval) if paired else "no pairs"])
    width = _WIDTH + max(len(run["row"]) for run in runs)
    show_table(f"Minus {runs[0]['row']}, paired", ("row", "metric", "difference", "95 % interval"), lines, width)
