"""Errors a user can cause. Each is one line: what was given, and what is allowed."""

from __future__ import annotations

import sys
from typing import Any


class InputError(ValueError):
    """A value the user gave is not usable. The command line prints it and exits with code 2."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # one line, also where a value's own text is several


class UnsupportedModelError(InputError, TypeError):
    """The given module or file is none of the supported models."""


def check_whole(name: str, value: Any, most: int, least: int = 1) -> None:
    """Refuse a value that is not a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} must be a whole number from {least} to {most}, got {value!r}")


def check_finite(name: str, value: Any) -> None:
    """Refuse a value that is not a number, or not a finite one."""
    if not is_finite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold; a whole number may be larger than any."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
