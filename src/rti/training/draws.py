"""What a step draws at random. Each example has draws of its own, so they are the same on one process or on many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rti.data.shuffle import scramble


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


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What torch draws inside follows from the seed, and what it draws after is as if nothing had been drawn.

    On the CPU alone: a GPU's state is neither read nor changed, so no process wakes the GPUs of the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def draw(shape: Sequence[int], seed: int, step: int, examples: Sequence[int], settings: DrawSettings) -> Draws:
    """The draws of some examples of a step, by their numbers in the global batch: one generator per example."""
    rows = []
    for example in examples:
        generator = torch.Generator().manual_seed(_mix(seed, step, example))
        normal = torch.randn((), generator=generator)
        t = torch.sigmoid(settings.time_mean + settings.time_deviation * normal)  # logit-normal
        uniform = torch.rand(2, generator=generator)
        low, high = settings.estimate_steps
        steps = low + (uniform[1] * (high - low + 1)).floor().clamp(max=high - low)
        noise = torch.randn(tuple(shape), generator=generator)
        rows.append((t, noise, uniform[0] < settings.drop, steps / settings.sampling_steps))
    return Draws(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _mix(*numbers: int) -> int:
    """One seed from several numbers, by the SplitMix64 finaliser: neighbours give unrelated seeds.

    Faster than `rti.flow.picture_seed`, which pictures have theirs from; neither can change without changing results.
    """
    state = 0
    for number in numbers:
        state = scramble(state + number & 0xFFFFFFFFFFFFFFFF)
    return state >> 1
