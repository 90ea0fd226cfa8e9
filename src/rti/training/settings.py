"""From what was typed to the settings of a run for an adapter; and settings kept in its folder."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from rti.backbones.base import Backbone
from rti.errors import InputError, check_choice
from rti.files import is_repository_name, read_json, write_whole
from rti.method.budgets import resolve_budget
from rti.method.config import ReductionConfig, check_all_finite
from rti.method.reductions import REDUCTIONS, config_from_dict
from rti.parsing import convert_stored
from rti.presets import PRESETS, SCENES_TRAINING
from rti.shipped import shipped
from rti.training.config import FREE, GONE, AdapterConfig, TrainConfig
from rti.training.state import checkpoints

CONFIG = "config.json"
Settings = TypeVar("Settings", bound=AdapterConfig)


def read_settings(
    given: dict[str, Any],
    reduction: str | None = None,
    dry_run: bool = False,
    kind: type[Settings] = TrainConfig,
) -> tuple[Settings, ReductionConfig]:
    """The settings of a run: those of its preset, or of a config file, overridden by what is typed.

    `given` are settings of the run and of its reduction, as text or as values, None where not; a dry run needs but the
    model. A model that is a .json file is the config of another run.
    """
    stored, name = {}, reduction or "region"
    given = {key: value for key, value in given.items() if value is not None}
    if Path(str(given.get("model"))).suffix == ".json":
        stored = read_json(Path(given.pop("model")))
        stored = {name: value for name, value in stored.items() if name not in GONE}
        of_reduction = stored.pop("reduction", {})
        if not isinstance(of_reduction, dict):
            raise InputError(f"reduction {of_reduction!r} is not usable; expected an object with its settings")
        kept = of_reduction.pop("reduction", "region")
        name = reduction or kept
        stored |= of_reduction if name == kept else {"core": of_reduction.get("core")}
    check_choice("reduction", name, REDUCTIONS)
    reduced = REDUCTIONS[name][0]
    values = convert_stored(stored | given, reduced, kind)
    model = values.get("model")
    if model is not None and (shipped(model) is not None or not os.path.exists(model)):
        if usual := kind.preset_values(model):
            values = usual | {"core": reduced.own_core(usual["core"])} | values
        elif not is_repository_name(model) and not {"budgets", "core"} <= values.keys():
            names = ", ".join([*SCENES_TRAINING, *PRESETS])
            raise InputError(f"unknown model {model!r}; allowed: {names}, or the folder of a checkpoint")
    if dry_run:
        values = {"output": "(not given)", "data": "(not given)"} | values
    values = reduced.training_defaults() | kind.reduction_defaults | values
    missing = [field for field in (*kind.needed, "core") if values.get(field) is None]
    if missing:
        raise InputError(f"to train {model}, give {', '.join('--' + field for field in missing)} as well")

    def part(of: type) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(of) if field.name in values}

    config = kind(**part(kind))
    follows = {"text_regions": bool(config.text_budgets), "one_pass": getattr(config, "one_pass", None)}
    made = reduced.from_dict(part(reduced) | follows)
    check_all_finite(made)
    return config, made


def check_unchanged(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse to go on with a run (one without a checkpoint has not begun) under settings that must not change."""
    path = folder / CONFIG
    if not path.is_file() or not checkpoints(folder):
        return
    before, now = read_json(path), json.loads(json.dumps(settings))
    if isinstance(before.get("reduction"), dict):  # settings that were not there yet are as they were
        before["reduction"] = json.loads(json.dumps(config_from_dict(before["reduction"]).to_dict()))
    changed = [key for key in sorted(set(before) | set(now)) if key not in FREE and before.get(key) != now.get(key)]
    if changed:
        raise InputError(f"{folder} holds a run with another {', '.join(changed)}; choose another output folder")


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    write_whole(folder / CONFIG, json.dumps(settings, indent=2) + "\n")


def check_fits(config: AdapterConfig, reduction: ReductionConfig, backbone: Backbone) -> None:
    reduction.check_fits(backbone.depth)
    for budgets in (config.budgets, [getattr(config, "estimate_budget", None) or 1]):
        if max(budgets) > backbone.patches:
            raise InputError(f"budgets {budgets} are not usable; allowed: 1 to {backbone.patches} regions")
    if config.text_budgets and backbone.conditioned_on != "text":
        raise InputError(f"text_budgets given, but {type(backbone).__name__} draws from labels and has no text")
    for budget in config.text_budgets:
        resolve_budget(budget, backbone.config.prompt_length, "text budget")
