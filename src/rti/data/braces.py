"""Names of many shards in one: `data/{000..009}.tar`, `{train,extra}.tar`."""

from __future__ import annotations

import re

from rti.errors import InputError

_LIMIT = 1_000_000  # names; a typing error in a range must not fill the memory
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_NESTED = re.compile(r"\{[^{}]*\{")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")


def expand_braces(pattern: str) -> list[str]:
    """Every name a pattern stands for, in the shell's order; braces that hold no list or range stay as they are."""
    if _NESTED.search(pattern):
        raise InputError(f"braces within braces are not supported: {pattern}")
    names, done = [pattern], []
    while names:
        name = names.pop()
        match = _BRACES.search(name)
        if match is None:
            done.append(name)
        else:
            # Reversed onto the stack, so that names come off it in order.
            names += [name[: match.start()] + choice + name[match.end() :] for choice in reversed(_choices(match[1]))]
        if len(names) + len(done) > _LIMIT:
            raise InputError(f"{pattern} stands for more than {_LIMIT:,} names")
    return done


def split_commas(text: str) -> list[str]:
    """Split at the commas that are not inside braces."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _choices(inside: str) -> list[str]:
    span = _RANGE.fullmatch(inside)
    if span is None:
        return inside.split(",")
    first, last, step = int(span[1]), int(span[2]), max(1, int(span[3] or 1))
    if abs(last - first) // step >= _LIMIT:
        raise InputError(f"{{{inside}}} stands for more than {_LIMIT:,} names")
    padded = span[1].startswith("0") or span[2].startswith("0")
    width = max(len(span[1]), len(span[2])) if padded else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [str(number).zfill(width) for number in numbers]
