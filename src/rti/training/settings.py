"""The settings of a run in its folder: what it was begun with, it goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.files import read_json, write_whole
from rti.training.state import checkpoints

CONFIG = "config.json"


def check_unchanged(folder: Path, settings: dict[str, Any], free: set[str]) -> None:
    """Refuse to go on with a run under other settings than it was begun with; those in `free` may change.

    A run that has no checkpoint has not begun. Nothing is written but the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    path = folder / CONFIG
    if not path.is_file() or not checkpoints(folder):
        return
    before, now = read_json(path), json.loads(json.dumps(settings))
    changed = [key for key in sorted(set(before) | set(now)) if key not in free and before.get(key) != now.get(key)]
    if changed:
        raise InputError(f"{folder} holds a run with another {', '.join(changed)}; choose another output folder")


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Save the settings with the run, whole or not at all."""
    write_whole(folder / CONFIG, json.dumps(settings, indent=2) + "\n")
