"""What a picture costs on this machine: the passes of its sampler, each timed once for its budgets, and its text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from rti.dials import Dials
from rti.flow import choose_times
from rti.lab.bench.benchmark import forward_pass, random_inputs, time_of, times_asked
from rti.lab.bench.pictures import count_evaluations, own_dials
from rti.method.budgets import Budgets
from rti.pipeline import Pipeline
from rti.sampling import guidance_applies

TURNS = 5  # the median of so many
MOST_STEPS, LEAST_STEPS = 50, 4
Pass = tuple[Any, Any, str]  # budget, text budget, guided or unguided


class Ranges(NamedTuple):
    """What each dial may be turned to. None is dense, all of the text, or the model's own interval."""

    solvers: tuple[str, ...]
    shifts: tuple[float, ...]
    budgets: tuple[Any, ...]
    text_budgets: tuple[Any, ...]
    intervals: tuple[tuple[float, float] | None, ...]

    def settings(self) -> Iterator[Dials]:
        """All of them, without their steps; the frozen backbone has no text budget."""
        for solver, shift, budget, text, interval in product(*self):
            if budget is not None or text is None:
                yield Dials(None, solver, None if shift == 1 else shift, None, interval, None, budget, text)


class Costs:
    """Seconds of a picture, `batch` of them at a time, as the sum of its passes and of what comes before them."""

    def __init__(self, pipe: Pipeline, ranges: Ranges, scale: float, batch: int = 1):
        self.pipe, self.ranges, self.scale, self.batch = pipe, ranges, scale, batch
        self.flow = pipe.backbone.flow
        self.before = 0.0  # encoding the prompt
        self.passes: dict[Pass, float] = {}

    def seconds(self, dials: Dials) -> float:
        counts = count_evaluations(own_dials(self.flow, dials), self.scale)
        return self.before + sum(n * self.passes[dials.budget, dials.text_budget, kind] for kind, n in counts.items())

    def measure(self, encode: Callable[[], Any]) -> None:
        """Time every pass that there may be, all in turn, and `encode`, which prepares one prompt."""
        both = ("guided", "unguided") if self.scale != 1 else ("unguided",)
        pairs = {(None, None), *((one.budget, one.text_budget) for one in self.ranges.settings())}
        times: dict[Pass, list[float]] = {(*pair, kind): [] for pair in pairs for kind in both}
        before = []
        for turn in range(TURNS + 1):  # the first one warms up
            before += [time_of(encode, self.pipe.backbone.device)] if turn else []
            for dense in (True, False):
                with self.pipe.drawing(dense) as pipe:
                    for key in (one for one in times if (one[0] is None) == dense):
                        budget, text, kind = key
                        inputs = random_inputs(self.pipe.backbone, self.batch)
                        scale = self.scale if kind == "guided" else 1.0
                        work = forward_pass(pipe.model, Budgets(budget, text=text), *inputs, scale)
                        seconds = time_of(work, self.pipe.backbone.device)
                        times[key] += [seconds] if turn else []
        self.before = statistics.median(before)
        self.passes = {key: statistics.median(some) / self.batch for key, some in times.items()}

    def candidates(self, seconds: float) -> dict[Dials, float]:
        """Every way to spend so many seconds on a picture: for all that is turned, as many steps as fit.

        Of those that come to the same, such as two spans of guidance with no step between them, there is one.
        """
        found: dict[Any, Dials] = {}
        for dials in self.ranges.settings():
            low, high = LEAST_STEPS - 1, MOST_STEPS  # by halves: more steps cost more
            while low < high:
                middle = (low + high + 1) // 2
                fits = self.seconds(replace(dials, num_inference_steps=middle)) <= seconds
                low, high = (middle, high) if fits else (low, middle - 1)
            if low >= LEAST_STEPS:
                dials = replace(dials, num_inference_steps=low)
                found.setdefault(self._trajectory(dials), dials)
        return {dials: self.seconds(dials) for dials in found.values()}

    def _trajectory(self, dials: Dials) -> tuple:
        """What a picture really depends on."""
        own = own_dials(self.flow, dials)
        times = times_asked(own.solver, choose_times(own.num_inference_steps, own.shift))
        guided = tuple(self.scale != 1 and guidance_applies(t, own.guidance_interval) for t in times)
        return own.solver, tuple(times), guided, dials.budget, dials.text_budget

    def least(self) -> float:
        """The seconds of the fastest picture that there is."""
        return min(self.seconds(replace(one, num_inference_steps=LEAST_STEPS)) for one in self.ranges.settings())
