"""How commands print: a table for people, then one JSON line for machines where asked; errors on one line."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rti.errors import InputError


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> None:
    """Print a table; numbers are right-aligned. It fits the terminal, unless a width is given."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # plain: a path may hold what rich would take for markup

    named = any(columns)
    table = Table(box=box.SIMPLE_HEAD if named else None, show_header=named, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(Text(safe(column)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(_text(value))) for value in row))
    console = Console(width=width)
    console.print(Text(safe(title)), style="bold")
    console.print(table)
    console.print()


def show_values(title: str, values: dict[str, Any]) -> None:
    """Print what a command found, a row for each value; of a dict in it, its values on one line."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{key} {of}" for key, of in value.items())
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _text(value)

    show_table(title, ("", ""), [(name.replace("_", " "), text(value)) for name, value in values.items()])


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def safe(text: str) -> str:
    """A text for the terminal: what is not printable, and could command it or turn the line around, as its code.

    Line ends stay. Every text that a user or a file has a part in passes through here on its way out.
    """
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def say(text: object) -> None:
    """Print a line for people."""
    print(safe(str(text)))


def show_json(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def show_error(message: str, kind: str = "error") -> None:
    print(f"rti: {kind}: {safe(' '.join(message.split()))}", file=sys.stderr)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings as one line each on stderr, like errors."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        show_error(str(message), "warning")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def counted(count: int, what: str) -> str:
    """1 picture, 2 pictures."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def whole_numbers(text: str, what: str) -> list[int]:
    return list(numbers(text, what, int))


def numbers(text: str | None, what: str, kind: type = float) -> tuple[Any, ...] | None:
    """Numbers as typed, separated by commas; None where nothing was."""
    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        allowed = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{what} {text!r} is not usable; allowed: {allowed} separated by commas") from None


def span(text: str | None) -> tuple[int, int] | None:
    """A core as typed: "3,13"."""
    if text is None:
        return None
    blocks = whole_numbers(text, "core")
    if len(blocks) != 2:
        raise InputError(f"core {text!r} is not usable; allowed: first and last block, such as 3,13")
    return blocks[0], blocks[1]
