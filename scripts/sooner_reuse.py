"""What an earlier step computed, used again: two rules of caches for diffusion transformers, for `sooner.py`.

Each is a model as `rti.sample` takes it, made for one run, whose state it holds. Every picture decides for itself, both
branches of guidance together, and what is not due is not computed: so no picture depends on its batch. The last step is
always computed, as the published caches do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from rti.backbones.base import Condition, Tokens
from rti.elastic import ElasticModel

KINDS = ("core", "difference", "velocity", "clean")


@dataclass(frozen=True)
class Reuse:
    """A rule: what is used again, while a sum of changes stays below `tau`, and for at most `cap` steps in a row.

    core        what the core changes, with prelude and coda at every step (first-block caches); by the change of the
                tokens that enter it
    difference  a pass of the model, as clean image minus state (EasyCache's rule for what our models predict)
    velocity    the same, as velocity minus state: EasyCache's rule for the models it was made for, where time runs
                from picture to noise
    clean       the same, as the clean image itself
    """

    kind: str
    tau: float
    cap: float = math.inf
    warm: float = 0.0  # share of the steps, from the first on, that are always computed

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")

    def __str__(self) -> str:
        limits = [
            f"{name} {value:g}" for name, value in (("cap", self.cap), ("warm", self.warm)) if 0 < value < math.inf
        ]
        return " ".join([self.kind, f"tau {self.tau:g}", *limits])


class Counted:
    """An attached model, or with `dense` its backbone alone, with a count of what is computed.

    `calls` are evaluations, `guided` those with two passes, `rows` the pictures that went through the core.
    """

    def __init__(self, model: ElasticModel, dense: bool, pictures: int):
        """Of so many pictures; with `dense`, to be called within `model.dense()`."""
        self.model, self.backbone, self.dense, self.pictures = model, model.backbone, dense, pictures
        self.calls = self.guided = self.rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def guides_itself(self, scale: float) -> bool:
        return not self.dense and self.model.guides_itself(scale)

    def __call__(
        self,
        x: torch.Tensor,
        t: torch.Tensor,
        condition: Condition,
        budget: int | None = None,
        estimate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.calls += 1
        self.guided += len(x) > self.pictures
        return self.clean(x, t, condition, budget, estimate)

    def clean(
        self, x: torch.Tensor, t: torch.Tensor, condition: Condition, budget: int | None, estimate: torch.Tensor | None
    ) -> torch.Tensor:
        self.rows += len(x)
        return self.backbone(x, t, condition) if self.dense else self.model(x, t, condition, budget, estimate)


class Reused(Counted):
    """The decision: (B,) changes since the step before, summed since each picture was last computed -> who is due."""

    def __init__(self, model: ElasticModel, dense: bool, rule: Reuse, pictures: int, steps: int):
        super().__init__(model, dense, pictures)
        self.rule, self.steps = rule, steps
        self.total, self.in_a_row = torch.zeros(2, pictures, device=model.backbone.device)
        self.last_input: torch.Tensor | None = None  # of the last computed step of each picture, (B or 2 B, ...)

    def due(self, change: torch.Tensor) -> torch.Tensor:
        self.total = self.total + change
        reuse = (self.total < self.rule.tau) & (self.in_a_row < self.rule.cap)
        step = self.calls - 1  # one evaluation per step
        reuse &= self.rule.warm * self.steps <= step < self.steps - 1
        self.total = torch.where(reuse, self.total, 0.0)
        self.in_a_row = torch.where(reuse, self.in_a_row + 1, 0.0)
        return ~reuse

    def begins(self, x: torch.Tensor) -> bool:
        """Whether nothing is kept yet: at the first step, and where guidance begins or ends."""
        return self.last_input is None or len(self.last_input) != len(x)

    def never(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((self.pictures,), math.inf, device=x.device)

    def size(self, values: torch.Tensor) -> torch.Tensor:
        """Mean absolute value by picture, over both branches: (B or 2 B, ...) -> (B,)."""
        return values.reshape(-1, self.pictures, values[0].numel()).abs().mean(dim=(0, 2))

    def rows_of(self, due: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """(B,) -> (B or 2 B,)"""
        return due.repeat(len(x) // self.pictures)


class ReusedCore(Reused):
    """Prelude and coda at every step; the core where it is due, else what it changed the last time."""

    moved: torch.Tensor | None = None  # (B or 2 B, N, D) what the core added to the image tokens
    side: torch.Tensor | None = None  # the same of the tokens beside them

    def clean(self, x, t, condition, budget, estimate) -> torch.Tensor:
        tokens = self.model.prelude(x, t, condition)
        if self.begins(tokens.image):
            self.last_input = self.moved = self.side = None
            change = self.never(x)
        else:
            change = self.size(tokens.image - self.last_input) / self.size(self.last_input)
        due = self.due(change)
        rows = self.rows_of(due, x)
        after = None
        if rows.any():
            before = Tokens(*(take(part, rows) for part in tokens))
            after = self.core(before, budget, None if estimate is None else estimate[due])
            self.last_input = put(self.last_input, rows, before.image)
            self.moved = put(self.moved, rows, after.image - before.image)
            if after.side is not None:
                self.side = put(self.side, rows, after.side if before.side is None else after.side - before.side)
        image, side = tokens.image + self.moved, tokens.side
        if self.side is not None:
            side = self.side if side is None else side + self.side
        if after is not None:  # what was computed, to the last bit
            image, side = put(image, rows, after.image), side if after.side is None else put(side, rows, after.side)
        return self.model.coda(tokens._replace(image=image, side=side))

    def core(self, tokens: Tokens, budget: int | None, estimate: torch.Tensor | None) -> Tokens:
        self.rows += len(tokens.image)
        if not self.dense:
            return self.model.core(tokens, budget, estimate)
        first, last = self.model.config.core
        return self.backbone.run(tokens, first, last + 1)


class ReusedPasses(Reused):
    """The whole model where it is due, by EasyCache's estimate of how much its output would have changed.

    rate = |output - output before| / |state - state before| of the last two computed steps; rate x |change of the
    state| / |last output| is summed.
    """

    rate: torch.Tensor  # (B,)
    output: torch.Tensor | None = None  # (B or 2 B, C, H, W) at the last computed step
    state_before: torch.Tensor  # of the step before, computed or not

    def clean(self, x, t, condition, budget, estimate) -> torch.Tensor:
        if begins := self.begins(x):
            self.last_input = self.output = None
            self.rate = change = self.never(x)
        else:
            change = self.rate * self.size(x - self.state_before) / self.size(self.output)
        self.state_before = x
        due = self.due(change)
        rows = self.rows_of(due, x)
        if not rows.any():
            return self.guess(x, t)
        some = None if estimate is None else estimate[due]
        clean = super().clean(x[rows], t, condition if rows.all() else condition[rows], budget, some)
        output = put(self.output, rows, (x[rows] - clean) / (1 - t) if self.rule.kind == "velocity" else clean)
        state = put(self.last_input, rows, x[rows])
        if not begins:
            rate = self.size(output - self.output) / self.size(state - self.last_input)
            self.rate = torch.where(due, rate, self.rate)
        self.last_input, self.output = state, output
        return put(self.guess(x, t), rows, clean)

    def guess(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The clean image as if the last computed output still held."""
        if self.rule.kind == "clean":
            return self.output
        output = x + self.output - self.last_input
        return x - (1 - t) * output if self.rule.kind == "velocity" else output


def reused(model: ElasticModel, dense: bool, rule: Reuse, pictures: int, steps: int) -> Reused:
    """A model for one run of so many pictures and evaluations."""
    kind = ReusedCore if rule.kind == "core" else ReusedPasses
    return kind(model, dense, rule, pictures, steps)


def take(value: Any, rows: torch.Tensor) -> Any:
    """Some rows of a part of the tokens; what all rows share stays."""
    if isinstance(value, tuple):
        return tuple(take(part, rows) for part in value)
    return value if value is None or len(value) != len(rows) or rows.all() else value[rows]


def put(kept: torch.Tensor | None, rows: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
    """`kept` with other values in some rows."""
    return some if kept is None or rows.all() else kept.index_put((rows,), some)
