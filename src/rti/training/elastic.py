"""Elastic fine-tuning of an attached model on data, at a budget drawn anew for every step."""

from __future__ import annotations

from pathlib import Path

import torch

from rti.adapter import save
from rti.elastic import ElasticModel
from rti.text.encoder import TextEncoder
from rti.training.config import TrainConfig
from rti.training.draws import Dial
from rti.training.objectives import ElasticObjective
from rti.training.stream import DataTask, Stream
from rti.training.tasks import adapter_optimisers


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
