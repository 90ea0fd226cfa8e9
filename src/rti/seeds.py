"""Randomness that can be repeated: seeds made of several numbers, and drawing that leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1


def scramble(value):
    """SplitMix64's finaliser: a fixed bijection of 64-bit numbers that looks random. An int or a uint64 array."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def mix(*numbers: int) -> int:
    """One seed from several numbers; neighbours give unrelated seeds.

    Faster than `rti.flow.picture_seed`, which pictures have theirs from; neither can change without changing results.
    """
    state = 0
    for number in numbers:
        state = scramble(state + number & _MASK)
    return state >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What torch draws inside follows from the seed, and what it draws after is as if nothing had been drawn.

    On the CPU alone: a GPU's state is neither read nor changed, so no process wakes the GPUs of the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
