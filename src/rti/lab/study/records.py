"""What the jobs of a study have left behind: one file, a line of JSON for each job that ended; of two, the last counts.

    {"name": "train-gaps-0", "command": ["train", ...], "seconds": 1654.8, "result": {"step": 1000, ...}}

The result is what the command printed. Of two kinds of jobs it is what they wrote, in short:

- loss: `times` and `losses` of the examples, by budget, as float32 in base64;
- pictures: `verdicts` by budget, a letter for each picture: "." if it is right, any other if it is wrong. Tasks and
  captions stand in a line of their own, "prompts", once: every job draws the first so many of them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from rti.errors import InputError
from rti.files import read_json, require_regular
from rti.lab.study.plan import Job

RIGHT, WRONG = ".", "x"


class Records:
    """The records of a folder. Each line is appended at once, so several commands may share a folder."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "records.jsonl"
        self.prompts: list[list[str]] = []  # task and caption
        self._lines: dict[str, dict[str, Any]] = {}
        if not self.path.exists():
            if (folder / "jobs").exists():
                how = "scripts/pack_study.py of the repository converts it"
                raise InputError(f"{folder / 'jobs'} is of an earlier version of rti; {how}")
            return
        require_regular(self.path)
        lines = self.path.read_bytes().split(b"\n")[:-1]  # a last one without an end was never written to its end
        for number, line in enumerate(lines, start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise InputError(f"line {number} of {self.path} is damaged; delete it to do its job again") from None

    def of(self, job: Job) -> dict[str, Any] | None:
        """A job's command, seconds and result, or None if it has not been done. Refuses those of another command."""
        found = self._lines.get(job.name)
        if found is None or found["result"] is None:
            return None
        if found["command"] != list(job.command):
            other = " ".join(map(str, found["command"]))
            raise InputError(f"{job.name} in {self.path} is of another command ({other}); choose another folder")
        return found

    def keep(self, job: Job, seconds: float, printed: dict[str, Any]) -> None:
        """Add a job that ended well."""
        if job.kind == "loss":
            values = read_json(job.made(self.folder))
            losses = {budget: _packed(some) for budget, some in values["losses"].items()}
            printed = {"times": _packed(values["times"]), "losses": losses}
        elif job.kind == "pictures":
            printed = {"verdicts": self._verdicts(job.made(self.folder))}
        self._add({"name": job.name, "command": list(job.command), "seconds": round(seconds, 1), "result": printed})

    def forget(self, job: Job) -> None:
        """One that is done again is not done until it ends: interrupted, it leaves half a product behind."""
        if job.name in self._lines:
            self._add({"name": job.name, "command": list(job.command), "result": None})

    def _verdicts(self, path: Path) -> dict[str, str]:
        """The pictures that `rti eval scenes` judged, as letters by budget."""
        pictures = read_json(path)["pictures"]
        prompts = [[one["task"], one["caption"]] for one in pictures]
        shared = min(len(prompts), len(self.prompts))
        if prompts[:shared] != self.prompts[:shared]:
            raise InputError(f"{path} has other prompts than the jobs before it; choose another folder")
        if len(prompts) > shared:
            self._add({"name": "prompts", "prompts": prompts})
        budgets = pictures[0]["correct"]
        return {key: "".join(RIGHT if one["correct"][key] else WRONG for one in pictures) for key in budgets}

    def _add(self, record: dict[str, Any]) -> None:
        with self.path.open("ab+") as file:
            file.seek(0)
            before = file.read()
            if before and not before.endswith(b"\n"):
                file.truncate(before.rfind(b"\n") + 1)  # what a killed process wrote of a line
            file.write(json.dumps(record).encode() + b"\n")
        self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        if record["name"] == "prompts":
            self.prompts = max(self.prompts, record["prompts"], key=len)
        else:
            _, result = record["command"], record["result"]
            if result and "losses" in result:
                (_,) = {len(unpacked(some)) for some in (result["times"], *result["losses"].values())}  # one length
            self._lines[record["name"]] = record


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(float)


def _packed(values: list[float]) -> str:
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()
