"""What the jobs of a study have left behind, read for the report."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rti.errors import InputError
from rti.files import read_json
from rti.lab.study.plan import Row, Study, budgets_of, plan, reduction_settings
from rti.lab.study.run import result_of


class Verdicts(NamedTuple):
    """Of one prompt after the other: how often right (0 or 1; a share where seeds are averaged), and its task."""

    right: np.ndarray
    tasks: list[str]

    def first(self, count: int) -> Verdicts:
        """Fewer pictures are the first of more, so these are paired with any other row's first."""
        return Verdicts(self.right[:count], self.tasks[:count])


def mean_of(several: list[Verdicts]) -> Verdicts:
    return Verdicts(np.mean([one.right for one in several], axis=0), several[0].tasks)


class Results:
    """The results of a study's folder, as far as its jobs are done. Of a row: by training seed."""

    def __init__(self, study: Study, folder: Path):
        self.study, self.folder = study, folder
        self.jobs = {job.name: job for job in plan(study, folder)}
        self._read: dict[str, list[dict[str, Any]]] = {}  # pictures of jobs, which several rows are compared with

    def result(self, name: str) -> dict[str, Any] | None:
        return None if name not in self.jobs else result_of(self.folder, self.jobs[name])

    @cached_property
    def done(self) -> int:
        return sum(self.result(name) is not None for name in self.jobs)

    def dense(self, steps: int) -> Verdicts | None:
        pictures = self._judged(f"pictures-dense-dense-{steps}-steps")
        return None if pictures is None else _verdicts(pictures, "dense")

    def judged(self, row: Row, budget: int, steps: int | None = None) -> dict[int, list[dict[str, Any]]]:
        """Every picture of a row at a budget with its verdicts; `steps` other than the study's are drawn apart."""
        together = [budget]
        if steps is None:  # with the budgets of which as many pictures are wanted
            steps, wanted = self.study.sample_steps, row.images.get(budget)
            together = [one for one in budgets_of(self.study, row) if wanted and row.images.get(one) == wanted]
        typed = f"{'-'.join(map(str, together))}-{steps}-steps"
        found = {seed: self._judged(f"pictures-{row.name}-{seed}-{typed}") for seed in row.seeds}
        return {seed: pictures for seed, pictures in found.items() if pictures is not None}

    def verdicts(self, row: Row, budget: int, steps: int | None = None) -> dict[int, Verdicts]:
        found = self.judged(row, budget, steps)
        return {seed: _verdicts(pictures, str(budget)) for seed, pictures in found.items()}

    def losses(self, row: Row, budget: int) -> tuple[dict[int, np.ndarray], np.ndarray | None]:
        """The loss of every example above that of dense, and the times of the examples."""
        changes, times = {}, None
        for seed in row.seeds:
            name = f"loss-{row.name}-{seed}"
            if self.result(name) is None:
                continue
            path = self.folder / "losses" / f"{row.name}-{seed}.json"
            try:
                kept = read_json(path)
                times, losses = np.array(kept["times"], dtype=float), kept["losses"]
                above, dense = (np.array(losses[name], dtype=float) for name in (str(budget), "dense"))
                changes[seed] = above - dense
                if not 0 < len(times) == len(changes[seed]):
                    raise ValueError
            except (ValueError, KeyError, TypeError):  # InputError is one
                raise InputError(f"{path} is missing or damaged; {self._again(name, 'measure')}") from None
        return changes, times

    def speed(self, row: Row, budget: int) -> dict[str, Any]:
        """Measured, if it is done; and by the paper's count, which needs no measurement."""
        rows = (self.result(f"time-{row.name}") or {"rows": []})["rows"]
        measured = next((one["speedup"] for one in rows if one["budget"] == budget), None)
        found = {"speedup": measured, "analytic_speedup": self._analytic(row, budget)}
        return {name: value for name, value in found.items() if value is not None}

    @cached_property
    def _backbone(self) -> tuple[Any, tuple[int, int]] | None:
        """The shape of the study's model, and its core; None where the model is not at hand."""
        from rti.resolve import describe

        try:
            backbone, _, config = describe(self.study.model)
        except InputError:
            return None
        return backbone, config.core

    def _analytic(self, row: Row, budget: int) -> float | None:
        import torch

        from rti import cost
        from rti.method.reductions import make_reduction
        from rti.resolve import untrained_config

        if self._backbone is None:
            return None
        backbone, core = self._backbone
        config = untrained_config(row.reduction, reduction_settings(self.study, row), usual=core)
        with torch.device("meta"):
            flops = cost.reduced_flops(backbone, make_reduction(config, backbone), budget)
        return round(cost.dense_flops(backbone) / flops, 3)

    def _judged(self, name: str) -> list[dict[str, Any]] | None:
        if self.result(name) is None:
            return None
        if name in self._read:
            return self._read[name]
        path = self.folder / "pictures" / name.removeprefix("pictures-") / "results.json"
        try:
            pictures = read_json(path)["pictures"]
            if not all({"task", "caption", "correct", "reason"} <= one.keys() for one in pictures):
                raise ValueError
            self._read[name] = pictures
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path} is missing or damaged; {self._again(name, 'draw')}") from None
        return self._read[name]

    def _again(self, name: str, what: str) -> str:
        return f"delete {self.folder / 'jobs' / name}.json to {what} again"


def _verdicts(pictures: list[dict[str, Any]], budget: str) -> Verdicts:
    right = np.array([one["correct"][budget] for one in pictures], dtype=np.float64)
    return Verdicts(right, [one["task"] for one in pictures])
