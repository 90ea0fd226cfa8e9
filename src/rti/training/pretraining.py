"""Base training as a task: a backbone from scratch, with every parameter trainable and no interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from rti.backbones.base import Backbone, Condition
from rti.flow import interpolate
from rti.loading import save_backbone
from rti.text.encoder import TextEncoder
from rti.training.config import PretrainConfig
from rti.training.draws import Draws
from rti.training.muon import MUON_DECAY, Muon, split_parameters
from rti.training.stream import MicroBatch, Stream
from rti.training.tasks import BETAS, Task, velocity_losses


class BaseObjective(nn.Module):
    """The velocity loss of a backbone alone, with its word vectors where it learns those too."""

    def __init__(self, backbone: Backbone, words: nn.Module | None):
        super().__init__()
        self.backbone, self.words = backbone, words
        self._no_split_modules = [kind.__name__ for kind in backbone.block_types]

    def forward(
        self, images: torch.Tensor, inputs: Condition | torch.Tensor, draws: Draws, once: None = None
    ) -> torch.Tensor:
        """(B, C, H, W) clean images -> (B,); `inputs` is a condition, or word ids (B, T)."""
        backbone = self.backbone
        if self.words is not None:
            states, mask = self.words.embed(inputs)
            inputs = backbone.condition(text=states, mask=mask)
        condition = inputs.where(~draws.dropped, backbone.unconditional(inputs))
        x = interpolate(images, backbone.flow.noise_scale * draws.noise, draws.t)
        return velocity_losses(backbone(x, draws.t, condition), images, draws.t, backbone.flow.time_floor)


class BaseTraining(Task):
    """Base training: every parameter of a backbone, and its word vectors if it has some."""

    config: PretrainConfig
    saves_frozen = True

    def __init__(self, config: PretrainConfig, backbone: Backbone, stream: Stream, encoder: TextEncoder | None = None):
        super().__init__(config, backbone, stream, encoder)
        self.words = encoder if isinstance(encoder, nn.Module) else None
        self.module = BaseObjective(backbone, self.words)
        if config.compile:
            backbone.compile_repeated_blocks()

    def inputs(self, batch: MicroBatch) -> Any:
        if self.words is None:
            return super().inputs(batch)
        return self.words.ids(batch.captions, self.backbone.config.prompt_length)

    def optimisers(self) -> list[torch.optim.Optimizer]:
        config = self.config
        decay = config.weight_decay or 0.0
        if config.optimiser == "adamw":
            parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            return [torch.optim.AdamW(parameters, lr=config.learning_rate, betas=BETAS, weight_decay=decay)]
        matrices, others = split_parameters(self.module)
        return [
            Muon(matrices, lr=config.learning_rate, weight_decay=MUON_DECAY if config.weight_decay is None else decay),
            torch.optim.AdamW(others, lr=config.adam_learning_rate, betas=BETAS, weight_decay=decay),
        ]

    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        def part(prefix: str) -> dict[str, torch.Tensor]:
            return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

        save_backbone(self.backbone, folder / "model", part("backbone."))
        if self.words is not None:
            self.words.save_pretrained(folder / "model" / "text_encoder", part("words."))
