"""Shuffling by arithmetic: the dataset index at a training position, without a table and without state."""

from __future__ import annotations

from rti.data.source import Source
from rti.errors import check_whole
from rti.seeds import scramble

_MASK = (1 << 64) - 1
_ROUNDS = 8


class Shuffle:
    """Every epoch visits each index once, in an order that depends on (seed, epoch) alone.

    A Feistel network permutes the smallest 2^(2k) >= length; what falls outside is sent through again until it falls
    inside, which keeps it a permutation. It takes no memory at any length, and unlike torch.randperm it will be the
    same in every version of every library, so that a run can be resumed years later.

    Length None is for endless sources: the index is the position.
    """

    def __init__(self, length: int | None, seed: int = 0) -> None:
        check_whole("length of a shuffle", 1 if length is None else length)
        self.length, self.seed = length, seed
        self._half = max(1, ((length or 1) - 1).bit_length() + 1 >> 1)  # bits of each half

    @classmethod
    def of(cls, source: Source, seed: int = 0) -> Shuffle:
        """The order in which to train on a source."""
        return cls(None if source.endless else len(source), seed)

    def index(self, position: int) -> int:
        """The dataset index at a training position; positions count on through the epochs."""
        check_whole("position", position, least=0)
        if self.length is None:
            return position
        epoch, place = divmod(position, self.length)
        key = scramble(scramble(self.seed & _MASK) ^ epoch)
        place = self._permute(place, key)
        while place >= self.length:
            place = self._permute(place, key)
        return place

    def _permute(self, place: int, key: int) -> int:
        low_bits = (1 << self._half) - 1
        left, right = place >> self._half, place & low_bits
        for number in range(_ROUNDS):
            # Each round needs a function of its own, hence the second scramble: keys that differ by a little must not
            # give functions that differ by a little.
            left, right = right, left ^ (scramble(scramble(key + number & _MASK) ^ right) & low_bits)
        return left << self._half | right
