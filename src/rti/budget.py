"""Budgets: how many region tokens the core may use, as a number, a share, or a function of the sampling step."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

from rti.errors import InputError

Budget = int | float | None
Schedule = Budget | Callable[[int], Budget]  # a function is called with the number of the step, from 0


def resolve_budget(budget: Any, patches: int) -> int:
    """The number of regions: a whole number from 1 to `patches`, a share in (0, 1] of them, or None for all."""
    if budget is None:
        return patches
    is_number = isinstance(budget, numbers.Real) and not isinstance(budget, bool)
    is_whole = is_number and isinstance(budget, numbers.Integral)
    if is_whole and 1 <= budget <= patches:
        return int(budget)
    if is_number and not is_whole and 0.0 < budget <= 1.0:  # false for NaN
        return max(1, round(float(budget) * patches))
    raise InputError(f"budget {budget!r} is not usable; allowed: 1 to {patches} regions, or a share in (0, 1]")


def resolve_schedule(budget: Any, steps: int, patches: int) -> list[int]:
    """The budget of each sampling step."""
    return [resolve_budget(budget(step) if callable(budget) else budget, patches) for step in range(steps)]


def parse_budget(text: str) -> Any:
    """A budget as typed: "256", "0.25", "25%", or "dense" (None, the frozen backbone alone)."""
    word = text.strip().lower()
    if word == "dense":
        return None
    try:
        if word.endswith("%"):
            return float(word[:-1]) / 100
        return float(word) if any(sign in word for sign in ".en") else int(word)
    except ValueError:
        raise InputError(
            f"budget {text!r} is not usable; allowed: a number of regions, a share such as 0.25, dense"
        ) from None
