"""What a study found so far: everything in results.json, and a table and figures beside it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti import cost
from rti.errors import InputError
from rti.files import write_whole
from rti.lab.intervals import stratified_summary
from rti.lab.scenes import TASKS
from rti.lab.study.figures import draw_figures
from rti.lab.study.plan import Row, Study, plan
from rti.lab.study.records import RIGHT, Records, unpacked
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


def save(values: dict[str, Any], folder: Path) -> list[Path]:
    """Write results.json, and the table and figures beside it; gives back the figures."""
    write_whole(folder / "results.json", json.dumps(values, indent=1) + "\n")
    write_whole(folder / "table.md", table(values))
    return draw_figures(values, folder)


class _Report:
    """What the jobs left: right pictures (n,), by run, budget and steps; losses above dense (n,), by run and budget;
    speeds by row and budget. A run is a row with a training seed, or dense."""

    def __init__(self, study: Study, folder: Path):
        records = Records(folder)
        self.study, self.tasks = study, [task for task, _ in records.prompts]
        self.jobs = {job: records.of(job) for job in plan(study)}
        self.found: dict[tuple[Any, ...], Any] = {}
        for job, kept in self.jobs.items():
            result = {} if kept is None else kept["result"]
            for budget, letters in result.get("verdicts", {}).items():
                self.found["right", job.run, budget, job.steps] = np.array([*letters]) == RIGHT
            for budget, losses in result.get("losses", {}).items():
                self.found["loss", job.run, budget] = unpacked(losses) - unpacked(result["losses"]["dense"])
            for one in result["rows"] if result and job.kind == "time" else ():
                self.found["speed", job.run, str(one["budget"])] = one["speedup"]
        try:
            self.model = describe(study.model)
        except InputError:
            self.model = None  # it is not at hand

    def dense(self) -> list[dict[str, Any]]:
        """The frozen backbone at each number of sampling steps, also on the prompts of the rows that vary the steps."""
        counts = [row.images[budget] for row in self.study.rows for budget in row.steps_at if budget in row.images]
        found = []
        for steps in self.study.every_steps:
            if (right := self.found.get(("right", "dense", "dense", steps))) is not None:
                same = {"same_prompts": self._accuracy(right[: min(counts)])} if counts else {}
                found.append({"steps": steps} | self._accuracy(right) | same)
        return found

    def row(self, row: Row, budget: int) -> dict[str, Any]:
        """All that is known of a method at a budget."""
        values: dict[str, Any] = {"name": row.name, "title": row.title, "group": row.group, "budget": budget}
        values |= {"seen": budget in self.study.budgets, "elastic": row.is_elastic}
        if losses := self._by_seed("loss", row, budget):
            values |= _change("loss_difference", "loss_interval", _mean(losses))
        values |= self._speed(row, budget)
        steps = self.study.sample_steps
        if right := self._by_seed("right", row, budget, steps):
            values |= self._accuracy(_mean(right)) | self._minus_dense(_mean(right), steps) | {"seeds": len(right)}
            values["overall_by_seed"] = [self._accuracy(one)["overall"] for one in right.values()]
        return values | self._by_steps(row, budget) | self._behind(row, budget)

    def _by_seed(self, kind: str, row: Row, budget: int, *steps: int) -> dict[int, np.ndarray]:
        """What each training seed that is done has left."""
        keys = {seed: (kind, f"{row.name}-{seed}", str(budget), *steps) for seed in row.seeds}
        return {seed: self.found[key] for seed, key in keys.items() if key in self.found}

    def _speed(self, row: Row, budget: int) -> dict[str, float]:
        """Measured, if it is done; and by the paper's count, which needs no measurement but the model's shape."""
        key, found = ("speed", row.name, str(budget)), {}
        if key in self.found:
            found["speedup"] = self.found[key]
        if self.model is not None:
            backbone, _, usual = self.model
            config = untrained_config(row.reduction, self.study.reduction_settings(row), usual=usual.core)
            with torch.device("meta"):
                flops = cost.reduced_flops(backbone, make_reduction(config, backbone), budget)
            found["analytic_speedup"] = round(cost.dense_flops(backbone) / flops, 3)
        return found

    def _by_steps(self, row: Row, budget: int) -> dict[str, Any]:
        """The row at fewer sampling steps, and at the study's own; each paired with dense at every number of steps."""
        found = []
        for steps in (*row.steps_at.get(budget, ()), self.study.sample_steps):
            if right := self._by_seed("right", row, budget, steps):
                pairs = [{"steps": one} | self._minus_dense(_mean(right), one) for one in self.study.every_steps]
                against = {"minus_dense_at": [pair for pair in pairs if "difference" in pair]}
                found.append({"steps": steps, "seeds": len(right)} | self._accuracy(_mean(right)) | against)
        return {"by_steps": found} if any(one["steps"] != self.study.sample_steps for one in found) else {}

    def _behind(self, row: Row, budget: int) -> dict[str, Any]:
        """By how much the study's first row is better at the same budget, paired by seed, by prompt and by example."""
        ours, found = self.study.rows[0], {}
        if row is ours:
            return found
        drawn = [self._by_seed("right", one, budget, self.study.sample_steps) for one in (ours, row)]
        if (more := _minus(*drawn)) is not None:
            found |= _change("lead", "lead_interval", more, self.tasks)
        if (less := _minus(*(self._by_seed("loss", one, budget) for one in (row, ours)))) is not None:
            found |= _change("loss_lead", "loss_lead_interval", less)
        return found

    def _accuracy(self, right: np.ndarray) -> dict[str, Any]:
        tasks, _, overall, interval = stratified_summary(right, self.tasks[: len(right)], shares=True)
        return {"images": len(right), "overall": overall, "interval": interval, "tasks": tasks}

    def _minus_dense(self, right: np.ndarray, steps: int) -> dict[str, Any]:
        """The mean paired difference: fewer pictures are the first of more, so they are paired with their first."""
        dense = self.found.get(("right", "dense", "dense", steps), ())
        if len(dense) < len(right):
            return {}
        return _change("difference", "difference_interval", right - dense[: len(right)], self.tasks)


def _mean(by_seed: dict[int, np.ndarray]) -> np.ndarray:
    return np.mean([*by_seed.values()], axis=0)


def _minus(first: dict[int, np.ndarray], second: dict[int, np.ndarray]) -> np.ndarray | None:
    """The difference of the means over the training seeds that both have, which draw the same data, noise and budgets;
    else over all they have. Of two lengths the shorter: fewer pictures are the first of more."""
    if not first or not second:
        return None
    seeds = set(first) & set(second) or {*first, *second}
    one, other = (_mean({seed: some[seed] for seed in some if seed in seeds}) for some in (first, second))
    count = min(len(one), len(other))
    return one[:count] - other[:count]


def _change(name: str, interval_name: str, values: np.ndarray, tasks: list[str] | None = None) -> dict[str, Any]:
    """The mean of differences, and its interval; of pictures by task."""
    found = stratified_summary(values, ["all"] * len(values) if tasks is None else tasks[: len(values)])
    return {name: found.overall, interval_name: found.interval}


def table(values: dict[str, Any]) -> str:
    """Markdown in the layout of the paper's Table 1: dense, then budgets from rich to lean, each with every method."""
    head = ["method", "R", "speed", "analytic", *(task.replace("_", " ") for task in TASKS)]
    lines = [[*head, "overall", "minus dense", "pictures", "loss minus dense"]]
    lines.append(["---"] * len(lines[0]))
    dense = [{"title": "dense", "seeds": 1, "speedup": 1, "analytic_speedup": 1} | one for one in values["dense"][:1]]
    for row in (*dense, *sorted(values["rows"], key=lambda row: -row["budget"])):
        tasks = row.get("tasks", {})
        budget = f"{row['budget']}{'' if row['seen'] else ' (unseen)'}" if row.get("elastic") else "its own"
        lines.append(
            [
                row["title"],
                budget if "budget" in row else "",
                *(f"{row[name]:.2f}x" if name in row else "" for name in ("speedup", "analytic_speedup")),
                *(f"{100 * tasks[task]:.1f}" if task in tasks else "" for task in TASKS),
                _with_interval(row, "overall", "interval", 100, ".1f"),
                _with_interval(row, "difference", "difference_interval", 100, "+.1f"),
                str(row["images"] * row["seeds"]) if "images" in row else "",
                _with_interval(row, "loss_difference", "loss_interval", 1, "+.4f"),
            ]
        )
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _with_interval(row: dict[str, Any], name: str, interval: str, scale: float, form: str) -> str:
    """A value with its interval; values that do not vary have none."""
    if name not in row:
        return ""
    number, *edges = (f"{scale * one:{form}}" for one in (row[name], *(row[interval] or ())))
    return f"{number} ({' to '.join(edges)})" if edges else number
