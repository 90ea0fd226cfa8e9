"""The control: no reduction at all, only the LoRA. It tells what fine-tuning alone does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rti.backbones.base import Backbone, Tokens
from rti.method.config import ReductionConfig
from rti.method.reductions.base import Reduction, Span


@dataclass(frozen=True)
class DenseConfig(ReductionConfig):
    name: ClassVar[str] = "dense"


class DenseReduction(Reduction):
    """Identity: always; the core runs on every patch, at any budget."""

    elastic = False

    def __init__(self, config: DenseConfig, backbone: Backbone):
        super().__init__(config)
        self.patches = backbone.patches

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        return core(tokens)

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """Every patch is its own."""
        return torch.arange(self.patches, device=tokens.image.device).expand(len(tokens.image), -1)

    def core_tokens(self, budget: int) -> list[int]:
        return super().core_tokens(self.patches)
