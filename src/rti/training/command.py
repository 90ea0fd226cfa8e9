"""Putting a training run together from its settings: model, data, conditions, trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from rti.backbones import load_backbone
from rti.backbones.base import Backbone, Condition
from rti.config import ReductionConfig
from rti.core import attach
from rti.data import Order, Tolerant, open_data
from rti.errors import InputError
from rti.presets import find_preset
from rti.reductions import REDUCTIONS
from rti.text import load_text_encoder, text_encoder_of
from rti.training.config import TrainConfig, preset_values
from rti.training.settings import check_unchanged, parse_arguments
from rti.training.trainer import Trainer

# What may differ when a run goes on.
FREE = {"output", "steps", "save_every", "keep", "batch_per_device"}


def resolve(
    model: str, output: str, data: str, reduction: str, arguments: Sequence[str]
) -> tuple[TrainConfig, ReductionConfig]:
    """The settings of a run: the preset's, or those of a config file, overridden by what is typed."""
    if reduction not in REDUCTIONS:
        raise InputError(f"unknown reduction {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    kind = REDUCTIONS[reduction][0]
    typed = parse_arguments(arguments, TrainConfig, kind)
    values: dict[str, Any] = {"cuts": "merge", "cuts_from": "estimate"} if reduction == "region" else {}
    if not Path(model).exists() and find_preset(model) is not None:
        values |= preset_values(model)
    values |= typed | {"model": model, "output": output, "data": data}
    missing = [name for name in ("budgets", "steps", "core") if name not in values]
    if missing:
        raise InputError(f"{model} is no preset; give {', '.join('--' + name for name in missing)}")

    def part(of: type) -> dict[str, Any]:
        names = {field.name for field in fields(of)}
        return {name: value for name, value in values.items() if name in names}

    return TrainConfig(**part(TrainConfig)), kind.from_dict(part(kind))


def make_trainer(config: TrainConfig, reduction: ReductionConfig) -> Trainer:
    """Load, attach, open the data, and resume where the folder's run stopped."""
    backbone = load_backbone(config.model, init=config.init, seed=config.seed)
    reduction.check_fits(backbone.depth)
    if max(config.budgets) > backbone.patches:
        raise InputError(f"budgets {config.budgets} are not usable; allowed: 1 to {backbone.patches} regions")
    fetch = Examples(config, backbone)
    settings = asdict(config) | {"reduction": reduction.to_dict()}
    check_unchanged(Path(config.output), settings, FREE)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)  # LoRA's A starts at random
        model = attach(backbone, reduction)
    return Trainer(config, model, fetch)


class Examples:
    """The training examples at some positions of the stream, ready for the model."""

    def __init__(self, config: TrainConfig, backbone: Backbone):
        source = open_data(config.data, backbone.image_size, config.flip, config.seed, backbone.conditioned_on)
        self.source, self.order = Tolerant(source), Order.of(source, config.seed)
        self.backbone, self.broken = backbone, 0
        self.text_encoder = None
        if backbone.conditioned_on == "text":
            self.text_encoder = load_text_encoder(config.text_encoder or text_encoder_of(backbone))

    @torch.no_grad()
    def __call__(self, positions: Sequence[int]) -> tuple[torch.Tensor, Condition]:
        drawn = [self.source[self.order.index(position)] for position in positions]
        self.broken += sum(one.skipped for one in drawn)
        examples = [one.example for one in drawn]
        device = self.backbone.device
        images = torch.stack([example.image for example in examples]).to(device)
        if self.text_encoder is None:
            return images, self.backbone.condition(labels=torch.tensor([example.label for example in examples]))
        captions = [example.caption for example in examples]
        states, mask = self.text_encoder(captions, self.backbone.config.prompt_length)
        return images, self.backbone.condition(text=states.to(device), mask=mask.to(device))


def describe(config: TrainConfig, reduction: ReductionConfig) -> dict[str, Any]:
    """What a run would do, without weights or data: counts, and what a step costs."""
    from rti import cost
    from rti.backbones import build
    from rti.reductions import make_reduction

    preset = None if Path(config.model).exists() else find_preset(config.model)
    backbone = build(preset.family, preset.sizes) if preset else load_backbone(config.model)
    reduction.check_fits(backbone.depth)
    with torch.device("meta"):
        module = make_reduction(reduction, backbone)
    trainable = cost.trainable_count(backbone, module, reduction)
    parameters = cost.parameter_count(backbone)
    forward = [cost.trunk_flops(backbone, cost.tokens_per_block(backbone, module, budget)) for budget in config.budgets]
    # Forward, and as much again for the gradients of the activations; the frozen weights get none.
    step = 2 * config.batch * sum(forward) / len(forward)
    lean = config.estimate_budget or min(config.budgets)
    estimate = 0.0
    if module.uses_estimate:
        tokens = cost.tokens_per_block(backbone, module, lean)
        estimate = (1 - config.blind) * config.batch * cost.trunk_flops(backbone, tokens)
    return json.loads(json.dumps(asdict(config))) | {
        "reduction": json.loads(json.dumps(reduction.to_dict())),
        "parameters": parameters,
        "trainable": trainable,
        "accumulation_on_one_process": config.accumulation(1),
        "weights_gigabytes": round(4 * parameters / 1e9, 2),
        "training_state_gigabytes": round(4 * 5 * trainable / 1e9, 2),  # weight, gradient, two moments, average
        "teraflops_per_step": round((step + estimate) / 1e12, 1),
        "estimate_share_of_step": round(estimate / (step + estimate), 3),
    }
