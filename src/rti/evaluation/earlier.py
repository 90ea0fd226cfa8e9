"""Verdicts of earlier evaluations: what was drawn before, here or on another machine, need not be drawn again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rti import scenes
from rti.errors import InputError


class Earlier:
    """The rows of results.json in folders that `rti eval scenes --output` wrote."""

    def __init__(self, folders: Sequence[str | Path]):
        self.files = [_read(Path(folder) / "results.json") for folder in folders]

    def find(
        self, name: int | str, how: dict[str, Any], prompts: Sequence[scenes.Scene]
    ) -> tuple[scenes.SceneScore, float] | None:
        """Score and seconds of a row drawn in just this way, of these prompts or of more that begin with them."""
        for values in self.files:
            row = next((row for row in values["rows"] if row["budget"] == name and row.get("how") == how), None)
            pictures = values["pictures"][: len(prompts)]
            if row is None or [one["caption"] for one in pictures] != [scene.caption for scene in prompts]:
                continue
            correct = np.array([one["correct"][str(name)] for one in pictures], dtype=bool)
            reasons = [one["reason"][str(name)] for one in pictures]
            share = len(prompts) / len(values["pictures"])
            return scenes.score_of_verdicts(prompts, correct, reasons), row["seconds"] * share
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; expected what --output wrote") from None
    except ValueError:
        raise InputError(f"{path} is damaged; draw again without it") from None
    if not isinstance(values, dict) or not all(isinstance(values.get(key), list) for key in ("rows", "pictures")):
        raise InputError(f"{path} holds no results of rti eval scenes")
    return values
