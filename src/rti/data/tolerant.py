"""Broken examples are skipped and counted; only a source that is broken through and through stops the run."""

from __future__ import annotations

from typing import NamedTuple

from rti.data.source import BrokenExample, Example, Source
from rti.errors import InputError


class Drawn(NamedTuple):
    """The example used for an index, and how many broken ones were passed over to find it."""

    example: Example
    index: int
    skipped: int


class Tolerant:
    """A source whose broken examples are replaced by the next whole one of the same source.

    In a mixture the replacement comes from the same part, so that broken examples do not shift the weights and a part
    that is all broken is noticed. The replacement is still drawn in its own turn as well.
    """

    def __init__(self, source: Source, limit: int = 100) -> None:
        if len(source) == 0:
            raise InputError(f"{source.describe()} is empty")
        if limit < 0:
            raise InputError(f"the number of broken examples in a row to bear is at least 0, got {limit}")
        self.source, self.limit, self.kind, self.endless = source, limit, source.kind, source.endless

    def __len__(self) -> int:
        return len(self.source)

    def describe(self) -> str:
        return self.source.describe()

    def __getitem__(self, index: int) -> Drawn:
        self.source.check_index(index)
        part, start = self.source.locate(index)
        reason = None
        tries = min(self.limit + 1, len(part))
        for skipped in range(tries):
            try:
                return Drawn(part[(start + skipped) % len(part)], index, skipped)
            except BrokenExample as error:
                reason = error
        raise InputError(f"{tries} broken examples in a row in {part.describe()}; the last: {reason}")
