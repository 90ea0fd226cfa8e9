"""Results prompt by prompt in a file: a probe that was stopped goes on with the same command.

One JSON object a line: first the settings, then a record for each prompt, appended as it is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rti.errors import InputError
from rti.files import read_json, write_whole
from rti.lab.probes.trajectory import Run


class Journal:
    """The records of one probe, by the number of the prompt."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path, self.settings = path, settings
        self.records: dict[int, dict[str, Any]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            self._read(lines)
            # Whole again, without a line that a stop has torn.
            text = [json.dumps({"settings": settings}), *map(json.dumps, self.records.values())]
            write_whole(path, "\n".join(text) + "\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot use {path}: {getattr(error, 'strerror', None) or error}") from None

    def _read(self, lines: Sequence[str]) -> None:
        values = []
        for line in lines:
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError):
                break
        if not values:
            return
        found = values[0].get("settings") if isinstance(values[0], dict) else None
        if not isinstance(found, dict):
            raise InputError(f"{self.path} is no journal of a probe; give another --output")
        wanted = json.loads(json.dumps(self.settings))
        for name in {**wanted, **found}:
            if found.get(name) != wanted.get(name):
                raise InputError(
                    f"{self.path} was begun with {name} {found.get(name)!r}, not {wanted.get(name)!r}; "
                    "give another --output, or the same settings"
                )
        try:
            self.records = {record["prompt"]: record for record in values[1:] if "subject" in record}
        except (TypeError, KeyError):
            raise InputError(f"{self.path} is damaged; give another --output, or delete it") from None

    def missing(self, subjects: Sequence[Any]) -> list[int]:
        """The prompts that are still to be done."""
        known = self.records
        for index, subject in enumerate(subjects):
            if index in known and known[index]["subject"] != subject:
                raise InputError(
                    f"{self.path} was begun with the prompt {known[index]['subject']!r}, not {subject!r}; "
                    "give another --output, or the same prompts"
                )
        return [index for index in range(len(subjects)) if index not in known]

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        self.records |= {record["prompt"]: record for record in records}


def run_probe(
    run: Run,
    path: Path,
    settings: dict[str, Any],
    measure: Callable[[list[int], Callable[[int], object]], list[dict[str, Any]]],
    passes: int = 1,
) -> list[dict[str, Any]]:
    """Every prompt's record, in order: those that are in the journal, and the rest by `measure(indices, advance)`.

    `measure` gives one dict per prompt and calls `advance(pictures)` after each step of each of its `passes`.
    """
    from tqdm.auto import tqdm

    journal = Journal(path, settings | run.settings())
    todo = journal.missing(run.subjects)
    total = len(run.subjects) * run.steps * passes
    done = total - len(todo) * run.steps * passes
    with tqdm(total=total, initial=done, unit="step", desc=path.stem, disable=not run.progress or not todo) as bar:
        for first in range(0, len(todo), run.batch):
            indices = todo[first : first + run.batch]
            found = measure(indices, bar.update)
            heads = [{"prompt": index, "subject": run.subjects[index]} for index in indices]
            journal.add([head | one for head, one in zip(heads, found, strict=True)])
    return [journal.records[index] for index in range(len(run.subjects))]


def write_data(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Write what was measured as JSON, and give it back as it will be read."""
    text = json.dumps(values, indent=1)
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
