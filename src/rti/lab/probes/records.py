"""What a probe is, and the one runner of all: prompt by prompt into a file, so that it goes on where it stopped.

NAME.jsonl has one JSON object a line: first the settings, then a record for each prompt, appended as it is done.
NAME.json is the result, from which the figures are drawn.
"""

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
from rti.files import first_line, read_json, write_whole
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
    """Measure what is not in the journal yet, write NAME.json, and give it back."""
    settings = {"probe": probe.name} | probe.settings | run.settings()
    journal = Journal(folder / f"{probe.name}.jsonl", settings)
    todo, every = journal.missing(run.subjects), range(len(run.subjects))
    steps = run.steps * max(1, len(probe.budgets))
    counts = {"total": len(every) * steps, "initial": (len(every) - len(todo)) * steps}
    with tqdm(**counts, unit="step", desc=probe.name, disable=not run.progress or not todo) as bar:
        for first in range(0, len(todo), run.batch):
            indices = todo[first : first + run.batch]
            heads = [{"prompt": index, "subject": run.subjects[index]} for index in indices]
            found = _measured(run, probe, indices, bar.update)
            journal.add([head | one for head, one in zip(heads, found, strict=True)])
    records = [journal.records[index] for index in every]
    values = settings | {"patches": run.pipe.backbone.patches, "times": run.times, "prompts": len(records)}
    return write_data(folder / f"{probe.name}.json", values | probe.summary(records))


def _measured(run: Run, probe: Probe, indices: list[int], advance: Callable[[int], object]) -> Iterator[Tree]:
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


class Journal:
    """The records of one probe, by the number of the prompt."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = path
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            self.records = self._read(lines, json.loads(json.dumps(settings)))
            # Whole again, without a line that a stop has torn.
            write_whole(
                path, "".join(json.dumps(one) + "\n" for one in ({"settings": settings}, *self.records.values()))
            )
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot use {path}: {first_line(error)}") from None

    def _read(self, lines: Sequence[str], wanted: dict[str, Any]) -> dict[int, dict[str, Any]]:
        values = []
        for line in lines:
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError):
                break
        if not values:
            return {}
        begun = values[0].get("settings") if isinstance(values[0], dict) else None
        if not isinstance(begun, dict):
            raise InputError(f"{self.path} is no journal of a probe; give another --output")
        for name in wanted | begun:
            self._same(name, begun.get(name), wanted.get(name))
        try:
            return {record["prompt"]: record for record in values[1:] if "subject" in record}
        except (TypeError, KeyError):
            raise InputError(f"{self.path} is damaged; give another --output, or delete it") from None

    def _same(self, name: str, begun: Any, wanted: Any) -> None:
        if begun != wanted:
            why = f"{self.path} was begun with {name} {begun!r}, not {wanted!r}"
            raise InputError(f"{why}; give another --output, or the same settings and prompts")

    def missing(self, subjects: Sequence[Any]) -> list[int]:
        """The prompts that are still to be done."""
        for index, subject in enumerate(subjects):
            self._same("the prompt", self.records.get(index, {"subject": subject})["subject"], subject)
        return [index for index in range(len(subjects)) if index not in self.records]

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        self.records |= {record["prompt"]: record for record in records}


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
