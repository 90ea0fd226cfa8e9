"""The results of a study's folder as arrays, as far as its jobs are done. Of a row: by training seed."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti import cost
from rti.errors import InputError
from rti.lab.study.faults import RIGHT
from rti.lab.study.plan import Row, Study, plan
from rti.lab.study.records import Records, unpacked
from rti.method.reductions import make_reduction
from rti.resolve import describe, untrained_config


class Results:
    """Pictures are strings of letters, one for each prompt; see `records`."""

    def __init__(self, study: Study, folder: Path):
        self.study, self.jobs, self.records = study, plan(study), Records(folder)
        self.prompts = self.records.prompts
        self.done = sum(self.records.of(job) is not None for job in self.jobs)

    def _find(self, kind: str, run: str, budget: int | str | None = None, steps: int | None = None) -> Any:
        for job in self.jobs:
            if (job.kind, job.run, job.steps) == (kind, run, steps) and (budget is None or budget in job.budgets):
                return (self.records.of(job) or {}).get("result")
        return None

    def dense(self, steps: int) -> np.ndarray | None:
        """Whether each of the frozen backbone's pictures is right."""
        found = self._find("pictures", "dense", "dense", steps)
        return None if found is None else _is_right(found["verdicts"]["dense"])

    def letters(self, row: Row, budget: int, steps: int | None = None) -> dict[int, str]:
        """Verdicts on every picture of a row at a budget, and at a number of sampling steps: the study's own, if none."""
        steps = steps or self.study.sample_steps
        found = {seed: self._find("pictures", f"{row.name}-{seed}", budget, steps) for seed in row.seeds}
        return {seed: some["verdicts"][str(budget)] for seed, some in found.items() if some is not None}

    def right(self, row: Row, budget: int, steps: int | None = None) -> dict[int, np.ndarray]:
        return {seed: _is_right(letters) for seed, letters in self.letters(row, budget, steps).items()}

    def losses(self, row: Row, budget: int) -> tuple[dict[int, np.ndarray], np.ndarray | None]:
        """The loss of every example above that of dense, and the times of the examples."""
        changes, times = {}, None
        for seed in row.seeds:
            found = self._find("loss", f"{row.name}-{seed}")
            if found is not None:
                times, losses = unpacked(found["times"]), found["losses"]
                changes[seed] = unpacked(losses[str(budget)]) - unpacked(losses["dense"])
        return changes, times

    def speed(self, row: Row, budget: int) -> dict[str, float]:
        """Measured, if it is done; and by the paper's count, which needs no measurement."""
        rows = (self._find("time", row.name) or {"rows": []})["rows"]
        measured = next((one["speedup"] for one in rows if one["budget"] == budget), None)
        found = {"speedup": measured, "analytic_speedup": self._analytic(row, budget)}
        return {name: value for name, value in found.items() if value is not None}

    @cached_property
    def _model(self) -> tuple[Any, tuple[int, int]] | None:
        """The shape of the study's model, and its core; None where the model is not at hand."""
        try:
            backbone, _, config = describe(self.study.model)
        except InputError:
            return None
        return backbone, config.core

    def _analytic(self, row: Row, budget: int) -> float | None:
        if self._model is None:
            return None
        backbone, core = self._model
        config = untrained_config(row.reduction, self.study.reduction_settings(row), usual=core)
        with torch.device("meta"):
            flops = cost.reduced_flops(backbone, make_reduction(config, backbone), budget)
        return round(cost.dense_flops(backbone) / flops, 3)


def _is_right(letters: str) -> np.ndarray:
    return np.array([letter == RIGHT for letter in letters], dtype=float)
