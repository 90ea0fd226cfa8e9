"""The objective of both families: squared error of the velocity, at times drawn from a logit-normal."""

from __future__ import annotations

import torch


def draw_times(count: int, mean: float, deviation: float, generator: torch.Generator) -> torch.Tensor:
    """t = sigmoid(mean + deviation n), n ~ N(0, 1): (count,) float32."""
    return torch.sigmoid(mean + deviation * torch.randn(count, generator=generator))


def velocity_losses(clean: torch.Tensor, images: torch.Tensor, t: torch.Tensor, floor: float) -> torch.Tensor:
    """Mean squared error of each picture's velocity: the error of the clean image over the time that remains, squared.

    (B, C, H, W), (B, C, H, W), (B,) -> (B,).
    """
    remaining = (1 - t).clamp_min(floor).view(-1, 1, 1, 1)
    return ((clean - images) / remaining).square().flatten(1).mean(dim=1)
