"""Errors a user can cause. Each is one line: what was given, and what is allowed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """A value the user gave is not usable. The command line prints it and exits with code 2."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # one line, also where a value's own text is several


class UnsupportedModelError(InputError, TypeError):
    """The given module or file is none of the supported models."""


# Checks of one value. The name is what the user calls it; nothing is given back, a bad value is refused.


def check_whole(name: str, value: Any, most: int | None = None, least: int = 1) -> None:
    """Refuse a value that is not a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {allowed}, got {value!r}")


def check_finite(
    name: str, value: Any, least: float | None = None, most: float | None = None, above: float | None = None
) -> None:
    """Refuse a value that is not a finite number, below `least`, not above `above`, or beyond `most`."""
    bounds = {"at least": least, "above": above, "at most": most}
    fits = is_finite(value) and (least is None or value >= least) and (above is None or value > above)
    if not fits or (most is not None and value > most):
        allowed = " and ".join(f"{words} {bound}" for words, bound in bounds.items() if bound is not None)
        raise InputError(f"{name} must be a finite number{', ' * bool(allowed)}{allowed}, got {value!r}")


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold; a whole number may be larger than any."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_switch(name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}")


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Refuse a value that is none of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
