"""Several sources with weights, as one endless source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rti.data.shuffle import Shuffle
from rti.data.source import Source
from rti.errors import InputError, check_finite
from rti.seeds import scramble

_BLOCK = 1 << 16


class Mixture(Source):
    """Draw number `index` comes from a source picked by weight, from a hash of (seed, index).

    If it is the r-th draw from that source, it is the source's r-th example in the source's own `Shuffle`. So each
    source is walked in shuffled order, none of its examples comes twice within an epoch of that source, and
    small sources begin their next epoch earlier than large ones.

    To know r at any index, draws are counted once in blocks of 65,536 and the counts at the block ends are kept: a
    jump to index 25 million (100 K steps of 256) takes about a second, the draws after it microseconds.
    """

    name = "a mixture"
    endless = True

    def __init__(self, sources: Sequence[Source], weights: Sequence[float], seed: int = 0) -> None:
        if not sources or len(sources) != len(weights):
            raise InputError(f"a mixture needs one weight per source: {len(sources)} sources, {len(weights)} weights")
        for weight in weights:
            check_finite("weight of data", weight, above=0)
        if len({source.kind for source in sources}) > 1:
            kinds = "; ".join(f"{source.describe()} ({source.kind})" for source in sources)
            raise InputError(f"a mixture is of one kind, text or labels, got {kinds}")
        self.sources, self.kind = list(sources), sources[0].kind
        self.weights = [weight / sum(weights) for weight in weights]
        self._key = scramble(seed & (1 << 64) - 1)
        self._shuffles = [Shuffle.of(source, scramble(self._key ^ number)) for number, source in enumerate(sources, 1)]
        self._counts = [np.zeros(len(sources), dtype=np.int64)]  # draws from each source before each block
        self._block: tuple[int, np.ndarray] = (-1, np.empty(0))  # the block read last

    def locate(self, index: int) -> tuple[Source, int]:
        number, rank = self.pick(index)
        return self.sources[number].locate(self._shuffles[number].index(rank))

    def pick(self, index: int) -> tuple[int, int]:
        """Which source, and how many draws it had before."""
        self.check_index(index)
        block, place = divmod(index, _BLOCK)
        while len(self._counts) <= block:
            choices = self._choices(len(self._counts) - 1)
            self._counts.append(self._counts[-1] + np.bincount(choices, minlength=len(self.sources)))
        if self._block[0] != block:
            self._block = (block, self._choices(block))
        choices = self._block[1]
        number = int(choices[place])
        return number, int(self._counts[block][number]) + int(np.count_nonzero(choices[:place] == number))

    def _choices(self, block: int) -> np.ndarray:
        """The sources picked in a block: (65536,) int64."""
        indices = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.uint64)
        uniform = (scramble(indices ^ np.uint64(self._key)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.searchsorted(np.cumsum(self.weights)[:-1], uniform, side="right")
