"""The settings of a run, from what was typed; and in its folder: what it was begun with, it goes on with."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.files import read_json, write_whole
from rti.hub import is_repository_name
from rti.method.config import ReductionConfig, check_all_finite
from rti.method.reductions import REDUCTIONS
from rti.parsing import convert_stored
from rti.presets import PRESETS, SCENES_TRAINING, find_preset
from rti.training.config import TrainConfig, preset_values
from rti.training.state import checkpoints

CONFIG = "config.json"


def resolve(
    given: dict[str, Any], reduction: str | None = None, dry_run: bool = False
) -> tuple[TrainConfig, ReductionConfig]:
    """The settings of a run of `rti train`: the preset's, or those of a config file, overridden by what is typed.

    `given` are settings of the run and of its reduction, as text or as values; a dry run needs but the model. A model
    that is a .json file is the config of another run.
    """
    stored, name = {}, reduction or "region"
    if Path(str(given.get("model"))).suffix == ".json":
        stored = read_json(Path(given["model"]))
        of_reduction = stored.pop("reduction", {})
        if not isinstance(of_reduction, dict):
            raise InputError(f"reduction {of_reduction!r} is not usable; expected an object with its settings")
        kept = of_reduction.pop("reduction", "region")
        name = reduction or kept
        stored |= of_reduction if name == kept else {"core": of_reduction.get("core")}
        given = {key: value for key, value in given.items() if key != "model"}
    if name not in REDUCTIONS:
        raise InputError(f"unknown reduction {name!r}; allowed: {', '.join(REDUCTIONS)}")
    kind = REDUCTIONS[name][0]
    values = convert_stored(stored | given, kind, TrainConfig)
    model = values.get("model")
    if model is not None and not os.path.exists(model):
        if model in SCENES_TRAINING or find_preset(model) is not None:
            usual = preset_values(model)
            values = usual | {"core": kind.own_core(usual["core"])} | values
        elif not is_repository_name(model):
            names = ", ".join([*SCENES_TRAINING, *PRESETS])
            raise InputError(f"unknown model {model!r}; allowed: {names}, or the folder of a checkpoint")
    if dry_run:
        values = {"output": "(not given)", "data": "(not given)"} | values
    values = kind.training_defaults() | values
    missing = [field for field in ("model", "output", "data", "budgets", "steps", "core") if values.get(field) is None]
    if missing:
        raise InputError(f"to train {model}, give {', '.join('--' + field for field in missing)} as well")

    def part(of: type) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(of) if field.name in values}

    config = TrainConfig(**part(TrainConfig))
    reduced = kind.from_dict(part(kind) | {"text_regions": bool(config.text_budgets)})
    check_all_finite(reduced)
    return config, reduced


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
