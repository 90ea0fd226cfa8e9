"""What a run trains: the contract that the trainer knows. Training on data, from scratch and by a teacher are three."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rti.backbones.base import Backbone
from rti.elastic import ElasticModel
from rti.flow import velocity
from rti.text.encoder import TextEncoder
from rti.training.config import RunConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

BETAS = (0.9, 0.95)


def velocity_losses(clean: torch.Tensor, images: torch.Tensor, t: torch.Tensor, floor: float) -> torch.Tensor:
    """Mean squared error of each picture's velocity: the error of the clean image over the time that remains, squared.

    (B, C, H, W), (B, C, H, W), (B,) -> (B,).
    """
    return velocity(clean, images, t, floor).square().flatten(1).mean(dim=1)


class Task(ABC):
    """What a run trains. For each micro-batch it says what its module is given.

    `encoder` turns captions into text states.
    """

    module: nn.Module  # (*batch) -> (B,) losses; what requires gradients in it trains
    budgets: tuple[int, ...] = ()  # to show and to score, beside the backbone alone
    saves_frozen = False  # whether what is for use holds frozen parameters as well
    broken = 0  # unreadable examples that this process has passed over

    def __init__(self, config: RunConfig, model: ElasticModel | Backbone, encoder: TextEncoder | None = None):
        self.config, self.model, self.encoder = config, model, encoder
        self.backbone: Backbone = getattr(model, "backbone", model)

    @abstractmethod
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """For what trains, with the learning rates at their highest."""

    @abstractmethod
    def batch(self, step: int, numbers: range, once: Any) -> tuple[Any, ...]:
        """What the module is given for a micro-batch: the examples with these numbers in the step's global batch."""

    @abstractmethod
    def subjects(self, count: int) -> list[str] | list[int]:
        """Prompts or labels to show the model with."""

    @abstractmethod
    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        """Write what is for use, into the run's folder, with these values of what trains."""

    def start(self, engine: Accelerator) -> None:
        """Before the first step: what does not train is to run on the engine's device, where the module is already."""
        self.engine = engine
        if hasattr(self.encoder, "to"):
            self.encoder.to(engine.device)

    def draw_once(self, generator: torch.Generator) -> Any:
        """What a step draws once, the same on every process."""
        return None

    def label(self, once: Any) -> str | None:
        """Under which name, if any, such steps are logged apart."""
        return None

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold beside weights, average and optimisers; the same on every process."""
        return {}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Go on from such a state."""
        return None

    def close(self) -> None:
        """The run has ended."""
        return None


def adapter_optimisers(task: Task) -> list[torch.optim.Optimizer]:
    """AdamW for the adapter of an attached model, which trains in float32 whatever the frozen weights are."""
    parameters = list(task.model.trainable_parameters().values())
    for parameter in parameters:
        parameter.data = parameter.data.float()
    config = task.config
    return [torch.optim.AdamW(parameters, lr=config.learning_rate, betas=BETAS, weight_decay=config.weight_decay)]
