"""The elastic objective: the velocity loss of an attached model, at a budget drawn anew for every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from rti.backbones.base import Condition
from rti.core import ElasticModel
from rti.flow import interpolate
from rti.training.loss import draw_times


class Draws(NamedTuple):
    """Everything random about some examples of a step. It belongs to the example, not to the batch or the process."""

    t: torch.Tensor  # (B,) time
    noise: torch.Tensor  # (B, C, H, W) of unit scale
    dropped: torch.Tensor  # (B,) bool: without its condition
    earlier: torch.Tensor  # (B,) how much earlier the estimate was made


@dataclass(frozen=True)
class DrawSettings:
    time_mean: float = -0.8
    time_deviation: float = 0.8
    drop: float = 0.1
    estimate_steps: tuple[int, int] = (1, 4)  # an estimate is this many sampling steps old
    sampling_steps: int = 50  # of a sampler with this many steps


def draw(shape: Sequence[int], seed: int, step: int, examples: Sequence[int], settings: DrawSettings) -> Draws:
    """The draws of some examples of a step, by their numbers in the global batch: one generator per example.

    So a step is the same on one process or on many, and in any micro-batch.
    """
    rows = []
    for example in examples:
        generator = torch.Generator().manual_seed(_mix(seed, step, example))
        t = draw_times(1, settings.time_mean, settings.time_deviation, generator)
        uniform = torch.rand(2, generator=generator)
        low, high = settings.estimate_steps
        steps = low + (uniform[1] * (high - low + 1)).floor().clamp(max=high - low)
        noise = torch.randn(tuple(shape), generator=generator)
        rows.append((t[0], noise, uniform[0] < settings.drop, steps / settings.sampling_steps))
    return Draws(*(torch.stack(column) for column in zip(*rows, strict=True)))


class Dial(NamedTuple):
    """What a step draws once, the same on every process."""

    budget: int
    blind: bool  # without an estimate, as at a sampler's first step


def draw_dial(budgets: Sequence[int], blind: float, generator: torch.Generator) -> Dial:
    """The budget of a step, and whether it goes without an estimate."""
    index = int(torch.randint(len(budgets), (), generator=generator))
    return Dial(budgets[index], bool(torch.rand((), generator=generator) < blind))


def _mix(*numbers: int) -> int:
    """One seed from several numbers, by the SplitMix64 finaliser: neighbours give unrelated seeds."""
    state = 0
    for number in numbers:
        state = (state + (number & 0xFFFFFFFFFFFFFFFF) + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


class ElasticObjective(nn.Module):
    """What a step computes; the part that a distributed wrapper goes around."""

    def __init__(self, model: ElasticModel):
        super().__init__()
        self.model = model

    def forward(
        self, images: torch.Tensor, condition: Condition, draws: Draws, dial: Dial, estimate_budget: int
    ) -> torch.Tensor:
        """The velocity loss of each example: (B, C, H, W) clean images -> (B,)."""
        flow = self.model.backbone.flow
        noise = flow.noise_scale * draws.noise
        condition = condition.where(~draws.dropped, self.model.unconditional(condition))
        x = interpolate(images, noise, draws.t)
        estimate = None
        if self.model.reduction.uses_estimate and not dial.blind:
            estimate = self._estimate(images, condition, draws, noise, estimate_budget)
        clean = self.model(x, draws.t, condition, budget=dial.budget, estimate=estimate)
        remaining = (1 - draws.t).clamp_min(flow.time_floor).view(-1, 1, 1, 1)
        return ((clean - images) / remaining).square().flatten(1).mean(dim=1)

    @torch.no_grad()
    def _estimate(
        self, images: torch.Tensor, condition: Condition, draws: Draws, noise: torch.Tensor, budget: int
    ) -> torch.Tensor:
        """The clean image as the model would have seen it a few sampling steps earlier, with the same noise."""
        t = (draws.t - draws.earlier).clamp_min(0.0)
        return self.model(interpolate(images, noise, t), t, condition, budget=budget)
