"""What a step draws at random. Each example has draws of its own, so they are the same on one process or on many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rti.seeds import mix
from rti.training.config import AdapterConfig


class Draws(NamedTuple):
    """Everything random about some examples of a step. It belongs to the example, not to the batch or the process."""

    t: torch.Tensor  # (B,) time
    noise: torch.Tensor  # (B, C, H, W) of unit scale
    dropped: torch.Tensor  # (B,) bool: without its condition
    earlier: torch.Tensor  # (B,) how much earlier the estimate was made

    def to(self, device: torch.device) -> Draws:
        return Draws(*(value.to(device) for value in self))


@dataclass(frozen=True)
class DrawSettings:
    time_mean: float = -0.8
    time_deviation: float = 0.8
    drop: float = 0.1
    estimate_steps: tuple[int, int] = (1, 4)  # an estimate is this many sampling steps old
    sampling_steps: int = 50  # of a sampler with this many steps


def draw(shape: Sequence[int], seed: int, step: int, examples: Sequence[int], settings: DrawSettings) -> Draws:
    """The draws of some examples of a step, by their numbers in the global batch: one generator per example."""
    rows = []
    for example in examples:
        generator = torch.Generator().manual_seed(mix(seed, step, example))
        normal = torch.randn((), generator=generator)
        t = torch.sigmoid(settings.time_mean + settings.time_deviation * normal)  # logit-normal
        uniform = torch.rand(2, generator=generator)
        low, high = settings.estimate_steps
        steps = low + (uniform[1] * (high - low + 1)).floor().clamp(max=high - low)
        noise = torch.randn(tuple(shape), generator=generator)
        rows.append((t, noise, uniform[0] < settings.drop, steps / settings.sampling_steps))
    return Draws(*(torch.stack(column) for column in zip(*rows, strict=True)))


class Dial(NamedTuple):
    """What a step draws once, the same on every process."""

    budget: int
    blind: bool  # without an estimate, as at a sampler's first step
    text_budget: int | None = None  # text regions; None: all of the text
    guided: bool = False  # one pass for the guided clean image, not for that of a branch

    @classmethod
    def draw(cls, config: AdapterConfig, generator: torch.Generator) -> Dial:
        def among(some: tuple[int, ...]) -> int:
            return some[int(torch.randint(len(some), (), generator=generator))]

        budget, blind = among(config.budgets), bool(torch.rand((), generator=generator) < config.blind)
        if not config.text_budgets or torch.rand((), generator=generator) < config.full_text:
            return cls(budget, blind)
        return cls(budget, blind, among(config.text_budgets))
