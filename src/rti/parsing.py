"""Values as typed, or as a JSON file holds them, to the fields of dataclasses."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any

from rti.errors import InputError


def field_types(*kinds: type) -> dict[str, Any]:
    """The fields of some dataclasses and their types."""
    hints = [(typing.get_type_hints(kind), dataclasses.fields(kind)) for kind in kinds]
    return {field.name: resolved[field.name] for resolved, fields in hints for field in fields}


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
    """Settings as typed or as a JSON file holds them, each of its field's type."""
    hints = field_types(*kinds)
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise InputError(f"unknown settings {', '.join(unknown)}; allowed: {', '.join(sorted(hints))}")

    def text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return {name: convert(text(value), hints[name], name) for name, value in values.items()}


def parse_pairs(pairs: Sequence[str], *kinds: type) -> dict[str, Any]:
    """`cuts=merge` and the like -> values of the fields of the given dataclasses, each of its type."""
    split = [pair.partition("=") for pair in pairs]
    wrong = next((pair for pair, (_, equals, _) in zip(pairs, split, strict=True) if not equals), None)
    if wrong is not None:
        raise InputError(f"{wrong!r} is not usable; allowed: name=value, such as {next(iter(field_types(*kinds)))}=...")
    return convert_stored({name.replace("-", "_"): value for name, _, value in split}, *kinds)
