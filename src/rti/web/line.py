"""The line before the one model: first come, first served, and left at once by who is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rti.errors import InputError

LOOK_SECONDS = 0.1  # between two looks at whether a waiting visitor was stopped


class Stopped(Exception):
    """Raised inside a run that was asked to stop, also while it waits."""


class Line:
    """Visitors in the order they came; the first one has the turn."""

    def __init__(self, longest: int):
        self.longest = longest
        self._line: list[threading.Event] = []  # by their stops: each run has one of its own
        self._moved = threading.Condition()

    def __len__(self) -> int:
        return len(self._line)

    @contextmanager
    def turn(self, stop: threading.Event, tell: Callable[[int], None]) -> Iterator[None]:
        """Wait for the turn, and keep it to the end of the block. `tell` hears how many are before, at each change."""
        with self._moved:
            if len(self._line) >= self.longest:
                raise InputError(f"{self.longest} pictures are waited for already; please come back in a moment.")
            self._line.append(stop)
        try:
            with self._moved:
                told = 0
                while not stop.is_set() and (before := self._line.index(stop)):
                    if before != told:
                        told = before
                        tell(before)
                    self._moved.wait(LOOK_SECONDS)
            if stop.is_set():
                raise Stopped
            yield
        finally:
            with self._moved:
                self._line.remove(stop)
                self._moved.notify_all()
