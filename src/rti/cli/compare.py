"""`rti compare`: runs side by side in the layout of the paper's Table 1, with paired differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rti.cli.options import number_option
from rti.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from rti.lab.pictures.compare import Row

# GenEval's tasks as the paper's table heads them.
TASKS = {
    "single_object": "sng",
    "two_object": "two",
    "counting": "cnt",
    "colors": "col",
    "position": "pos",
    "color_attr": "att",
}
METRICS = {"clip": ("CLIP", 2), "pick": ("Pick", 2), "imagereward": ("IR", 2), "fid": ("FID", 2), "is": ("IS", 1)}
_WIDTH = 160


def compare(
    folders: list[Path] = typer.Argument(
        help="The reference (dense), then what to compare with it: folders of rti generate, or folders of those."
    ),
    resamples: int = number_option(2000, help="Bootstrap resamples.", most=100000),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Compare scored folders: a row each, and each one's paired difference to the first with its 95 % interval.

    rti compare runs/dense runs/r256 runs/r64

    A row may be a folder that holds one folder per benchmark, such as
    runs/dense/geneval and runs/dense/parti. Prompts and seeds must be the same;
    intervals come from resampling prompts, for GenEval within each task.
    """
    from rti.lab.pictures.compare import compare_folders, notable_differences

    rows = compare_folders(folders, resamples)
    _show(rows)
    for row in rows[1:]:
        found = notable_differences(row, rows[0])
        if found:
            say(f"{row.path} also differs in {', '.join(found)}")
    if json:
        show_json({"reference": str(folders[0]), "resamples": resamples, "rows": [row.as_dict() for row in rows]})


def _show(rows: list[Row]) -> None:
    from rti.lab.pictures.compare import PAIRED

    tasks = list(dict.fromkeys(task for row in rows for task in _tasks(row)))
    tasks.sort(key=lambda task: list(TASKS).index(task) if task in TASKS else len(TASKS))
    metrics = [metric for metric in METRICS if any(metric in row.scored for row in rows)]
    heads = ["Model", "R", "img/s", "Speed", *(TASKS.get(task, task) for task in tasks)]
    heads += (["Ovr."] if tasks else []) + [METRICS[metric][0] for metric in metrics]
    lines, changes = [], []
    for row in rows:
        line = [_name(row, rows[0]), _budget(row), *_speed(row, rows[0])]
        line += [f"{100 * _tasks(row)[task]:.1f}" if task in _tasks(row) else "" for task in tasks]
        line += [_cell(row, "geneval", 100, 1)] if tasks else []
        lines.append(line + [_cell(row, metric, 1, METRICS[metric][1]) for metric in metrics])
        for metric, change in row.differences.items():
            scale, digits = (100, 1) if metric == "geneval" else (1, METRICS[metric][1] + 1)
            shown = [f"{scale * change.value:+.{digits}f}", "" if metric in PAIRED else "no pairs"]
            if change.interval is not None:
                shown[1] = " to ".join(f"{scale * side:+.{digits}f}" for side in change.interval)
            changes.append([str(row.path), "GenEval" if metric == "geneval" else METRICS[metric][0], *shown])
    title = f"Compared with {rows[0].path}; ± is half the 95 % interval of the paired difference"
    show_table(title, heads, lines, width=max(_WIDTH, len(title)))  # a table of 14 columns is not to be folded
    width = _WIDTH + max(len(str(row.path)) for row in rows)
    show_table(f"Minus {rows[0].path}, paired", ("row", "metric", "difference", "95 % interval"), changes, width)


def _tasks(row: Row) -> dict[str, float]:
    score = row.score("geneval")
    return {} if score is None else score.summary["groups"]


def _name(row: Row, reference: Row) -> str:
    """The model, and below it the reductions of the same model, as in the paper."""
    manifest = row.manifest
    if manifest["budget"] == "dense":
        return Path(str(manifest["model"])).name
    name = (manifest["reduction"] or {}).get("reduction", "region")
    return f"  {name}" if manifest["model"] == reference.manifest["model"] else f"{manifest['model']} {name}"


def _budget(row: Row) -> str:
    budget = row.manifest["budget"]
    return str(row.manifest["patches"] if budget == "dense" else budget)


def _speed(row: Row, reference: Row) -> list[str]:
    shown = "" if row.speed is None else f"{row.speed:.2f}"
    both = row.speed is not None and reference.speed is not None
    return [shown, f"{row.speed / reference.speed:.2f}x" if both else ""]


def _cell(row: Row, metric: str, scale: float, digits: int) -> str:
    """The score, and ± half the interval of its difference to the reference."""
    score = row.score(metric)
    if score is None:
        return ""
    text, change = f"{scale * score.summary['score']:.{digits}f}", row.differences.get(metric)
    if change is None or change.interval is None:
        return text
    return f"{text} ±{scale * (change.interval[1] - change.interval[0]) / 2:.{digits}f}"
