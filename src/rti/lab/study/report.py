"""What a study found so far: everything in results.json, and tables beside it."""

from __future__ import annotations

import json
from dataclasses import asdict
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
    report = _Report(study, folder)
    rows = [report.row(row, budget) for row in study.rows for budget in study.budgets_of(row)]
    found = {"overall", "loss_difference", "speedup", "by_steps"}
    return {
        "study": asdict(study),
        "done": sum(kept is not None for kept in report.jobs.values()),
        "jobs": len(report.jobs),
        "dense": report.dense(),
        "rows": [row for row in rows if found & row.keys()],
    }


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
        try:
            self.model = describe(study.model)
        except InputError:
            self.model = None  # it is not at hand

    def dense(self) -> list[dict[str, Any]]:
        """The frozen backbone at each number of sampling steps, also on the prompts of the rows that vary the steps."""
        counts = [row.images[budget] for row in self.study.rows for budget in row.steps_at if budget in row.images]
        found = []
        for steps in self.study.every_steps:
            if (right := self._dense_right(steps)) is not None:
                same = {"same_prompts": self._accuracy(right[: min(counts)])} if counts else {}
                found.append({"steps": steps} | self._accuracy(right) | same)
        return found

    def row(self, row: Row, budget: int) -> dict[str, Any]:
        values: dict[str, Any] = {"name": row.name, "title": row.title, "group": row.group, "budget": budget}
        values |= {"seen": budget in self.study.budgets, "elastic": row.is_elastic}
        values |= self._loss(row, budget) | self._speed(row, budget)
        if verdicts := self._verdicts(row, budget):
            mean = _mean_right(verdicts)
            values |= self._accuracy(mean) | self._minus(mean, self._dense_right(self.study.sample_steps), "difference")
            several = verdicts.values()
            judged = [(*one, letter) for some in several for one, letter in zip(self.prompts, some, strict=False)]
            values |= {"seeds": len(verdicts), "faults": count_faults(judged)}
            values |= {"overall_by_seed": [self._accuracy(some == RIGHT)["overall"] for some in several]}
        return values | self._by_steps(row, budget) | self._behind(row, budget)

    def _find(self, kind: str, run: str, budget: int | str | None = None, steps: int | None = None) -> Any:
        """What the job left that is of the run, and drew pictures at the budget in so many steps."""
        for job, kept in self.jobs.items():
            if (job.kind, job.run, job.steps) == (kind, run, steps) and (budget is None or budget in job.budgets):
                return None if kept is None else kept["result"]
        return None

    def _verdicts(self, row: Row, budget: int, steps: int | None = None) -> dict[int, np.ndarray]:
        """A letter for each picture, see `records`, by training seed; without steps at the study's own."""
        steps = steps or self.study.sample_steps
        found = {seed: self._find("pictures", f"{row.name}-{seed}", budget, steps) for seed in row.seeds}
        return {seed: np.array([*some["verdicts"][str(budget)]]) for seed, some in found.items() if some is not None}

    def _dense_right(self, steps: int) -> np.ndarray | None:
        found = self._find("pictures", "dense", "dense", steps)
        return None if found is None else np.array([*found["verdicts"]["dense"]]) == RIGHT

    def _losses(self, row: Row, budget: int) -> dict[int, np.ndarray]:
        """The loss of every example above that of dense, and its time, by training seed. (2, examples)."""
        found = {seed: self._find("loss", f"{row.name}-{seed}") for seed in row.seeds}
        return {
            seed: np.stack([unpacked(losses[str(budget)]) - unpacked(losses["dense"]), unpacked(some["times"])])
            for seed, some in found.items()
            if some is not None and (losses := some["losses"])
        }

    def _speed(self, row: Row, budget: int) -> dict[str, float]:
        """Measured, if it is done; and by the paper's count, which needs no measurement but the model's shape."""
        rows = (self._find("time", row.name) or {"rows": []})["rows"]
        found = next(({"speedup": one["speedup"]} for one in rows if one["budget"] == budget), {})
        if self.model is not None:
            backbone, _, usual = self.model
            config = untrained_config(row.reduction, self.study.reduction_settings(row), usual=usual.core)
            with torch.device("meta"):
                flops = cost.reduced_flops(backbone, make_reduction(config, backbone), budget)
            found["analytic_speedup"] = round(cost.dense_flops(backbone) / flops, 3)
        return found

    def _loss(self, row: Row, budget: int) -> dict[str, Any]:
        """The paired validation loss above dense, in all and by the time of the example."""
        losses = self._losses(row, budget)
        if not losses:
            return {}
        change, times = np.mean([*losses.values()], axis=0)
        parts = _by_time(change, times)
        return {
            "loss_difference": float(change.mean()),
            "loss_interval": _spread(change),
            "loss_by_time": [float(part.mean()) if len(part) else None for part in parts],
            "loss_by_time_interval": [_spread(part) if len(part) else None for part in parts],
            "loss_by_time_examples": [len(part) for part in parts],
            "loss_examples": len(change),
            "loss_by_seed": [float(one.mean()) for one, _ in losses.values()],
        }

    def _by_steps(self, row: Row, budget: int) -> dict[str, Any]:
        """The row at fewer sampling steps, and at the study's own; each paired with dense at every number of steps."""
        several = {steps: self._verdicts(row, budget, steps) for steps in row.steps_at.get(budget, ())}
        if not any(several.values()):
            return {}
        found = []
        for steps, verdicts in (several | {self.study.sample_steps: self._verdicts(row, budget)}).items():
            if verdicts:
                mean = _mean_right(verdicts)
                minus = {one: self._minus(mean, self._dense_right(one), "difference") for one in self.study.every_steps}
                against = {"minus_dense_at": [{"steps": one} | paired for one, paired in minus.items() if paired]}
                found.append({"steps": steps, "seeds": len(verdicts)} | self._accuracy(mean) | against)
        return {"by_steps": found}

    def _behind(self, row: Row, budget: int) -> dict[str, Any]:
        """By how much the study's first row is better at the same budget, paired by seed, by prompt and by example."""
        first, found = self.study.rows[0], {}
        if row is first or budget not in self.study.budgets_of(first):
            return found
        ours, other = _shared(self._verdicts(first, budget), self._verdicts(row, budget))
        if ours and other:
            ours, other = _mean_right(ours), _mean_right(other)
            count = min(len(ours), len(other))
            found |= self._minus(ours[:count], other, "lead") | {"lead_images": count}
        ours, other = _shared(self._losses(first, budget), self._losses(row, budget))
        if ours and other:
            (below, times), (above, _) = (np.mean([*one.values()], axis=0) for one in (ours, other))
            change = above - below
            found |= {"loss_lead": float(change.mean()), "loss_lead_interval": _spread(change)}
            parts = [
                [float(one.mean()), *(_spread(one) or ())] if len(one) else None for one in _by_time(change, times)
            ]
            found["loss_lead_by_time"] = parts
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


def _mean_right(verdicts: dict[int, np.ndarray]) -> np.ndarray:
    """How often each prompt is right: the mean over training seeds. (pictures,)."""
    return np.mean([letters == RIGHT for letters in verdicts.values()], axis=0)


def _shared(first: dict[int, Any], second: dict[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Both at the training seeds they share, which draw the same data, noise and budgets; else at all they have."""
    seeds = set(first) & set(second) or {*first, *second}
    first, second = ({seed: one for seed, one in some.items() if seed in seeds} for some in (first, second))
    return first, second


def _by_time(values: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
    return [values[(times >= low) & (times < high)] for low, high in pairwise(TIME_EDGES)]


def _spread(values: np.ndarray) -> list[float] | None:
    return as_list(mean_interval(values))
