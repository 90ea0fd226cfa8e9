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
from rti.lab.study.plan import Row, Study, as_json, budgets_of, is_elastic
from rti.lab.study.results import Results, Verdicts, mean_of
from rti.lab.study.tables import TIME_EDGES, faults, leads, table, times


def collect(study: Study, folder: Path) -> dict[str, Any]:
    """Everything that is done so far: a row for dense and for each method at each budget, with 95 % intervals.

    Values of several training seeds, as many as are done, are averaged prompt by prompt or example by example, then
    resampled. Two rows are compared by the seeds they share.
    """
    results = Results(study, folder)
    rows = [_row(results, row, budget) for row in study.rows for budget in budgets_of(study, row)]
    return {
        "study": as_json(study),
        "done": results.done,
        "jobs": len(results.jobs),
        "dense": _dense(results),
        "rows": [row for row in rows if row is not None],
    }


def save(folder: Path, values: dict[str, Any]) -> Path:
    """Write results.json, and the tables beside it."""
    texts = {"results.json": json.dumps(values, indent=1) + "\n", "table.md": table(values)}
    texts |= {"leads.md": leads(values), "times.md": times(values), "faults.md": faults(values)}
    for name, text in texts.items():
        write_whole(folder / name, text)
    return folder / "results.json"


def _dense(results: Results) -> list[dict[str, Any]]:
    """The frozen backbone at each number of sampling steps, also on the prompts of the rows that vary the steps."""
    study, rows = results.study, []
    counts = [row.images[budget] for row in study.rows for budget in row.steps_at if budget in row.images]
    for steps in dict.fromkeys((study.sample_steps, *study.dense_steps)):
        verdicts = results.dense(steps)
        if verdicts is not None:
            same = {"same_prompts": _accuracy(verdicts.first(min(counts)))} if counts else {}
            rows.append({"steps": steps} | _accuracy(verdicts) | same)
    return rows


def _row(results: Results, row: Row, budget: int) -> dict[str, Any] | None:
    study = results.study
    values: dict[str, Any] = {"name": row.name, "title": row.title, "group": row.group, "budget": budget}
    values |= {"seen": budget in study.budgets, "elastic": is_elastic(row)}
    values |= _loss(results, row, budget) | results.speed(row, budget)
    judged, verdicts = results.judged(row, budget), results.verdicts(row, budget)
    if verdicts:
        drawn = [picture for pictures in judged.values() for picture in pictures]
        values |= _accuracy(mean_of([*verdicts.values()]), results.dense(study.sample_steps))
        values |= {"seeds": len(verdicts), "faults": count_faults(drawn, budget)}
        values |= {"overall_by_seed": [_accuracy(one)["overall"] for one in verdicts.values()]}
    values |= _by_steps(results, row, budget)
    found = ("overall", "loss_difference", "speedup", "by_steps")
    if not any(name in values for name in found):
        return None
    return values | _behind(results, row, budget)


def _by_steps(results: Results, row: Row, budget: int) -> dict[str, Any]:
    """The row at fewer sampling steps, and at the study's own; each paired with dense at every number of steps."""
    study, found = results.study, []
    several = [(steps, results.verdicts(row, budget, steps)) for steps in row.steps_at.get(budget, ())]
    if any(verdicts for _, verdicts in several):
        several.append((study.sample_steps, results.verdicts(row, budget)))
    for steps, verdicts in several:
        if not verdicts:
            continue
        mean = mean_of([*verdicts.values()])
        against = []
        for fewer in dict.fromkeys((study.sample_steps, *study.dense_steps)):
            dense = results.dense(fewer)
            paired = _accuracy(mean, dense) if dense is not None else {}
            if "difference" in paired:
                against.append(
                    {"steps": fewer} | {name: paired[name] for name in ("difference", "difference_interval")}
                )
        found.append({"steps": steps, "seeds": len(verdicts)} | _accuracy(mean) | {"minus_dense_at": against})
    return {"by_steps": found} if found else {}


def _behind(results: Results, row: Row, budget: int) -> dict[str, Any]:
    """By how much the study's first row is better at the same budget, paired by seed, by prompt and by example."""
    first, found = results.study.rows[0], {}
    if row is first or budget not in budgets_of(results.study, first):
        return found
    ours, other = _shared(*(results.verdicts(one, budget) for one in (first, row)))
    if ours and other:
        ours, other = mean_of(ours), mean_of(other)
        count = min(len(ours.tasks), len(other.tasks))
        change = ours.right[:count] - other.right[:count]
        _, _, lead, interval = stratified_summary(change, other.tasks[:count])
        found |= {"lead": lead, "lead_interval": as_list(interval), "lead_images": count}
    (below, times), (above, _) = (results.losses(one, budget) for one in (first, row))
    below, above = _shared(below, above)
    if below and above:
        change = np.mean(above, axis=0) - np.mean(below, axis=0)
        found |= {"loss_lead": float(change.mean()), "loss_lead_interval": _spread(change)}
        parts = [change[inside] for inside in _by_time(times)]
        found["loss_lead_by_time"] = [
            [float(part.mean()), *(_spread(part) or ())] if len(part) else None for part in parts
        ]
    return found


def _shared(first: dict[int, Any], second: dict[int, Any]) -> tuple[list[Any], list[Any]]:
    """Both at the training seeds they share, which draw the same data, noise and budgets; else at all they have."""
    seeds = [seed for seed in first if seed in second]
    both = [{seed: one[seed] for seed in seeds} for one in (first, second)] if seeds else [first, second]
    return [*both[0].values()], [*both[1].values()]


def _accuracy(verdicts: Verdicts, dense: Verdicts | None = None) -> dict[str, Any]:
    tasks, _, overall, interval = stratified_summary(*verdicts, shares=True)
    count = len(verdicts.tasks)
    found = {"images": count, "overall": overall, "interval": as_list(interval), "tasks": tasks}
    if dense is not None and len(dense.tasks) >= count:
        _, _, change, spread = stratified_summary(verdicts.right - dense.first(count).right, verdicts.tasks)
        found |= {"difference": change, "difference_interval": as_list(spread)}
    return found


def _loss(results: Results, row: Row, budget: int) -> dict[str, Any]:
    """The paired validation loss above dense, in all and by the time of the example."""
    changes, times = results.losses(row, budget)
    if not changes:
        return {}
    change = np.mean([*changes.values()], axis=0)
    parts = [change[inside] for inside in _by_time(times)]
    return {
        "loss_difference": float(change.mean()),
        "loss_interval": _spread(change),
        "loss_by_time": [float(part.mean()) if len(part) else None for part in parts],
        "loss_by_time_interval": [_spread(part) if len(part) else None for part in parts],
        "loss_by_time_examples": [len(part) for part in parts],
        "loss_examples": len(change),
        "loss_by_seed": [float(one.mean()) for one in changes.values()],
    }


def _by_time(times: np.ndarray) -> list[np.ndarray]:
    return [(times >= low) & (times < high) for low, high in pairwise(TIME_EDGES)]


def _spread(values: np.ndarray) -> list[float] | None:
    return as_list(mean_interval(values))
