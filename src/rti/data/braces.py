"""Names of many shards in one: `data/{000..009}.tar`, `{train,extra}.tar`."""

from __future__ import annotations

import itertools
import math
import re

from rti.errors import InputError

_LIMIT = 1_000_000  # names; a typing error in a range must not fill the memory


def expand_braces(pattern: str) -> list[str]:
    """Every name a pattern stands for, in the shell's order; braces that hold no list or range stay as they are."""
    if re.search(r"\{[^{}]*\{", pattern):
        raise InputError(f"braces within braces are not supported: {pattern}")
    parts = re.split(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}", pattern)  # every second one was in braces
    choices = [_choices(part) if place % 2 else [part] for place, part in enumerate(parts)]
    if math.prod(map(len, choices)) > _LIMIT:
        raise InputError(f"{pattern} stands for more than {_LIMIT:,} names")
    return ["".join(name) for name in itertools.product(*choices)]


def split_commas(text: str) -> list[str]:
    """Split at the commas that are not inside braces."""
    return re.split(r",(?![^{]*\})", text)


def _choices(inside: str) -> list[str]:
    span = re.fullmatch(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?", inside)
    if span is None:
        return inside.split(",")
    first, last, step = int(span[1]), int(span[2]), max(1, int(span[3] or 1))
    padded = span[1].startswith("0") or span[2].startswith("0")
    width = max(len(span[1]), len(span[2])) if padded else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [str(number).zfill(width) for number in numbers[: _LIMIT + 1]]
