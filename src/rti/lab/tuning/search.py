"""Successive halving: many settings on a few pictures, the better third of them on three times as many, and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rti.dials import Dials
from rti.lab.intervals import mean_interval

KEPT = 3  # one of so many goes on, with so many times the pictures
FINALISTS = 3


@dataclass
class Trial:
    """Dials, and the score of each picture that was drawn with them, in the order of all.

    `cost` is the sum of a picture's passes; `timed`, where it was, is a whole one.
    """

    dials: Dials
    cost: float = 0.0
    timed: float | None = None
    scores: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.cost if self.timed is None else self.timed

    def score(self, pictures: int) -> float:
        return float(np.mean(self.scores[:pictures]))

    def row(self, pictures: int) -> dict[str, Any]:
        """Ready for JSON."""
        values = np.array(self.scores[:pictures])
        found = {"seconds": self.seconds, "score": self.score(pictures), "pictures": len(values)}
        return {"dials": self.dials.given()} | found | {"interval": mean_interval(values) if len(values) > 1 else None}


def rungs(pictures: int, trials: int, least: int = 1) -> list[int]:
    """How many pictures each round has, the last one all; as many rounds as it takes to be left with the finalists."""
    rounds = 1 + max(0, math.ceil(math.log(max(1, trials / FINALISTS), KEPT)))
    return [min(pictures, max(least, round(pictures / KEPT**left))) for left in reversed(range(rounds))]


def kept(trials: int) -> int:
    return max(FINALISTS, math.ceil(trials / KEPT))


def halve(trials: Sequence[Trial], every: Sequence[int], draw: Callable[[Trial, int], None]) -> list[Trial]:
    """The best of some, the very best first, by rounds of so many pictures.

    `draw` draws until a trial has so many scores. Of two that are as good the faster one goes on.
    """
    left = list(trials)
    for number, count in enumerate(every):
        for trial in left:
            draw(trial, count)
        left.sort(key=lambda trial: (-trial.score(count), trial.cost))
        if number < len(every) - 1:
            left = left[: kept(len(left))]
    return left


def work(costs: Sequence[float], every: Sequence[int]) -> float:
    """About how many seconds `halve` draws."""
    total, left, before = 0.0, list(costs), 0
    for count in every:
        total += (count - before) * sum(left)
        left, before = left[: kept(len(left))], count
    return total


def frontier(trials: Sequence[Trial], pictures: int) -> list[Trial]:
    """Those than which none is both faster and better, the slowest first."""
    best, found = -math.inf, []
    for trial in sorted(trials, key=lambda trial: (trial.seconds, -trial.score(pictures))):
        if trial.score(pictures) > best:
            best = trial.score(pictures)
            found.append(trial)
    return found[::-1]
