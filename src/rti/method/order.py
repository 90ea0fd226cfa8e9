"""Orders of the patch grid: one-dimensional walks whose runs are the regions (paper, "Hilbert order").

Every order comes with its inverse: `x[:, order][:, inverse] == x` for row-major patches `x`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

from rti.errors import InputError, check_choice, check_whole

MOST_PATCHES = 2**20  # the walk over more takes minutes


def order(name: str, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The order `name` of a height x width grid, and its inverse, both (N,) int64.

    `order[j]` is the row-major patch at position j of the walk; `inverse[i]` is the position of patch i.
    """
    check_choice("order", name, ORDERS)
    for side, value in (("height", height), ("width", width)):
        check_whole(f"{side} of the grid", int(value) if isinstance(value, np.integer) else value)
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
    wide, tall = complex(0, width), complex(height, 0)
    along_width = width >= height
    if height % 2 != width % 2:
        along_width = width % 2 == 0
    cells = _fill(0j, wide, tall) if along_width else _fill(0j, tall, wide)
    return np.array([int(cell.real) * width + int(cell.imag) for cell in cells])


def _fill(start: complex, along: complex, across: complex) -> Iterator[complex]:
    """Visit the rectangle spanned by `along` and `across` from the cell `start`, ending at the far end of `along`.

    Cells and sides are complex numbers: rows are the real part, columns the imaginary one.
    """
    length, depth = abs(along), abs(across)
    if depth == 1 or length == 1:
        line = along if depth == 1 else across
        for i in range(int(abs(line))):
            yield start + i * _unit(line)
    elif 2 * length > 3 * depth:  # a long strip: two rectangles one after the other
        first = _half(along)
        yield from _fill(start, first, across)
        yield from _fill(start + first, along - first, across)
    else:  # Hilbert's motif: up one side, across the top, down the other side
        up, left = _half(across), _half(along, even=False)
        yield from _fill(start, up, left)
        yield from _fill(start + up, along, across - up)
        last = along - _unit(along) + up - _unit(up)
        yield from _fill(start + last, -up, left - along)


def _half(side: complex, even: bool = True) -> complex:
    """About half of a side, of even length where asked.

    An even side lets the walk end in a corner; the halves of the motif need not, and are more compact as they fall.
    """
    half = abs(side) // 2
    if even and half % 2 and abs(side) > 2:
        half += 1
    return half * _unit(side)


def _unit(side: complex) -> complex:
    return side / abs(side)


ORDERS = {"hilbert": hilbert_order, "morton": morton_order, "raster": raster_order}
