"""Elastic fine-tuning: the velocity loss of an attached model at a budget drawn anew for every step, and its task."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from rti.adapter import save
from rti.backbones.base import Condition
from rti.elastic import ElasticModel
from rti.flow import interpolate
from rti.text.encoder import TextEncoder
from rti.training.config import TrainConfig
from rti.training.draws import Dial, Draws
from rti.training.stream import DataTask, Stream
from rti.training.tasks import adapter_optimisers, velocity_losses


class ElasticObjective(nn.Module):
    """What a step computes; the part that a distributed wrapper goes around.

    `estimate_budget` is that of the pass that makes the estimate.
    """

    def __init__(self, model: ElasticModel, estimate_budget: int):
        super().__init__()
        self.model, self.estimate_budget = model, estimate_budget
        # accelerate shards a model by the classes it names here.
        self._no_split_modules = [kind.__name__ for kind in model.backbone.block_types]

    def forward(self, images: torch.Tensor, condition: Condition, draws: Draws, dial: Dial) -> torch.Tensor:
        """The velocity loss of each example: (B, C, H, W) clean images -> (B,)."""
        flow = self.model.backbone.flow
        noise = flow.noise_scale * draws.noise
        condition = condition.where(~draws.dropped, self.model.unconditional(condition))
        x = interpolate(images, noise, draws.t)
        estimate = None
        if self.model.reduction.uses_estimate and not dial.blind:
            estimate = self._estimate(images, condition, draws, noise, dial.text_budget)
        clean = self.model(x, draws.t, condition, dial.budget, estimate, dial.text_budget)
        return velocity_losses(clean, images, draws.t, flow.time_floor)

    @torch.no_grad()
    def _estimate(
        self, images: torch.Tensor, condition: Condition, draws: Draws, noise: torch.Tensor, text_budget: int | None
    ) -> torch.Tensor:
        """The clean image as the model would have seen it a few sampling steps earlier, with the same noise."""
        t = (draws.t - draws.earlier).clamp_min(0.0)
        x = interpolate(images, noise, t)
        return self.model(x, t, condition, budget=self.estimate_budget, text_budget=text_budget)


class Adaptation(DataTask):
    """Elastic fine-tuning: Read, Write and LoRA of an attached model."""

    config: TrainConfig

    def __init__(self, config: TrainConfig, model: ElasticModel, stream: Stream, encoder: TextEncoder | None = None):
        super().__init__(config, model, stream, encoder)
        self.budgets = tuple(sorted(config.budgets, reverse=True))
        self.module = ElasticObjective(model, config.estimate_budget or min(config.budgets))
        if config.compile:
            model.backbone.compile_repeated_blocks(dynamic=True)  # or each budget would compile anew

    def optimisers(self) -> list[torch.optim.Optimizer]:
        return adapter_optimisers(self)

    def draw_once(self, generator: torch.Generator) -> Dial:
        return Dial.draw(self.config, generator)

    def label(self, once: Dial) -> str:
        return f"R={once.budget}"

    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        save(self.model, folder / "adapter", {name.removeprefix("model."): value for name, value in values.items()})
