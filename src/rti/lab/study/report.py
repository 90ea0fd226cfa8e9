"""What a study found so far: everything in results.json, and tables beside it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti import cost
from rti.errors import InputError
from rti.files import write_whole
from rti.lab.intervals import as_list, mean_interval, stratified_summary
from rti.lab.study.faults import RIGHT, count_faults
from rti.lab.study.plan import Row, Study, plan
from rti.lab.study.records import Records, unpacked
from rti.lab.study.tables import TABLES, TIME_EDGES
from rti.method.reductions import make_reduction
from rti.resolve import describe, untrained_config


def collect(study: Study, folder: Path) -> dict[str, Any]:
    """Everything that is done so far: a row for dense and for each method at each budget, with 95 % intervals.

    Values of several training seeds, as many as are done, are averaged prompt by prompt or example by example, then
    resampled. Two rows are compared by the seeds they share.
    """
    return _Report(study, folder).values()


def save(folder: Path, values: dict[str, Any]) -> Path:
    """Write results.json, and the tables beside it."""
    write_whole(folder / "results.json", json.dumps(values, indent=1) + "\n")
    for name, table in TABLES.items():
        write_whole(folder / f"{name}.md", table(values))
    return folder / "results.json"


class _Report:
    def __init__(self, study: Study, folder: Path):
        records = Records(folder)
        self.study, self.prompts = study, records.prompts
        self.jobs = {job: records.of(job) for job in plan(study)}

    def values(self) -> dict[str, Any]:
        rows = [self._row(row, budget) for row in self.study.rows for budget in self.study.budgets_of(row)]
        found = {"overall", "loss_difference", "speedup", "by_steps"}
        return {
            "study": asdict(self.study),
            "done": sum(kept is not None for kept in self.jobs.values()),
            "jobs": len(self.jobs),
            "dense": self._dense(),
            "rows": [row for row in rows if found & row.keys()],
        }

    # What the jobs left.

    def _find(self, kind: str, run: str, budget: int | str | None = None, steps: int | None = None) -> Any:
        """The result of the job that is of the run, and drew pictures at the budget in so many steps."""
        for job, kept in self.jobs.items():
            if (job.kind, job.run, job.steps) == (kind, run, steps) and (budget is None or budget in job.budgets):
                return None if kept is None else kept["result"]
        return None

    def _verdicts(self, row: Row, budget: int, steps: int | None = None) -> dict[int, str]:
        """A letter for each picture, by training seed; without steps at the study's own."""
        steps = steps or self.study.sample_steps
        found = {seed: self._find("pictures", f"{row.name}-{seed}", budget, steps) for seed in row.seeds}
        return {seed: some["verdicts"][str(budget)] for seed, some in found.items() if some is not None}

    def _right(self, row: Row, budget: int, steps: int | None = None) -> dict[int, np.ndarray]:
        return {seed: _is_right(letters) for seed, letters in self._verdicts(row, budget, steps).items()}

    def _dense_right(self, steps: int) -> np.ndarray | None:
        found = self._find("pictures", "dense", "dense", steps)
        return None if found is None else _is_right(found["verdicts"]["dense"])

    def _losses(self, row: Row, budget: int) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """The loss of every example above that of dense, by training seed, and the times of the examples."""
        changes, times = {}, np.empty(0)
        for seed in row.seeds:
            found = self._find("loss", f"{row.name}-{seed}")
            if found is not None:
                times, losses = unpacked(found["times"]), found["losses"]
                changes[seed] = unpacked(losses[str(budget)]) - unpacked(losses["dense"])
        return changes, times

    def _speed(self, row: Row, budget: int) -> dict[str, float]:
        """Measured, if it is done; and by the paper's count, which needs no measurement but the model's shape."""
        rows = (self._find("time", row.name) or {"rows": []})["rows"]
        found = next(({"speedup": one["speedup"]} for one in rows if one["budget"] == budget), {})
        if self._model is not None:
            backbone, _, usual = self._model
            config = untrained_config(row.reduction, self.study.reduction_settings(row), usual=usual.core)
            with torch.device("meta"):
                flops = cost.reduced_flops(backbone, make_reduction(config, backbone), budget)
            found["analytic_speedup"] = round(cost.dense_flops(backbone) / flops, 3)
        return found

    @cached_property
    def _model(self) -> Any:
        try:
            return describe(self.study.model)
        except InputError:  # it is not at hand
            return None

    # What is computed of it.

    def _dense(self) -> list[dict[str, Any]]:
        """The frozen backbone at each number of sampling steps, also on the prompts of the rows that vary the steps."""
        counts = [row.images[budget] for row in self.study.rows for budget in row.steps_at if budget in row.images]
        found = []
        for steps in self.study.every_steps:
            right = self._dense_right(steps)
            if right is not None:
                same = {"same_prompts": self._accuracy(right[: min(counts)])} if counts else {}
                found.append({"steps": steps} | self._accuracy(right) | same)
        return found

    def _row(self, row: Row, budget: int) -> dict[str, Any]:
        values: dict[str, Any] = {"name": row.name, "title": row.title, "group": row.group, "budget": budget}
        values |= {"seen": budget in self.study.budgets, "elastic": row.is_elastic}
        values |= self._loss(row, budget) | self._speed(row, budget)
        if right := [*self._right(row, budget).values()]:
            mean = np.mean(right, axis=0)
            values |= self._accuracy(mean) | self._minus(mean, self._dense_right(self.study.sample_steps), "difference")
            several = self._verdicts(row, budget).values()
            judged = [(*one, letter) for some in several for one, letter in zip(self.prompts, some, strict=False)]
            values |= {"seeds": len(right), "faults": count_faults(judged)}
            values |= {"overall_by_seed": [self._accuracy(one)["overall"] for one in right]}
        return values | self._by_steps(row, budget) | self._behind(row, budget)

    def _by_steps(self, row: Row, budget: int) -> dict[str, Any]:
        """The row at fewer sampling steps, and at the study's own; each paired with dense at every number of steps."""
        several = {steps: self._right(row, budget, steps) for steps in row.steps_at.get(budget, ())}
        if not any(several.values()):
            return {}
        found = []
        for steps, right in (several | {self.study.sample_steps: self._right(row, budget)}).items():
            if right:
                mean = np.mean([*right.values()], axis=0)
                minus = {one: self._minus(mean, self._dense_right(one), "difference") for one in self.study.every_steps}
                against = [{"steps": one} | paired for one, paired in minus.items() if paired]
                found.append({"steps": steps, "seeds": len(right)} | self._accuracy(mean) | {"minus_dense_at": against})
        return {"by_steps": found}

    def _behind(self, row: Row, budget: int) -> dict[str, Any]:
        """By how much the study's first row is better at the same budget, paired by seed, by prompt and by example."""
        first, found = self.study.rows[0], {}
        if row is first or budget not in self.study.budgets_of(first):
            return found
        ours, other = _shared(self._right(first, budget), self._right(row, budget))
        if ours is not None:
            count = min(len(ours), len(other))
            found |= self._minus(ours[:count], other, "lead") | {"lead_images": count}
        (below, times), (above, _) = self._losses(first, budget), self._losses(row, budget)
        below, above = _shared(below, above)
        if below is not None:
            change = above - below
            parts = [
                [float(part.mean()), *(_spread(part) or ())] if len(part) else None for part in _by_time(change, times)
            ]
            found |= {
                "loss_lead": float(change.mean()),
                "loss_lead_interval": _spread(change),
                "loss_lead_by_time": parts,
            }
        return found

    def _accuracy(self, right: np.ndarray) -> dict[str, Any]:
        tasks, _, overall, interval = stratified_summary(right, self._tasks(right), shares=True)
        return {"images": len(right), "overall": overall, "interval": as_list(interval), "tasks": tasks}

    def _minus(self, right: np.ndarray, other: np.ndarray | None, name: str) -> dict[str, Any]:
        """The mean paired difference: fewer pictures are the first of more, so they are paired with their first."""
        if other is None or len(other) < len(right):
            return {}
        _, _, change, spread = stratified_summary(right - other[: len(right)], self._tasks(right))
        return {name: change, f"{name}_interval": as_list(spread)}

    def _tasks(self, right: np.ndarray) -> list[str]:
        return [task for task, _ in self.prompts[: len(right)]]

    def _loss(self, row: Row, budget: int) -> dict[str, Any]:
        """The paired validation loss above dense, in all and by the time of the example."""
        changes, times = self._losses(row, budget)
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


def _is_right(letters: str) -> np.ndarray:
    return np.array([letter == RIGHT for letter in letters], dtype=float)


def _shared(first: dict[int, Any], second: dict[int, Any]) -> tuple[Any, Any]:
    """The means of both over the training seeds they share, which draw the same data, noise and budgets; else over all
    that each has. None if one of them has none."""
    if not first or not second:
        return None, None
    seeds = set(first) & set(second) or {*first, *second}
    return tuple(np.mean([one[seed] for seed in one if seed in seeds], axis=0) for one in (first, second))


def _by_time(values: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
    return [values[(times >= low) & (times < high)] for low, high in pairwise(TIME_EDGES)]


def _spread(values: np.ndarray) -> list[float] | None:
    return as_list(mean_interval(values))
