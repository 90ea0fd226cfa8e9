"""From settings to a run on data: model, data and text encoder become its trainer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rti import cost
from rti.adapter import load_weights
from rti.backbones.base import Backbone
from rti.checkpoint import require_match
from rti.data import open_data
from rti.elastic import attach
from rti.errors import InputError
from rti.files import in_one_line
from rti.loading import FAMILIES, build, load_backbone
from rti.method.config import ReductionConfig, check_all_finite
from rti.method.reductions import make_reduction
from rti.parsing import parse_pairs
from rti.presets import FROM_SCRATCH, find_preset
from rti.resolve import describe
from rti.seeds import seeded
from rti.text.encoder import WORDS, TextEncoder, load_text_encoder, text_encoder_of
from rti.text.words import WordEncoder
from rti.training.config import DataConfig, PretrainConfig, TrainConfig
from rti.training.elastic import Adaptation
from rti.training.pretraining import BaseTraining
from rti.training.settings import check_fits, check_unchanged, write_settings
from rti.training.state import checkpoints
from rti.training.stream import Stream
from rti.training.trainer import Trainer


def make_trainer(config: DataConfig, reduction: ReductionConfig | None = None) -> Trainer:
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
        backbone = load_backbone(config.model, config.size, config.init, config.seed, dtype)
        check_fits(config, reduction, backbone)
        stream, encoder = open_stream(config, backbone), open_text(config, backbone)
        with seeded(config.seed):  # LoRA's A starts at random
            model = attach(backbone, reduction)
        if begins:
            load_weights(model, config.start_from)
        task = Adaptation(config, model, stream, encoder)
    check_unchanged(folder, settings)
    trainer = Trainer(config, task)
    if trainer.accelerator.is_main_process:  # only now: the settings have proved to be usable
        write_settings(folder, settings)
    return trainer


def open_stream(config: DataConfig, backbone: Backbone) -> Stream:
    """The data of a run, at the model's size."""
    source = open_data(config.data, backbone.image_size, config.flip, config.seed, backbone.conditioned_on)
    classes, allowed = getattr(source, "classes", None), getattr(backbone.config, "num_classes", None)
    if classes is not None and allowed is not None and len(classes) > allowed:
        raise InputError(f"{config.data} has {len(classes)} classes; the model knows {allowed}")
    return Stream(source, config.seed)


def open_text(config: DataConfig, backbone: Backbone) -> TextEncoder | None:
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
    check_fits(config, reduction, backbone)
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
