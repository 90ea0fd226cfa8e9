"""What a study found so far: everything in results.json, and tables beside it."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rti.errors import InputError
from rti.scenes.intervals import percentile_interval, resampled_means, stratified_summary
from rti.study.faults import count_faults
from rti.study.plan import Job, Row, Study, as_json, budgets_of, is_elastic, plan
from rti.study.run import result_of
from rti.study.tables import TIME_EDGES, faults, leads, table, times


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
    texts |= {"leads.md": leads(values), "times.md": times(values), "faults.md": faults(values)}
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
    if verdicts is not None:
        drawn = [one for name in _picture_jobs(study, row, budget) for one in _judged(folder, jobs, name) or ()]
        values |= _accuracy(verdicts, reference) | {"seeds": seeds, "faults": count_faults(drawn, budget)}
    by_steps = []
    for steps in row.steps_at.get(budget, ()):
        names = [f"pictures-{row.name}-{seed}-{budget}-{steps}-steps" for seed in row.seeds]
        verdicts, seeds = _of_seeds(folder, jobs, names, budget)
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
    return _of_seeds(folder, jobs, _picture_jobs(study, row, budget), budget)


def _picture_jobs(study: Study, row: Row, budget: int) -> list[str]:
    """One for each training seed: budgets of which as many pictures are wanted are drawn together."""
    some = [one for one in budgets_of(study, row) if row.images.get(one) == row.images[budget]]
    return [f"pictures-{row.name}-{seed}-{'-'.join(map(str, some))}-{study.sample_steps}-steps" for seed in row.seeds]


def _of_seeds(folder: Path, jobs: dict[str, Job], names: list[str], budget: int) -> tuple[Verdicts | None, int]:
    """The verdicts at a budget, averaged over the training seeds that are done, and how many those are."""
    found = [one for name in names if (one := _verdicts(folder, jobs, name, str(budget))) is not None]
    if not found:
        return None, 0
    return (np.mean([one[0] for one in found], axis=0), found[0][1]), len(found)


def _verdicts(folder: Path, jobs: dict[str, Job], name: str, budget: str) -> Verdicts | None:
    pictures = _judged(folder, jobs, name)
    if pictures is None:
        return None
    return np.array([one["correct"][budget] for one in pictures], dtype=np.float64), [one["task"] for one in pictures]


def _judged(folder: Path, jobs: dict[str, Job], name: str) -> list[dict[str, Any]] | None:
    """Every picture of a job with its verdicts, once it is done."""
    if name not in jobs or result_of(folder, jobs[name]) is None:
        return None
    path = folder / "pictures" / name.removeprefix("pictures-") / "results.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["pictures"]
    except (OSError, ValueError, KeyError):
        raise InputError(f"{path} is missing or damaged; delete {folder / 'jobs' / name}.json to draw again") from None


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
