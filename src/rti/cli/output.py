"""How commands print: a table for people, then one JSON line for machines where asked; errors on one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rti.errors import InputError


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> None:
    """Print a table; numbers are right-aligned. It fits the terminal, unless a width is given."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    named = any(columns)
    table = Table(box=box.SIMPLE_HEAD if named else None, show_header=named, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(value) for value in row))
    console = Console(width=width)
    console.print(title, style="bold", highlight=False)
    console.print(table)
    console.print()


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if abs(value) < 0.1 else f"{value:.2f}"


def show_json(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def show_error(message: str) -> None:
    print("rti: error: " + " ".join(message.split()), file=sys.stderr)


def whole_numbers(text: str, what: str) -> list[int]:
    """Numbers as typed, separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{what} {text!r} is not usable; allowed: whole numbers separated by commas") from None


def span(text: str | None) -> tuple[int, int] | None:
    """A core as typed: "3,13"."""
    if text is None:
        return None
    blocks = whole_numbers(text, "core")
    if len(blocks) != 2:
        raise InputError(f"core {text!r} is not usable; allowed: first and last block, such as 3,13")
    return blocks[0], blocks[1]
