"""Values as typed, or as a JSON file holds them, to the fields of dataclasses."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any

from rti.errors import InputError


def parse_arguments(arguments: Sequence[str], *kinds: type) -> dict[str, Any]:
    """`--learning-rate 1e-4 --flip --no-compile` -> values of the fields of the given dataclasses, each of its type."""
    hints = _hints(*kinds)
    values: dict[str, Any] = {}
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--"):
            raise InputError(f"unexpected argument {word!r}; settings are given as --name value")
        option, equals, text = word[2:].partition("=")
        name = option.replace("-", "_")
        negated = name not in hints and name.startswith("no_") and hints.get(name[3:]) is bool
        name = name[3:] if negated else name
        if name not in hints:
            raise InputError(f"unknown setting --{option}; allowed: {', '.join(map(_option, sorted(hints)))}")
        if hints[name] is bool and not equals:
            values[name] = not negated
            continue
        if not equals and not remaining:
            raise InputError(f"--{option} needs a value")
        values[name] = convert(text if equals else remaining.pop(0), hints[name], f"--{option}")
    return values


def convert(text: str, hint: Any, name: str) -> Any:
    """A value as typed, as the field's type. `none` is None where the field allows it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if text.lower() == "none" and type(None) in options:
            return None
        hint = next(option for option in options if option is not type(None))
    try:
        if hint is bool:
            return {"true": True, "false": False, "yes": True, "no": False}[text.lower()]
        if typing.get_origin(hint) is tuple:
            return tuple(typing.get_args(hint)[0](part) for part in text.split(",")) if text else ()
        return hint(text)
    except (ValueError, KeyError):
        expected = getattr(hint, "__name__", str(hint))
        raise InputError(f"{name} {text!r} is not usable; expected {expected}") from None


def convert_stored(values: dict[str, Any], *kinds: type) -> dict[str, Any]:
    """Settings as a JSON file holds them, each of its field's type."""
    hints = _hints(*kinds)
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise InputError(f"unknown settings {', '.join(unknown)}; allowed: {', '.join(sorted(hints))}")

    def text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return {name: convert(text(value), hints[name], name) for name, value in values.items()}


def _hints(*kinds: type) -> dict[str, Any]:
    """The fields of some dataclasses and their types."""
    hints: dict[str, Any] = {}
    for kind in kinds:
        resolved = typing.get_type_hints(kind)
        hints |= {field.name: resolved[field.name] for field in dataclasses.fields(kind)}
    return hints


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
