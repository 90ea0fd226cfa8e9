"""What a run trains. The trainer knows only this contract; elastic fine-tuning and base training are two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rti.backbones.base import Backbone, Condition
from rti.elastic import ElasticModel
from rti.text.encoder import TextEncoder
from rti.training.config import RunConfig
from rti.training.stream import MicroBatch, Stream

BETAS = (0.9, 0.95)


@torch.no_grad()
def condition_of(backbone: Backbone, batch: MicroBatch, encoder: TextEncoder | None) -> Condition:
    """What the examples of a batch show, by their captions or labels, for the backbone."""
    if encoder is None:
        return backbone.condition(labels=batch.labels)
    states, mask = encoder(batch.captions, backbone.config.prompt_length)
    return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))


class Task(ABC):
    """What a run trains, on the examples of a stream. `encoder` turns captions into text states."""

    module: nn.Module  # (images, inputs, draws, once) -> (B,) losses; what requires gradients in it trains
    budgets: tuple[int, ...] = ()  # to show and to score, beside the backbone alone
    saves_frozen = False  # whether what is for use holds frozen parameters as well

    def __init__(
        self, config: RunConfig, model: ElasticModel | Backbone, stream: Stream, encoder: TextEncoder | None = None
    ):
        self.config, self.model, self.stream, self.encoder = config, model, stream, encoder
        self.backbone: Backbone = getattr(model, "backbone", model)

    @abstractmethod
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """For what trains, with the learning rates at their highest."""

    @abstractmethod
    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        """Write what is for use, into the run's folder, with these values of what trains."""

    def to(self, device: torch.device) -> None:
        """Where what does not train is to run; the module itself is placed by the engine."""
        if hasattr(self.encoder, "to"):  # a cache of states has nothing to run
            self.encoder.to(device)

    def inputs(self, batch: MicroBatch) -> Any:
        """What the module is given beside the images."""
        return condition_of(self.backbone, batch, self.encoder)

    def draw_once(self, generator: torch.Generator) -> Any:
        """What a step draws once, the same on every process."""
        return None

    def label(self, once: Any) -> str | None:
        """Under which name, if any, such steps are logged apart."""
        return None
