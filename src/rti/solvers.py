"""Solvers of dx/dt = (clean - x) / (1 - t), from noise at t = 0 to the image at t = 1, as plain functions.

`euler` and `heun` go by the velocity; `multistep` goes by the clean image, which changes far more slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch

Field = Callable[[torch.Tensor, float, int], torch.Tensor]  # of (x, t, step): dx/dt, or the clean image
Callback = Callable[[int, torch.Tensor], torch.Tensor]  # from a step's number and state to the state to go on with


def euler(velocity: Field, x: torch.Tensor, times: torch.Tensor, callback: Callback | None = None) -> torch.Tensor:
    """Euler's method from times[0] to times[-1]: one evaluation per step."""
    for step, (t, t_next) in enumerate(pairwise(times.tolist())):
        x = x + (t_next - t) * velocity(x, t, step)
        if callback is not None:
            x = callback(step, x)
    return x


def heun(velocity: Field, x: torch.Tensor, times: torch.Tensor, callback: Callback | None = None) -> torch.Tensor:
    """Heun's method, two evaluations per step; the last step is Euler's, since the velocity at t = 1 is not defined."""
    last = len(times) - 2
    for step, (t, t_next) in enumerate(pairwise(times.tolist())):
        slope = velocity(x, t, step)
        if step < last:
            slope = (slope + velocity(x + (t_next - t) * slope, t_next, step)) / 2
        x = x + (t_next - t) * slope
        if callback is not None:
            x = callback(step, x)
    return x


def multistep(clean: Field, x: torch.Tensor, times: torch.Tensor, callback: Callback | None = None) -> torch.Tensor:
    """Two steps, second order, one evaluation per step; it arrives at t = 1.

    The clean image is taken to move evenly in time, through the last two of it. With clean(t + h) = c + h d the
    equation has the solution x(t + h) = c + h d + r (x - c) + d (1 - t - h) log r, where r = (1 - t - h) / (1 - t).
    """
    last: tuple[float, torch.Tensor] | None = None
    for step, (t, t_next) in enumerate(pairwise(times.tolist())):
        image = clean(x, t, step)
        share = (1 - t_next) / (1 - t)
        moved = share * (x - image) + image
        if last is not None:
            drift = (image - last[1]) / (t - last[0])
            moved = moved + (t_next - t + ((1 - t_next) * math.log(share) if share > 0 else 0.0)) * drift
        x, last = moved, (t, image)
        if callback is not None:
            x = callback(step, x)
    return x


BY_VELOCITY = {"euler": euler, "heun": heun}
BY_CLEAN_IMAGE = {"multistep": multistep}
SOLVERS = BY_VELOCITY | BY_CLEAN_IMAGE
