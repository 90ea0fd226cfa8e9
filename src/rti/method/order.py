"""Orders of the patch grid: one-dimensional walks whose runs are the regions (paper, "Hilbert order").

Every order comes with its inverse: `x[:, order][:, inverse] == x` for row-major patches `x`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

from rti.errors import InputError

MOST_PATCHES = 2**20  # the walk over more takes minutes
Vector = tuple[int, int]  # (rows, columns)


def order(name: str, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The order `name` of a height x width grid, and its inverse, both (N,) int64.

    `order[j]` is the row-major patch at position j of the walk; `inverse[i]` is the position of patch i.
    """
    if not isinstance(name, str) or name not in ORDERS:
        raise InputError(f"unknown order {name!r}; allowed: {', '.join(ORDERS)}")
    for side, value in (("height", height), ("width", width)):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise InputError(f"{side} of the grid must be a whole number of at least 1, got {value!r}")
    if int(height) * int(width) > MOST_PATCHES:
        raise InputError(f"a grid of {height} x {width} patches is too large; allowed: {MOST_PATCHES:,} patches")
    walk = torch.tensor(_walk(name, int(height), int(width)))
    return walk, torch.argsort(walk)


@lru_cache(maxsize=64)
def _walk(name: str, height: int, width: int) -> tuple[int, ...]:
    walk = ORDERS[name](height, width)
    return tuple(int(patch) for patch in walk)


def raster_order(height: int, width: int) -> np.ndarray:
    """Row by row. A run tears at the end of a row."""
    return np.arange(height * width)


def morton_order(height: int, width: int) -> np.ndarray:
    """The Z curve: patches sorted by the interleaved bits of their row and column. A run tears at dyadic borders."""
    rows, columns = np.divmod(np.arange(height * width), width)
    code = np.zeros(height * width, dtype=np.int64)
    for bit in range(max(height, width).bit_length()):
        code |= ((columns >> bit) & 1) << (2 * bit)
        code |= ((rows >> bit) & 1) << (2 * bit + 1)
    return np.argsort(code)


def hilbert_order(height: int, width: int) -> np.ndarray:
    """A Hilbert curve for any rectangle: from the top-left corner, each step to a neighbour, so each run is connected.

    On 2^k x 2^k grids it is the classic curve, which ends in the top-right corner. On other grids the same recursion
    halves the sides as evenly as their parity allows. A walk between two corners of a side of odd length exists only
    if the other side is odd too (colour the grid like a chess board), so the walk ends along a side of even length
    where there is one.
    """
    wide, tall = (0, width), (height, 0)
    along_width = width >= height
    if height % 2 != width % 2:
        along_width = width % 2 == 0
    cells = _fill((0, 0), wide, tall) if along_width else _fill((0, 0), tall, wide)
    return np.array([row * width + column for row, column in cells])


def _fill(start: Vector, along: Vector, across: Vector) -> Iterator[Vector]:
    """Visit the rectangle spanned by `along` and `across` from the cell `start`, ending at the far end of `along`."""
    length, depth = _length(along), _length(across)
    if depth == 1 or length == 1:
        line = along if depth == 1 else across
        step = _unit(line)
        for i in range(_length(line)):
            yield start[0] + i * step[0], start[1] + i * step[1]
    elif 2 * length > 3 * depth:  # a long strip: two rectangles one after the other
        first = _half(along)
        yield from _fill(start, first, across)
        yield from _fill(_add(start, first), _subtract(along, first), across)
    else:  # Hilbert's motif: up one side, across the top, down the other side
        up, left = _half(across), _half(along, even=False)
        yield from _fill(start, up, left)
        yield from _fill(_add(start, up), along, _subtract(across, up))
        last = _add(_subtract(along, _unit(along)), _subtract(up, _unit(up)))
        right = _subtract(along, left)
        yield from _fill(_add(start, last), _negative(up), _negative(right))


def _half(vector: Vector, even: bool = True) -> Vector:
    """About half of an axis-parallel vector, of even length where asked.

    An even side lets the walk end in a corner; the halves of the motif need not, and are more compact as they fall.
    """
    length = _length(vector)
    half = length // 2
    if even and half % 2 and length > 2:
        half += 1
    step = _unit(vector)
    return half * step[0], half * step[1]


def _length(vector: Vector) -> int:
    return abs(vector[0] + vector[1])


def _unit(vector: Vector) -> Vector:
    return (vector[0] > 0) - (vector[0] < 0), (vector[1] > 0) - (vector[1] < 0)


def _add(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1]


def _subtract(a: Vector, b: Vector) -> Vector:
    return a[0] - b[0], a[1] - b[1]


def _negative(vector: Vector) -> Vector:
    return -vector[0], -vector[1]


ORDERS = {"hilbert": hilbert_order, "morton": morton_order, "raster": raster_order}
