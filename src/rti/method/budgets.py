"""Budgets: how many region tokens the core may use, as a number, a share, a word, or one of these for each step.

256, 0.25 and "25%" everywhere. In a pipeline and on the command line "dense", or no budget, is the frozen backbone
alone; below them no budget means as many regions as patches.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rti.errors import InputError, check_whole

Budget = int | float | str | None
Schedule = Budget | Sequence[Budget] | Callable[[int], Budget]  # a function gets the number of the step, from 0


@dataclass(frozen=True)
class Budgets:
    """All that a picture may cost: tokens of the image, in both branches of guidance, and of the text; and passes."""

    image: Schedule = None  # None: the frozen backbone alone
    text: Budget = field(default=None, kw_only=True)  # None: all of the text
    passes: int | None = field(default=None, kw_only=True)  # of a guided step; None: one where the adapter can, else 2

    def __post_init__(self):
        if self.passes is not None:
            check_whole("guidance_passes", self.passes, 2)

    @classmethod
    def of(
        cls, budget: Any, text_budget: Budget = None, guidance_budget: None = None, passes: int | None = None
    ) -> Budgets:
        """From what a caller gave: such a value itself, or its parts by their names."""
        if guidance_budget is not None:
            raise InputError("guidance_budget is gone, it lost quality and time: both branches have the budget")
        return budget if isinstance(budget, Budgets) else cls(budget, text=text_budget, passes=passes)

    def resolve(self, steps: int, patches: int, start: int = 0) -> Budgets:
        """The same with a list of one number for each step from `start` on. A function is asked here, and not again."""
        return replace(self, image=resolve_schedule(self.image, steps, patches)[start:])

    def given(self) -> dict[str, Any]:
        """The budgets there are, by the names that users give them."""
        named = {"budget": self.image, "text_budget": self.text}
        return {name: value for name, value in named.items() if value is not None}


def resolve_budget(budget: Any, patches: int, name: str = "budget") -> int:
    """The number of regions: a whole number from 1 to `patches`, a share in (0, 1] of them, or None for all."""
    if budget is None:
        return patches
    value = parse_budget(budget) if isinstance(budget, str) else budget
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    is_whole = is_number and isinstance(value, numbers.Integral)
    if is_whole and 1 <= value <= patches:
        return int(value)
    if is_number and not is_whole and 0.0 < value <= 1.0:  # false for NaN
        return max(1, round(float(value) * patches))
    raise InputError(f"{name} {budget!r} is not usable; allowed: 1 to {patches} regions, or a share in (0, 1]")


def resolve_schedule(budget: Any, steps: int, patches: int) -> list[int]:
    """The budget of each sampling step, from one for all, a list of one per step, or a function of the step."""
    if isinstance(budget, (list, tuple)):
        if len(budget) != steps:
            raise InputError(f"{len(budget)} budgets for {steps} steps; give one per step, or one for all")
        budget = budget.__getitem__
    return [resolve_budget(budget(step) if callable(budget) else budget, patches) for step in range(steps)]


def is_dense(budget: Any) -> bool:
    """Whether a budget asks for the frozen backbone alone: by the word, or because there is none."""
    return budget is None or (isinstance(budget, str) and parse_budget(budget) is None)


def parse_budgets(text: str) -> list[Budget]:
    """Budgets as typed, with commas between them."""
    return [parse_budget(one) for one in text.split(",")]


def parse_budget(text: str | None) -> Any:
    """A budget as typed: "256", "0.25", "25%", or "dense", which as no budget is None, the frozen backbone alone."""
    word = "dense" if text is None else text.strip().lower()
    if word == "dense":
        return None
    try:
        if word.endswith("%"):
            return float(word[:-1]) / 100
        return float(word) if any(sign in word for sign in ".en") else int(word)
    except ValueError:
        allowed = "a number of regions, a share such as 0.25, dense"
        raise InputError(f"budget {text!r} is not usable; allowed: {allowed}") from None
