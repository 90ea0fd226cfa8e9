"""Putting base training together: a small backbone of either family from scratch, or from one at another size."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.loading import FAMILIES, build, load_backbone
from rti.method.config import check_all_finite
from rti.parsing import convert, parse_arguments
from rti.presets import FROM_SCRATCH, find_preset
from rti.text.encoder import WORDS, TextEncoder, load_text_encoder, text_encoder_of
from rti.training.assemble import made_up_words, open_stream, open_text, start
from rti.training.config import FREE, PretrainConfig
from rti.training.draws import seeded
from rti.training.pretraining import BaseTraining
from rti.training.settings import check_unchanged
from rti.training.state import checkpoints
from rti.training.trainer import Trainer


def resolve(given: dict[str, Any], arguments: Sequence[str]) -> PretrainConfig:
    return PretrainConfig(**given | parse_arguments(arguments, PretrainConfig))


def make_trainer(config: PretrainConfig) -> Trainer:
    """Build, open the data, and resume where the folder's run stopped."""
    backbone = new_backbone(config)
    stream, encoder = open_stream(config, backbone), new_text(config, backbone)
    if config.start_from is not None and not checkpoints(Path(config.output)):
        start_from(backbone, encoder, Path(config.start_from))
    check_unchanged(Path(config.output), asdict(config), FREE)
    return start(config, BaseTraining(config, backbone, stream, encoder), asdict(config))


def new_backbone(config: PretrainConfig) -> Backbone:
    """A backbone of the asked sizes, ready to learn."""
    preset = find_preset(config.model)
    if config.model in FROM_SCRATCH:
        family, sizes = FROM_SCRATCH[config.model]
    elif preset is not None:
        family, sizes = preset.family, preset.sizes
    else:
        raise InputError(f"unknown model {config.model!r}; allowed: {', '.join(FROM_SCRATCH)}, or a preset")
    try:
        backbone = build(family, sizes | _changed(config.sizes, FAMILIES[family])).to_empty(device="cpu")
        check_all_finite(backbone.config)
    except InputError:
        raise
    except Exception as error:  # sizes that make no model may fail in any way
        raise InputError(
            f"sizes {','.join(config.sizes)} make no model: {' '.join(str(error).split())[:120]}"
        ) from None
    with seeded(config.seed):
        backbone.reset_parameters()
    return backbone


def new_text(config: PretrainConfig, backbone: Backbone) -> TextEncoder | None:
    """Word vectors that learn with the backbone, where it has such, or a frozen encoder."""
    words = getattr(backbone.config, "llm", None) == WORDS and config.text_encoder is None and config.text_cache is None
    return made_up_words(backbone.config.txt_input_size, config.seed) if words else open_text(config, backbone)


def start_from(backbone: Backbone, encoder: TextEncoder | None, folder: Path) -> None:
    """Take the weights of a saved model; tables of positions are the new model's own."""
    saved = load_backbone(folder)
    if type(saved) is not type(backbone):
        raise InputError(f"{folder} holds {saved.family}, but {backbone.family} is to be trained")
    ours, theirs = dict(backbone.named_parameters()), dict(saved.named_parameters())
    learned = {name: value for name, value in theirs.items() if value.requires_grad}
    wrong = [name for name, value in learned.items() if name not in ours or ours[name].shape != value.shape]
    if wrong or sum(value.requires_grad for value in ours.values()) != len(learned):
        raise InputError(f"{folder} has other sizes than the model to be trained{': ' + wrong[0] if wrong else ''}")
    with torch.no_grad():
        for name, value in learned.items():
            ours[name].copy_(value)
    if isinstance(encoder, torch.nn.Module):
        encoder.load_state_dict(load_text_encoder(text_encoder_of(saved)).state_dict())


def _changed(pairs: Sequence[str], family: type[Backbone]) -> dict[str, Any]:
    """ "image_size=32" and the like, each of its field's type."""
    hints = typing.get_type_hints(family.config_type)
    changed = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in hints:
            raise InputError(f"unknown size {name!r} of {family.family}; allowed: {', '.join(hints)}")
        changed[name] = convert(value, hints[name], name)
    return changed
