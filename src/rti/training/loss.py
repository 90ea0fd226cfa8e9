"""The objective of both families: squared error of the velocity, at times drawn from a logit-normal."""

from __future__ import annotations

import torch

from rti.flow import interpolate


def draw_times(count: int, mean: float, deviation: float, generator: torch.Generator) -> torch.Tensor:
    """t = sigmoid(mean + deviation n), n ~ N(0, 1): (count,) float32."""
    return torch.sigmoid(mean + deviation * torch.randn(count, generator=generator))


def noisy_state(images: torch.Tensor, t: torch.Tensor, noise_scale: float, generator: torch.Generator) -> torch.Tensor:
    """The images at time t, with fresh noise. (B, C, H, W), (B,) -> (B, C, H, W)."""
    return interpolate(images, noise_scale * torch.randn(images.shape, generator=generator), t)


def velocity_loss(clean: torch.Tensor, images: torch.Tensor, t: torch.Tensor, floor: float) -> torch.Tensor:
    """Mean squared error of the velocity: the error of the clean image over what remains of the time, squared."""
    remaining = (1 - t).clamp_min(floor).view(-1, 1, 1, 1)
    return ((clean - images) / remaining).square().mean()
