"""Verdicts of earlier evaluations: what was drawn before, here or on another machine, need not be drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rti.errors import InputError
from rti.files import read_json
from rti.lab import scenes


class Earlier:
    """The rows of results.json in folders that `rti eval scenes --output` wrote."""

    def __init__(self, folders: Sequence[str | Path] = ()):
        self.files = {Path(folder): _read(Path(folder) / "results.json") for folder in folders}
        self.unused = dict.fromkeys(self.files, "it has none of these budgets")  # why, by folder

    def find(
        self, name: int | str, how: dict[str, Any], prompts: Sequence[scenes.Scene]
    ) -> tuple[scenes.SceneScore, float] | None:
        """Score and seconds of a row drawn in just this way, of these prompts or of more that begin with them."""
        for folder, values in self.files.items():
            row = next((row for row in values["rows"] if row["budget"] == name), None)
            if row is None:
                continue
            pictures = values["pictures"][: len(prompts)]
            why = _difference(row.get("how"), how)
            if not why and [one["caption"] for one in pictures] != [scene.caption for scene in prompts]:
                why = f"it has {len(values['pictures'])} pictures, which do not begin with the {len(prompts)} asked for"
            if why:
                self.unused = {key: why if key == folder else value for key, value in self.unused.items()}
                continue
            self.unused.pop(folder, None)
            correct = np.array([one["correct"][str(name)] for one in pictures], dtype=bool)
            reasons = [one["reason"][str(name)] for one in pictures]
            share = len(prompts) / len(values["pictures"])
            return scenes.score_of_verdicts(prompts, correct, reasons), row["seconds"] * share
        return None


def _difference(there: dict[str, Any] | None, here: dict[str, Any]) -> str:
    """What differs first between two ways of drawing; empty where nothing does."""
    if there is None:
        return "it was written before rows said how they were drawn"
    for key, value in here.items():
        if there.get(key) != value:
            return "it is of another model" if key == "model" else f"{key} is {there.get(key)} there and {value} here"
    return ""


def _read(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except InputError as error:
        raise InputError(f"{error}; it holds no results, expected what --output wrote") from None
    try:
        names = [str(row["budget"]) for row in values["rows"] if row["seconds"] >= 0]
        whole = all(
            isinstance(one["caption"], str) and set(names) <= set(one["correct"]) & set(one["reason"])
            for one in values["pictures"]
        )
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise InputError(f"{path} holds no results of rti eval scenes")
    return values
