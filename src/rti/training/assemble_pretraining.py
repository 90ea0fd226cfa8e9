"""Putting base training together: a small backbone of either family from scratch, or from one at another size."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.files import in_one_line
from rti.loading import FAMILIES, build, load_backbone
from rti.method.config import check_all_finite
from rti.parsing import parse_pairs
from rti.presets import FROM_SCRATCH, find_preset
from rti.text.encoder import WORDS, TextEncoder, load_text_encoder, text_encoder_of
from rti.training.assemble import made_up_words, open_stream, open_text, start
from rti.training.config import PretrainConfig
from rti.training.draws import seeded
from rti.training.pretraining import BaseTraining
from rti.training.state import checkpoints
from rti.training.trainer import Trainer


def make_trainer(config: PretrainConfig) -> Trainer:
    """Build, open the data, and resume where the folder's run stopped."""
    backbone = new_backbone(config)
    stream, encoder = open_stream(config, backbone), new_text(config, backbone)
    if config.start_from is not None and not checkpoints(Path(config.output)):
        start_from(backbone, encoder, Path(config.start_from))
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
    with in_one_line(f"sizes {','.join(config.sizes)} make no model"):
        backbone = build(family, sizes | parse_pairs(config.sizes, FAMILIES[family].config_type)).to_empty(device="cpu")
        check_all_finite(backbone.config)
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
