"""What a run trains. The trainer knows only this contract; elastic fine-tuning and base training are two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rti.backbones.base import Backbone, Condition
from rti.elastic import ElasticModel
from rti.flow import velocity
from rti.text.encoder import TextEncoder
from rti.training.config import RunConfig
from rti.training.draws import DrawSettings, draw
from rti.training.stream import MicroBatch, Stream, micro_batches

if TYPE_CHECKING:
    from accelerate import Accelerator

BETAS = (0.9, 0.95)


@torch.no_grad()
def condition_of(backbone: Backbone, batch: MicroBatch, encoder: TextEncoder | None) -> Condition:
    """What the examples of a batch show, by their captions or labels, for the backbone."""
    if encoder is None:
        return backbone.condition(labels=batch.labels)
    states, mask = encoder(batch.captions, backbone.config.prompt_length)
    return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))


def velocity_losses(clean: torch.Tensor, images: torch.Tensor, t: torch.Tensor, floor: float) -> torch.Tensor:
    """Mean squared error of each picture's velocity: the error of the clean image over the time that remains, squared.

    (B, C, H, W), (B, C, H, W), (B,) -> (B,).
    """
    return velocity(clean, images, t, floor).square().flatten(1).mean(dim=1)


class Task(ABC):
    """What a run trains. For each micro-batch it says what its module is given: here, the next examples of a stream.

    A task whose examples come from elsewhere, such as from states of its own, has another `batch`; what it must not
    forget when the run is killed is its `state`. `encoder` turns captions into text states.
    """

    module: nn.Module  # (*batch) -> (B,) losses; what requires gradients in it trains
    budgets: tuple[int, ...] = ()  # to show and to score, beside the backbone alone
    saves_frozen = False  # whether what is for use holds frozen parameters as well
    broken = 0  # unreadable examples that this process has passed over

    def __init__(
        self, config: RunConfig, model: ElasticModel | Backbone, stream: Stream, encoder: TextEncoder | None = None
    ):
        self.config, self.model, self.stream, self.encoder = config, model, stream, encoder
        self.backbone: Backbone = getattr(model, "backbone", model)
        self.draw_settings = DrawSettings(config.time_mean, config.time_deviation, config.drop)
        self._batches: Iterator[MicroBatch] | None = None

    @abstractmethod
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """For what trains, with the learning rates at their highest."""

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

    def batch(self, step: int, numbers: range, once: Any) -> tuple[Any, ...]:
        """What the module is given for a micro-batch: the examples with these numbers in the step's global batch."""
        device, workers = self.engine.device, self.config.workers
        if self._batches is None:
            workers = (0 if device.type == "cpu" else 4) if workers is None else workers
            place = self.engine.process_index, self.engine.num_processes
            self._batches = micro_batches(self.stream, self.config, *place, step, workers)
        examples = next(self._batches)
        self.broken += examples.broken
        draws = draw(examples.images.shape[1:], self.config.seed, step, numbers, self.draw_settings)
        return examples.images.to(device), self.inputs(examples), draws.to(device), once

    def inputs(self, batch: MicroBatch) -> Any:
        """What the module is given beside the images."""
        return condition_of(self.backbone, batch, self.encoder)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold beside weights, average and optimisers; the same on every process."""
        return {}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Go on from such a state."""
        return None

    def close(self) -> None:
        """The run has ended."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None
