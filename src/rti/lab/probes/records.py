"""What a probe is, and the one runner of all: it leaves NAME.json, from which the figures are drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from rti.errors import InputError
from rti.files import in_one_line, read_json, write_whole
from rti.lab.probes.trajectory import Moment, Run

Tree = dict[str, Any]  # of tensors, or of more such


@dataclass(frozen=True)
class Probe:
    """What one probe measures. Everything else is `run_probe`."""

    name: str
    settings: dict[str, Any]  # what the result depends on, beside those of the run
    measure: Callable[[Moment], Tree]  # at a watched step: values of each picture, (count, ...)
    summary: Callable[[Sequence[Tree]], dict[str, Any]]  # of the records of all prompts, values by watched step
    of_pictures: Callable[[torch.Tensor], Tree] = lambda pictures: {}  # of the pictures drawn, (B, C, H, W)
    budgets: Sequence[int] = ()  # follow the trained regions at each of these; none: the frozen model's tokens


def run_probe(run: Run, folder: Path, probe: Probe) -> dict[str, Any]:
    """Measure every prompt, write NAME.json, and give it back."""
    with in_one_line(f"cannot write to {folder}"):  # before the work
        folder.mkdir(parents=True, exist_ok=True)
    count, records = len(run.subjects), []
    steps = count * run.steps * max(1, len(probe.budgets))
    with tqdm(total=steps, unit="step", desc=probe.name, disable=not run.progress) as bar:
        for first in range(0, count, run.batch):
            records += _measured(run, probe, range(first, min(first + run.batch, count)), bar.update)
    values = {"probe": probe.name} | probe.settings | run.settings()
    values |= {"patches": run.pipe.backbone.patches, "times": run.times, "prompts": count}
    return write_data(folder / f"{probe.name}.json", values | probe.summary(records))


def _measured(run: Run, probe: Probe, indices: Sequence[int], advance: Callable[[int], object]) -> Iterator[Tree]:
    """The record of each prompt."""

    def follow(budget: int | None = None) -> Tree:
        steps: list[Tree] = []
        drawn = run.follow(indices, lambda moment: steps.append(probe.measure(moment)), budget, advance)
        return _map(lambda *values: torch.stack(values, dim=1), *steps) | probe.of_pictures(drawn)

    found = {"budgets": {str(budget): follow(budget) for budget in probe.budgets}} if probe.budgets else follow()
    return (_map(lambda value, place=place: rounded(value[place].cpu()), found) for place in range(len(indices)))


def _map(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the values of trees of one shape."""
    if not isinstance(trees[0], dict):
        return function(*trees)
    return {name: _map(function, *(tree[name] for tree in trees)) for name in trees[0]}


def write_data(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Write what was measured as JSON, and give it back as it will be read."""
    text = json.dumps(values, separators=(",", ":"))
    write_whole(path, text + "\n")
    return json.loads(text)


def read_data(path: Path, probe: str) -> dict[str, Any]:
    """What `write_data` wrote for a probe; a folder means the file of that name in it."""
    path = Path(path)
    path = path / f"{probe}.json" if os.path.isdir(path) else path
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist; rti probe {probe} makes it")
    values = read_json(path)
    if values.get("probe") != probe:
        raise InputError(f"{path} is not what rti probe {probe} writes")
    return values


def rounded(values: Any) -> Any:
    """Numbers as a file keeps them: six digits, wherever the point is."""
    values = np.asarray(values, dtype=np.float64)
    return np.vectorize(lambda value: float(f"{value:.6g}"), otypes=[float])(values).tolist()


def standard_error(values: np.ndarray) -> Any:
    """The standard error of the mean over prompts, the first axis; None of a single one."""
    return None if len(values) < 2 else rounded(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
