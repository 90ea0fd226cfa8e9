"""How commands show the library's warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rti.cli.output import show_error


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings as one line each on stderr, like errors. Also a decorator for a whole command."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        show_error(str(message), "warning")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
