"""Putting a training run together from its settings: model, data, conditions, trainer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rti import cost
from rti.adapter import load_weights
from rti.backbones.base import Backbone
from rti.data import open_data
from rti.elastic import attach
from rti.errors import InputError
from rti.loading import build, load_backbone
from rti.method.budgets import resolve_budget
from rti.method.config import ReductionConfig
from rti.method.reductions import Reduction, make_reduction
from rti.presets import preset_of
from rti.text.cache import TextCache
from rti.text.encoder import TextEncoder, load_text_encoder, text_encoder_of
from rti.text.words import WordEncoder
from rti.training.config import FREE, RunConfig, TrainConfig
from rti.training.draws import seeded
from rti.training.elastic import Adaptation
from rti.training.settings import check_unchanged, write_settings
from rti.training.state import checkpoints
from rti.training.stream import Stream
from rti.training.tasks import Task
from rti.training.trainer import Trainer


def make_trainer(config: TrainConfig, reduction: ReductionConfig) -> Trainer:
    """Load, attach, open the data, and resume where the folder's run stopped."""
    dtype = getattr(torch, config.dtype)
    backbone = load_backbone(config.model, init=config.init, seed=config.seed, dtype=dtype)
    _check_fits(config, reduction, backbone)
    stream, encoder = open_stream(config, backbone), open_text(config, backbone)
    with seeded(config.seed):  # LoRA's A starts at random
        model = attach(backbone, reduction)
    if config.start_from is not None and not checkpoints(Path(config.output)):
        load_weights(model, config.start_from)
    task = Adaptation(config, model, stream, encoder)
    return start(config, task, asdict(config) | {"reduction": reduction.to_dict()})


def start(config: RunConfig, task: Task, settings: dict[str, Any]) -> Trainer:
    """The trainer of a task, and its settings in the run's folder once they have proved to be usable."""
    check_unchanged(Path(config.output), settings, FREE)
    trainer = Trainer(config, task)
    if trainer.accelerator.is_main_process:
        write_settings(Path(config.output), settings)
    return trainer


def _check_fits(config: TrainConfig, reduction: ReductionConfig, backbone: Backbone) -> None:
    reduction.check_fits(backbone.depth)
    for budgets in (config.budgets, [config.estimate_budget or 1]):
        if max(budgets) > backbone.patches:
            raise InputError(f"budgets {budgets} are not usable; allowed: 1 to {backbone.patches} regions")
    if config.text_budgets:
        if backbone.conditioned_on != "text":
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
    """What turns captions into text states: a cache, the model's encoder, or made-up word vectors; None for labels."""
    if backbone.conditioned_on != "text":
        return None
    width = backbone.config.txt_input_size
    if config.text_cache is not None:
        cache = TextCache(config.text_cache)
        length = backbone.config.prompt_length
        if (cache.width, cache.length) != (width, length):
            held = f"{cache.length} tokens of width {cache.width}"
            raise InputError(f"{config.text_cache} holds {held}; the model takes {length} of width {width}")
        return cache
    if config.text_encoder is None and getattr(config, "init", None) == "random":
        return made_up_words(width, config.seed)  # random weights are there to try the machinery: so are these
    return load_text_encoder(config.text_encoder or text_encoder_of(backbone))


def made_up_words(width: int, seed: int) -> TextEncoder:
    """A random vector for each word of the scenes world, where there is no text encoder to load."""
    with seeded(seed):
        return WordEncoder(width)


def describe(config: TrainConfig, reduction: ReductionConfig) -> dict[str, Any]:
    """What a run would do, without weights or data: counts, and what a step costs."""
    preset = preset_of(config.model)
    backbone = build(preset.family, preset.sizes) if preset else load_backbone(config.model)
    _check_fits(config, reduction, backbone)
    with torch.device("meta"):
        module = make_reduction(reduction, backbone)
    trainable = cost.trainable_count(backbone, module, reduction)
    parameters = cost.parameter_count(backbone)
    forward = [_mean_flops(config, backbone, module, budget) for budget in config.budgets]
    # Forward, and as much again for the gradients of the activations; the frozen weights get none.
    step = 2 * config.batch * sum(forward) / len(forward)
    estimate = 0.0
    if module.uses_estimate and config.estimate == "pass":
        budget = config.estimate_budget or min(config.budgets)
        estimate = (1 - config.blind) * config.batch * _mean_flops(config, backbone, module, budget)
    bytes_per_weight = 4 if config.dtype == "float32" else 2
    return json.loads(json.dumps(asdict(config))) | {
        "reduction": json.loads(json.dumps(reduction.to_dict())),
        "parameters": parameters,
        "trainable": trainable,
        "accumulation_on_one_process": config.accumulation(1),
        "weights_gigabytes": round(bytes_per_weight * parameters / 1e9, 2),
        "training_state_gigabytes": round(4 * 5 * trainable / 1e9, 2),  # weight, gradient, two moments, average
        "teraflops_per_step": round((step + estimate) / 1e12, 1),
        "estimate_share_of_step": round(estimate / (step + estimate), 3),
    }


def _mean_flops(config: TrainConfig, backbone: Backbone, reduction: Reduction, budget: int) -> float:
    """A forward pass at a budget, over the text budgets that a step may draw."""
    full = cost.reduced_flops(backbone, reduction, budget)
    if not config.text_budgets:
        return full
    short = [cost.reduced_flops(backbone, reduction, budget, text) for text in config.text_budgets]
    return config.full_text * full + (1 - config.full_text) * sum(short) / len(short)
