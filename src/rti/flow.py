"""The rectified flow of both families: x_t = t x + (1 - t) noise, from noise at t = 0 to the image at t = 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rti.errors import InputError, check_finite, check_whole

MOST_STEPS = 2**20


def interpolate(images: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The state at time t: (B, C, H, W), (B, C, H, W), (B,) -> (B, C, H, W). `noise` has the family's scale already."""
    t = t.view(-1, 1, 1, 1)
    return t * images + (1 - t) * noise


def velocity(clean: torch.Tensor, x: torch.Tensor, t: torch.Tensor | float, floor: float) -> torch.Tensor:
    """The velocity that leads from x at time t to the clean image at time 1; 1 - t is never taken below `floor`."""
    if isinstance(t, float):
        return (clean - x) / max(1 - t, floor)
    remaining = (1 - t).clamp_min(floor)
    return (clean - x) / (remaining.view(-1, 1, 1, 1) if remaining.ndim else remaining)


def time_grid(steps: int, shift: float = 1.0) -> torch.Tensor:
    """Times from 0 to 1, (steps + 1,) float32: evenly spaced, or shifted to where there is more noise, as in SD3."""
    check_whole("steps", steps, MOST_STEPS)
    check_finite("shift", shift, above=0)
    even = torch.linspace(0.0, 1.0, steps + 1)
    return even if shift == 1.0 else even / (even + shift * (1 - even))


def choose_times(
    steps: int | None = None, shift: float | None = None, times: Sequence[float] | None = None
) -> torch.Tensor:
    """The times of a sampler that was told so many steps, with a shift or without, or the times themselves."""
    if times is None:
        return time_grid(steps, 1.0 if shift is None else shift)
    if (steps is not None and steps != len(times) - 1) or shift is not None:
        raise InputError(
            f"times given, and {'a shift' if shift is not None else f'{steps} steps'}; allowed: one of them"
        )
    grid = torch.as_tensor(times, dtype=torch.float32).flatten()
    if len(grid) < 2 or not grid.isfinite().all() or (grid.diff() <= 0).any() or grid[0] != 0 or grid[-1] != 1:
        raise InputError(f"times {times!r:.80} are not usable; allowed: rising numbers, from 0 to 1")
    return grid


def draw_noise(
    shape: Sequence[int], generators: Sequence[torch.Generator], scale: float, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Noise of one generator per image: (C, H, W), B generators -> (B, C, H, W) float32.

    Each image is drawn on its own generator's device, so a seed gives the same picture in any batch, on any device.
    """
    draws = [torch.randn(tuple(shape), generator=generator, device=generator.device) for generator in generators]
    return scale * torch.stack([draw.to(device) for draw in draws])


def picture_seed(seed: int, index: int, number: int = 0) -> int:
    """The seed of one picture of a prompt: no two of a run share one, nor do runs of different seeds."""
    return int(np.random.SeedSequence([seed, index, number]).generate_state(1, np.uint64)[0])


def picture_generator(seed: int, index: int, number: int = 0) -> torch.Generator:
    """The generator of one picture's noise: its own, so that neither the batch nor the number of pictures matters."""
    return torch.Generator().manual_seed(picture_seed(seed, index, number))
