"""What a study found so far: everything in results.json, and tables beside it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rti.files import write_whole
from rti.lab.intervals import as_list, mean_interval, stratified_summary
from rti.lab.study.faults import count_faults
from rti.lab.study.plan import Row, Study
from rti.lab.study.results import Results
from rti.lab.study.tables import TABLES, TIME_EDGES


def collect(study: Study, folder: Path) -> dict[str, Any]:
    """Everything that is done so far: a row for dense and for each method at each budget, with 95 % intervals.

    Values of several training seeds, as many as are done, are averaged prompt by prompt or example by example, then
    resampled. Two rows are compared by the seeds they share.
    """
    results = Results(study, folder)
    rows = [_row(results, row, budget) for row in study.rows for budget in study.budgets_of(row)]
    found = ("overall", "loss_difference", "speedup", "by_steps")
    return {
        "study": study.as_json(),
        "done": results.done,
        "jobs": len(results.jobs),
        "dense": _dense(results),
        "rows": [row for row in rows if any(name in row for name in found)],
    }


def save(folder: Path, values: dict[str, Any]) -> Path:
    """Write results.json, and the tables beside it."""
    write_whole(folder / "results.json", json.dumps(values, indent=1) + "\n")
    for name, table in TABLES.items():
        write_whole(folder / f"{name}.md", table(values))
    return folder / "results.json"


def _dense(results: Results) -> list[dict[str, Any]]:
    """The frozen backbone at each number of sampling steps, also on the prompts of the rows that vary the steps."""
    study, found = results.study, []
    counts = [row.images[budget] for row in study.rows for budget in row.steps_at if budget in row.images]
    for steps in study.every_steps:
        right = results.dense(steps)
        if right is not None:
            same = {"same_prompts": _accuracy(results, right[: min(counts)])} if counts else {}
            found.append({"steps": steps} | _accuracy(results, right) | same)
    return found


def _row(results: Results, row: Row, budget: int) -> dict[str, Any]:
    study = results.study
    values: dict[str, Any] = {"name": row.name, "title": row.title, "group": row.group, "budget": budget}
    values |= {"seen": budget in study.budgets, "elastic": row.is_elastic}
    values |= _loss(results, row, budget) | results.speed(row, budget)
    if right := [*results.right(row, budget).values()]:
        mean = np.mean(right, axis=0)
        values |= _accuracy(results, mean) | _minus(results, mean, results.dense(study.sample_steps), "difference")
        drawn = [
            (*prompt, letter)
            for letters in results.letters(row, budget).values()
            for prompt, letter in zip(results.prompts, letters, strict=False)
        ]
        values |= {"seeds": len(right), "faults": count_faults(drawn)}
        values |= {"overall_by_seed": [_accuracy(results, one)["overall"] for one in right]}
    return values | _by_steps(results, row, budget) | _behind(results, row, budget)


def _by_steps(results: Results, row: Row, budget: int) -> dict[str, Any]:
    """The row at fewer sampling steps, and at the study's own; each paired with dense at every number of steps."""
    several = {steps: results.right(row, budget, steps) for steps in row.steps_at.get(budget, ())}
    if not any(several.values()):
        return {}
    found = []
    for steps, right in (*several.items(), (results.study.sample_steps, results.right(row, budget))):
        if right:
            mean = np.mean([*right.values()], axis=0)
            paired = {fewer: _minus(results, mean, results.dense(fewer), "difference") for fewer in results.study.every_steps}
            against = [{"steps": fewer} | one for fewer, one in paired.items() if one]
            found.append(
                {"steps": steps, "seeds": len(right)} | _accuracy(results, mean) | {"minus_dense_at": against}
            )
    return {"by_steps": found}


def _behind(results: Results, row: Row, budget: int) -> dict[str, Any]:
    """By how much the study's first row is better at the same budget, paired by seed, by prompt and by example."""
    first, found = results.study.rows[0], {}
    if row is first or budget not in results.study.budgets_of(first):
        return found
    ours, other = _shared(*(results.right(one, budget) for one in (first, row)))
    if ours is not None:
        count = min(len(ours), len(other))
        found |= _minus(results, ours[:count], other[:count], "lead") | {"lead_images": count}
    (below, times), (above, _) = (results.losses(one, budget) for one in (first, row))
    below, above = _shared(below, above)
    if below is not None:
        change = above - below
        found |= {"loss_lead": float(change.mean()), "loss_lead_interval": _spread(change)}
        parts = _by_time(change, times)
        found["loss_lead_by_time"] = [
            [float(part.mean()), *(_spread(part) or ())] if len(part) else None for part in parts
        ]
    return found


def _shared(first: dict[int, Any], second: dict[int, Any]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The means of both over the training seeds they share, which draw the same data, noise and budgets; else over all
    they have. None if one of them has none."""
    if not first or not second:
        return None, None
    seeds = set(first) & set(second) or {*first, *second}
    first, second = (np.mean([one[seed] for seed in one if seed in seeds], axis=0) for one in (first, second))
    return first, second


def _accuracy(results: Results, right: np.ndarray) -> dict[str, Any]:
    tasks, _, overall, interval = stratified_summary(right, _tasks(results, right), shares=True)
    return {"images": len(right), "overall": overall, "interval": as_list(interval), "tasks": tasks}


def _minus(results: Results, right: np.ndarray, other: np.ndarray | None, name: str) -> dict[str, Any]:
    """The mean paired difference: fewer pictures are the first of more, so they are paired with any other's first."""
    if other is None or len(other) < len(right):
        return {}
    _, _, change, spread = stratified_summary(right - other[: len(right)], _tasks(results, right))
    return {name: change, f"{name}_interval": as_list(spread)}


def _tasks(results: Results, right: np.ndarray) -> list[str]:
    return [task for task, _ in results.prompts[: len(right)]]


def _loss(results: Results, row: Row, budget: int) -> dict[str, Any]:
    """The paired validation loss above dense, in all and by the time of the example."""
    changes, times = results.losses(row, budget)
    if not changes:
        return {}
    change = np.mean([*changes.values()], axis=0)
    parts = _by_time(change, times)
    return {
        "loss_difference": float(change.mean()),
        "loss_interval": _spread(change),
        "loss_by_time": [float(part.mean()) if len(part) else None for part in parts],
        "loss_by_time_interval": [_spread(part) if len(part) else None for part in parts],
        "loss_by_time_examples": [len(part) for part in parts],
        "loss_examples": len(change),
        "loss_by_seed": [float(one.mean()) for one in changes.values()],
    }


def _by_time(values: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
    return [values[(times >= low) & (times < high)] for low, high in pairwise(TIME_EDGES)]


def _spread(values: np.ndarray) -> list[float] | None:
    return as_list(mean_interval(values))
