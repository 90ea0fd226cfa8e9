"""Stopping a run from outside: SIGTERM and Ctrl-C ask it to end after the step it is at."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_stop_signal(stop: Callable[..., Any]) -> Iterator[None]:
    """Call `stop` instead of ending the process; the handlers that were there before come back."""
    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
