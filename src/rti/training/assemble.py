"""From settings to a run: what was typed becomes its settings; model, data and text encoder become its trainer."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from rti import cost
from rti.adapter import load_weights
from rti.backbones.base import Backbone
from rti.checkpoint import require_match
from rti.data import open_data
from rti.elastic import attach
from rti.errors import InputError, check_choice
from rti.files import in_one_line, is_repository_name, read_json, write_whole
from rti.loading import FAMILIES, build, load_backbone
from rti.method.budgets import resolve_budget
from rti.method.config import ReductionConfig, check_all_finite
from rti.method.reductions import REDUCTIONS, make_reduction
from rti.parsing import convert_stored, parse_pairs
from rti.presets import FROM_SCRATCH, PRESETS, SCENES_TRAINING, find_preset
from rti.resolve import describe
from rti.shipped import shipped
from rti.text.encoder import WORDS, TextEncoder, load_text_encoder, text_encoder_of
from rti.text.words import WordEncoder
from rti.training.config import FREE, GONE, PretrainConfig, RunConfig, TrainConfig, preset_values
from rti.training.draws import seeded
from rti.training.elastic import Adaptation
from rti.training.pretraining import BaseTraining
from rti.training.state import checkpoints
from rti.training.stream import Stream
from rti.training.trainer import Trainer

CONFIG = "config.json"


def read_settings(
    given: dict[str, Any], reduction: str | None = None, dry_run: bool = False
) -> tuple[TrainConfig, ReductionConfig]:
    """The settings of a run of `rti train`: the preset's, or those of a config file, overridden by what is typed.

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
    kind = REDUCTIONS[name][0]
    values = convert_stored(stored | given, kind, TrainConfig)
    model = values.get("model")
    if model is not None and (shipped(model) is not None or not os.path.exists(model)):
        if usual := preset_values(model):
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


def make_trainer(config: RunConfig, reduction: ReductionConfig | None = None) -> Trainer:
    """A run, resumed where its folder's stopped: elastic fine-tuning, or base training where there is no reduction."""
    folder, settings = Path(config.output), asdict(config)
    begins = config.start_from is not None and not checkpoints(folder)
    if reduction is None:
        backbone = new_backbone(config)
        stream, encoder = open_stream(config, backbone), open_text(config, backbone)
        if begins:
            start_from(backbone, encoder, Path(config.start_from))
        task = BaseTraining(config, backbone, stream, encoder)
    else:
        settings["reduction"] = reduction.to_dict()
        dtype = getattr(torch, config.dtype)
        backbone = load_backbone(config.model, init=config.init, seed=config.seed, dtype=dtype)
        _check_fits(config, reduction, backbone)
        stream, encoder = open_stream(config, backbone), open_text(config, backbone)
        with seeded(config.seed):  # LoRA's A starts at random
            model = attach(backbone, reduction)
        if begins:
            load_weights(model, config.start_from)
        task = Adaptation(config, model, stream, encoder)
    check_unchanged(folder, settings)
    trainer = Trainer(config, task)
    if trainer.accelerator.is_main_process:  # only now: the settings have proved to be usable
        write_whole(folder / CONFIG, json.dumps(settings, indent=2) + "\n")
    return trainer


def check_unchanged(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse to go on with a run (one without a checkpoint has not begun) under settings that must not change."""
    path = folder / CONFIG
    if not path.is_file() or not checkpoints(folder):
        return
    before, now = read_json(path), json.loads(json.dumps(settings))
    changed = [key for key in sorted(set(before) | set(now)) if key not in FREE and before.get(key) != now.get(key)]
    if changed:
        raise InputError(f"{folder} holds a run with another {', '.join(changed)}; choose another output folder")


def _check_fits(config: TrainConfig, reduction: ReductionConfig, backbone: Backbone) -> None:
    reduction.check_fits(backbone.depth)
    for budgets in (config.budgets, [config.estimate_budget or 1]):
        if max(budgets) > backbone.patches:
            raise InputError(f"budgets {budgets} are not usable; allowed: 1 to {backbone.patches} regions")
    if config.text_budgets and backbone.conditioned_on != "text":
        raise InputError(f"text_budgets given, but {type(backbone).__name__} draws from labels and has no text")
    for budget in config.text_budgets:
        resolve_budget(budget, backbone.config.prompt_length, "text budget")


def open_stream(config: RunConfig, backbone: Backbone) -> Stream:
    """The data of a run, at the model's size."""
    source = open_data(config.data, backbone.image_size, config.flip, config.seed, backbone.conditioned_on)
    classes, allowed = getattr(source, "classes", None), getattr(backbone.config, "num_classes", None)
    if classes is not None and allowed is not None and len(classes) > allowed:
        raise InputError(f"{config.data} has {len(classes)} classes; the model knows {allowed}")
    return Stream(source, config.seed)


def open_text(config: RunConfig, backbone: Backbone) -> TextEncoder | None:
    """What turns captions into text states; None for labels.

    It is an encoder, or a fresh vector for each word of the scenes world. In base training these learn with
    the backbone; to random weights, which are there to try the machinery, they are good enough.
    """
    if backbone.conditioned_on != "text":
        return None
    base = isinstance(config, PretrainConfig)
    if config.text_encoder is None and (backbone.config.llm == WORDS if base else config.init == "random"):
        with seeded(config.seed):
            return WordEncoder(backbone.config.txt_input_size)
    return load_text_encoder(config.text_encoder or text_encoder_of(backbone))


def new_backbone(config: PretrainConfig) -> Backbone:
    """A backbone of the asked sizes, ready to learn."""
    preset = find_preset(config.model)
    if preset is None and config.model not in FROM_SCRATCH:
        raise InputError(f"unknown model {config.model!r}; allowed: {', '.join(FROM_SCRATCH)}, or a preset")
    family, sizes = FROM_SCRATCH.get(config.model) or (preset.family, preset.sizes)
    with in_one_line(f"sizes {','.join(config.sizes)} make no model"):
        backbone = build(family, sizes | parse_pairs(config.sizes, FAMILIES[family].config_type)).to_empty(device="cpu")
        check_all_finite(backbone.config)
    with seeded(config.seed):
        backbone.reset_parameters()
    return backbone


def start_from(backbone: Backbone, encoder: TextEncoder | None, folder: Path) -> None:
    """Take the weights of a saved model; tables of positions are the new model's own."""
    saved = load_backbone(folder)
    if type(saved) is not type(backbone):
        raise InputError(f"{folder} holds {saved.family}, but {backbone.family} is to be trained")
    ours, theirs = (
        {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
        for model in (backbone, saved)
    )
    require_match(ours, theirs, str(folder))
    for name, value in theirs.items():
        ours[name].copy_(value)
    if isinstance(encoder, torch.nn.Module):
        encoder.load_state_dict(load_text_encoder(text_encoder_of(saved)).state_dict())


def preview(config: TrainConfig, reduction: ReductionConfig) -> dict[str, Any]:
    """What a run would do, without weights or data: counts, and what a step costs."""
    backbone = describe(config.model)[0]
    _check_fits(config, reduction, backbone)
    with torch.device("meta"):
        module = make_reduction(reduction, backbone)
    parameters, trainable = cost.parameter_count(backbone), cost.trainable_count(backbone, module, reduction)

    def flops(budget: int) -> float:
        """Of a batch's forward passes, over the text budgets that a step may draw."""
        full, *short = (cost.reduced_flops(backbone, module, budget, text) for text in (None, *config.text_budgets))
        share = config.full_text if short else 1.0
        return config.batch * (share * full + (1 - share) * sum(short) / max(len(short), 1))

    # Forward, and as much again for the gradients of the activations; the frozen weights get none.
    step = 2 * sum(map(flops, config.budgets)) / len(config.budgets)
    estimate = (1 - config.blind) * flops(config.estimate_budget or min(config.budgets)) * module.uses_estimate
    return json.loads(json.dumps(asdict(config) | {"reduction": reduction.to_dict()})) | {
        "parameters": parameters,
        "trainable": trainable,
        "accumulation_on_one_process": config.accumulation(1),
        "weights_gigabytes": round((4 if config.dtype == "float32" else 2) * parameters / 1e9, 2),
        "training_state_gigabytes": round(4 * 5 * trainable / 1e9, 2),  # weight, gradient, two moments, average
        "teraflops_per_step": round((step + estimate) / 1e12, 1),
        "estimate_share_of_step": round(estimate / (step + estimate), 3),
    }
