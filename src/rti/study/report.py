"""What a study found: results.json, a table in the layout of the paper's Table 1, and figures."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rti.errors import InputError
from rti.scenes import TASKS
from rti.scenes.intervals import percentile_interval, resampled_means, stratified_summary
from rti.study.plan import Job, Row, Study, as_json, budgets_of, is_elastic, plan
from rti.study.run import result_of

TIME_EDGES = (0.0, 0.2, 0.4, 0.6, 1.0)  # of the loss by time


def collect(study: Study, folder: Path) -> dict[str, Any]:
    """Everything that is done so far: a row for dense and for each method at each budget, with 95 % intervals.

    Values of several training seeds, as many as are done, are averaged prompt by prompt or example by example, then
    resampled.
    """
    jobs = {job.name: job for job in plan(study, folder)}
    dense = _dense(study, folder, jobs)
    rows = [_row(study, folder, jobs, row, budget) for row in study.rows for budget in budgets_of(study, row)]
    done = [name for name, job in jobs.items() if result_of(folder, job) is not None]
    return {
        "study": as_json(study),
        "done": len(done),
        "jobs": len(jobs),
        "dense": dense,
        "rows": [row for row in rows if row is not None],
    }


def save(folder: Path, values: dict[str, Any]) -> Path:
    """Write results.json, and the tables beside it."""
    texts = {"results.json": json.dumps(values, indent=1) + "\n", "table.md": table(values)}
    texts |= {"leads.md": leads(values), "times.md": times(values)}
    for name, text in texts.items():
        part = folder / f"{name}.part"
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, folder / name)
        except OSError as error:
            raise InputError(f"cannot write {folder / name}: {error.strerror or error}") from None
    return folder / "results.json"


def _dense(study: Study, folder: Path, jobs: dict[str, Job]) -> list[dict[str, Any]]:
    """The frozen backbone at each number of sampling steps."""
    rows = []
    for steps in dict.fromkeys((study.sample_steps, *study.dense_steps)):
        verdicts = _verdicts(folder, jobs, f"pictures-dense-dense-{steps}-steps", "dense")
        if verdicts is not None:
            rows.append({"steps": steps} | _accuracy(verdicts, None))
    return rows


def _row(study: Study, folder: Path, jobs: dict[str, Job], row: Row, budget: int) -> dict[str, Any] | None:
    values: dict[str, Any] = {"name": row.name, "title": row.title, "group": row.group, "budget": budget}
    values |= {"seen": budget in study.budgets, "elastic": is_elastic(row)}
    values |= _loss(folder, jobs, row, budget) | _speed(folder, jobs, row, budget)
    reference = _verdicts(folder, jobs, f"pictures-dense-dense-{study.sample_steps}-steps", "dense")
    verdicts, seeds = _pictures(study, folder, jobs, row, budget)
    values |= {} if verdicts is None else _accuracy(verdicts, reference) | {"seeds": seeds}
    by_steps = []
    for steps in row.steps_at.get(budget, ()):
        verdicts, seeds = _of_seeds(folder, jobs, row, (budget,), budget, steps)
        if verdicts is not None:
            by_steps.append({"steps": steps, "seeds": seeds} | _accuracy(verdicts, None))
    if by_steps and "overall" in values:
        same = {name: values[name] for name in ("seeds", "images", "overall", "interval", "tasks")}
        by_steps.append({"steps": study.sample_steps} | same)
    values |= {"by_steps": by_steps} if by_steps else {}
    found = ("overall", "loss_difference", "speedup", "by_steps")
    if not any(name in values for name in found):
        return None
    return values | _behind(study, folder, jobs, row, budget)


def _behind(study: Study, folder: Path, jobs: dict[str, Job], row: Row, budget: int) -> dict[str, Any]:
    """By how much the study's first row is better at the same budget, paired by prompt and by example."""
    first, found = study.rows[0], {}
    if row is first or budget not in budgets_of(study, first):
        return found
    (ours, _), (other, _) = (_pictures(study, folder, jobs, one, budget) for one in (first, row))
    if ours is not None and other is not None:
        count = min(len(ours[0]), len(other[0]))
        _, _, lead, interval = stratified_summary(ours[0][:count] - other[0][:count], other[1][:count])
        found |= {"lead": lead, "lead_interval": list(interval), "lead_images": count}
    above, below = (_changes(folder, jobs, one, budget)[0] for one in (row, first))
    if above and below:
        change = np.mean(above, axis=0) - np.mean(below, axis=0)
        found |= {"loss_lead": float(change.mean()), "loss_lead_interval": _spread(change)}
    return found


Verdicts = tuple[np.ndarray, list[str]]  # (n,) share of the seeds that were right, and the task of each prompt


def _pictures(study: Study, folder: Path, jobs: dict[str, Job], row: Row, budget: int) -> tuple[Verdicts | None, int]:
    """The verdicts of a row at a budget and the study's own steps, and of how many seeds they are the mean."""
    if budget not in row.images:
        return None, 0
    some = tuple(one for one in budgets_of(study, row) if row.images.get(one) == row.images[budget])
    return _of_seeds(folder, jobs, row, some, budget, study.sample_steps)


def _of_seeds(
    folder: Path, jobs: dict[str, Job], row: Row, some: tuple[int, ...], budget: int, steps: int
) -> tuple[Verdicts | None, int]:
    """The verdicts at a budget, averaged over the training seeds that are done, and how many those are."""
    typed = "-".join(map(str, some))
    names = [f"pictures-{row.name}-{seed}-{typed}-{steps}-steps" for seed in row.seeds]
    found = [one for name in names if (one := _verdicts(folder, jobs, name, str(budget))) is not None]
    if not found:
        return None, 0
    return (np.mean([one[0] for one in found], axis=0), found[0][1]), len(found)


def _verdicts(folder: Path, jobs: dict[str, Job], name: str, budget: str) -> Verdicts | None:
    if name not in jobs or result_of(folder, jobs[name]) is None:
        return None
    path = folder / "pictures" / name.removeprefix("pictures-") / "results.json"
    try:
        pictures = json.loads(path.read_text(encoding="utf-8"))["pictures"]
    except (OSError, ValueError, KeyError):
        raise InputError(f"{path} is missing or damaged; delete {folder / 'jobs' / name}.json to draw again") from None
    return np.array([one["correct"][budget] for one in pictures], dtype=np.float64), [one["task"] for one in pictures]


def _accuracy(verdicts: Verdicts, dense: Verdicts | None) -> dict[str, Any]:
    values, labels = verdicts
    tasks, _, overall, interval = stratified_summary(values, labels)
    found = {"images": len(values), "overall": overall, "interval": list(interval), "tasks": tasks}
    if dense is not None and len(dense[0]) >= len(values):  # fewer pictures are the first of more
        _, _, change, spread = stratified_summary(values - dense[0][: len(values)], labels)
        found |= {"difference": change, "difference_interval": list(spread)}
    return found


def _changes(folder: Path, jobs: dict[str, Job], row: Row, budget: int) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The loss of every example above that of dense, for each training seed that is done; and the examples' times."""
    changes, times = [], None
    for seed in row.seeds:
        name = f"loss-{row.name}-{seed}"
        if result_of(folder, jobs[name]) is None:
            continue
        path = folder / "losses" / f"{row.name}-{seed}.json"
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            times, losses = np.array(kept["times"]), kept["losses"]
            changes.append(np.array(losses[str(budget)]) - np.array(losses["dense"]))
        except (OSError, ValueError, KeyError, TypeError):
            again = folder / "jobs" / f"{name}.json"
            raise InputError(f"{path} is missing or damaged; delete {again} to measure again") from None
    return changes, times


def _loss(folder: Path, jobs: dict[str, Job], row: Row, budget: int) -> dict[str, Any]:
    """The paired validation loss above dense, in all and by the time of the example."""
    changes, times = _changes(folder, jobs, row, budget)
    if not changes:
        return {}
    change = np.mean(changes, axis=0)
    by_time = []
    for low, high in pairwise(TIME_EDGES):
        inside = (times >= low) & (times < high)
        by_time.append(float(change[inside].mean()) if inside.any() else None)
    return {
        "loss_difference": float(change.mean()),
        "loss_interval": _spread(change),
        "loss_by_time": by_time,
        "loss_examples": len(change),
        "loss_by_seed": [float(one.mean()) for one in changes],
    }


def _spread(values: np.ndarray) -> list[float]:
    return list(percentile_interval(resampled_means(values, ["all"] * len(values))["all"]))


def _speed(folder: Path, jobs: dict[str, Job], row: Row, budget: int) -> dict[str, Any]:
    result = result_of(folder, jobs[f"time-{row.name}"])
    one = next((one for one in (result or {"rows": []})["rows"] if one["budget"] == budget), None)
    if one is None:
        return {}
    return {"speedup": one["speedup"], "analytic_speedup": one["analytic_speedup"]}


def table(values: dict[str, Any]) -> str:
    """Markdown, in the layout of the paper's Table 1: dense, then budgets from rich to lean, each with every method."""
    head = ["method", "R", "speed", "analytic", *(task.replace("_", " ") for task in TASKS), "overall", "minus dense"]
    rows = [[*head, "pictures", "loss minus dense"], ["---"] * (len(head) + 2)]
    for one in values["dense"][:1]:
        tasks = [_percent(one["tasks"].get(task)) for task in TASKS]
        overall = _percent(one["overall"], one["interval"])
        rows.append(["dense", "", "1.00x", "1.00x", *tasks, overall, "", str(one["images"]), ""])
    for row in sorted(values["rows"], key=lambda row: -row["budget"]):
        tasks = [_percent(row.get("tasks", {}).get(task)) for task in TASKS]
        speeds = [f"{row[name]:.2f}x" if name in row else "" for name in ("speedup", "analytic_speedup")]
        overall = _percent(row.get("overall"), row.get("interval"))
        minus = _points(row.get("difference"), row.get("difference_interval"), 100, 1)
        loss = _points(row.get("loss_difference"), row.get("loss_interval"), 1, 4)
        pictures = str(row["images"] * row["seeds"]) if "images" in row else ""
        rows.append([row["title"], _budget(row), *speeds, *tasks, overall, minus, pictures, loss])
    return _markdown(rows)


def _budget(row: dict[str, Any]) -> str:
    return "its own" if not row["elastic"] else f"{row['budget']}" + ("" if row["seen"] else " (unseen)")


def leads(values: dict[str, Any]) -> str:
    """Markdown: by how much ours, the study's first row, leads each other one at each trained budget, paired.

    Only rows that spend what ours spends there: methods without a budget and other cores are in the table alone.
    """
    rows = [row for row in values["rows"] if row["seen"] and _spends_its_budget(row)]
    budgets = sorted({row["budget"] for row in rows})
    head = [f"R = {budget}" for budget in budgets]
    lines = [["ours is better than", "in", *head], ["---"] * (len(head) + 2)]
    for method, title in {row["name"]: row["title"] for row in rows}.items():
        by_budget = {row["budget"]: row for row in rows if row["name"] == method}
        for field, name, scale, digits in (("lead", "right pictures, points", 100, 1), ("loss_lead", "loss", 1, 4)):
            some = [by_budget.get(budget, {}) for budget in budgets]
            cells = [_points(one.get(field), one.get(f"{field}_interval"), scale, digits) for one in some]
            if any(cells):
                lines.append([title, name, *cells])
    return _markdown(lines)


def times(values: dict[str, Any]) -> str:
    """Markdown: the loss above dense by the time of the example, at each trained budget; bold is the lowest there.

    A method without a budget, or with another core, spends more or less: it is listed, but not compared.
    """
    spans = [f"t {low:g} to {high:g}" for low, high in pairwise(TIME_EDGES)]
    lines = [["method", "R", *spans, "all"], ["---"] * (len(spans) + 3)]
    rows = [row for row in values["rows"] if row["seen"] and "loss_by_time" in row]
    for row in sorted(rows, key=lambda row: -row["budget"]):
        alike = [one for one in rows if one["budget"] == row["budget"] and _spends_its_budget(one)]
        cells = []
        for place, value in enumerate(_losses(row)):
            lowest = min((loss for one in alike if (loss := _losses(one)[place]) is not None), default=None)
            cell = "" if value is None else f"{value:+.4f}"
            cells.append(f"**{cell}**" if cell and row in alike and value == lowest else cell)
        lines.append([row["title"], _budget(row), *cells])
    return _markdown(lines)


def _spends_its_budget(row: dict[str, Any]) -> bool:
    return row["elastic"] and row["group"] != "core"


def _losses(row: dict[str, Any]) -> list[float | None]:
    return [*row["loss_by_time"], row["loss_difference"]]


def _markdown(rows: list[list[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _percent(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return ""
    spread = "" if interval is None else f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    return f"{100 * value:.1f}{spread}"


def _points(value: float | None, interval: list[float] | None, scale: float, digits: int) -> str:
    if value is None:
        return ""
    low, high = (f"{scale * edge:+.{digits}f}" for edge in interval)
    return f"{scale * value:+.{digits}f} ({low} to {high})"
