"""Elastic fine-tuning as a task: Read, Write and LoRA of an attached model learn to serve every budget."""

from __future__ import annotations

from pathlib import Path

import torch

from rti.adapter import save
from rti.elastic import ElasticModel
from rti.text.encoder import TextEncoder
from rti.training.config import TrainConfig
from rti.training.elastic import Dial, ElasticObjective, draw_dial
from rti.training.stream import Stream
from rti.training.tasks import BETAS, Task


class Adaptation(Task):
    """Elastic fine-tuning: Read, Write and LoRA of an attached model."""

    config: TrainConfig

    def __init__(self, config: TrainConfig, model: ElasticModel, stream: Stream, encoder: TextEncoder | None = None):
        super().__init__(config, model, stream, encoder)
        self.budgets = tuple(sorted(config.budgets, reverse=True))
        budget = (config.estimate_budget or min(config.budgets)) if config.estimate == "pass" else None
        self.module = ElasticObjective(model, budget)
        if config.compile:
            model.backbone.compile_repeated_blocks(dynamic=True)  # or each budget would compile anew
        for parameter in model.trainable_parameters().values():
            parameter.data = parameter.data.float()  # what trains is float32, whatever the frozen weights are

    def optimisers(self) -> list[torch.optim.Optimizer]:
        parameters = list(self.model.trainable_parameters().values())
        decay = self.config.weight_decay
        return [torch.optim.AdamW(parameters, lr=self.config.learning_rate, betas=BETAS, weight_decay=decay)]

    def draw_once(self, generator: torch.Generator) -> Dial:
        config = self.config
        return draw_dial(config.budgets, config.blind, generator, config.text_budgets, config.full_text)

    def label(self, once: Dial) -> str:
        return f"R={once.budget}"

    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        save(self.model, folder / "adapter", {name.removeprefix("model."): value for name, value in values.items()})
