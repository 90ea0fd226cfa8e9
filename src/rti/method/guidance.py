"""Guidance in one pass: the scale as one more token beside the text or the class (ours, beyond the paper).

Classifier-free guidance asks a model twice a step. A student that is told the scale can learn the guided clean image
itself, and is asked once; see `rti adapt --guidance`.
"""

from __future__ import annotations

import math

import torch
from torch import nn

WAVES = 8


class GuidanceToken(nn.Module):
    """A linear map of sine and cosine of the scale's logarithm. It is there only where a scale is given."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.embed = nn.Linear(2 * WAVES, hidden_size)

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """One token for each picture's guidance scale: (B,) -> (B, 1, D)."""
        rates = math.pi * 2.0 ** (torch.arange(WAVES, device=scale.device) / 2 - 2)
        angles = scale.float().log()[:, None] * rates
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.embed(waves.to(self.embed.weight.dtype))[:, None]
