"""Orders: permutations with inverses, connected along Hilbert, dyadic cells in one run."""

from functools import lru_cache

import pytest
import torch
from hilbertcurve.hilbertcurve import HilbertCurve
from hypothesis import given
from hypothesis import strategies as st

from references import PROPERTY, assert_refused, morton_walk
from rti.method.order import ORDERS, order

GRIDS = [(height, width) for height in range(1, 49) for width in range(1, 65)]
grids = st.tuples(st.integers(1, 48), st.integers(1, 64))

# The paper's figure of the three orders, row-major patches of an 8 x 8 grid.
HILBERT_FIGURE = [
    *(0, 8, 9, 1, 2, 3, 11, 10, 18, 19, 27, 26, 25, 17, 16, 24),
    *(32, 33, 41, 40, 48, 56, 57, 49, 50, 58, 59, 51, 43, 42, 34, 35),
    *(36, 37, 45, 44, 52, 60, 61, 53, 54, 62, 63, 55, 47, 46, 38, 39),
    *(31, 23, 22, 30, 29, 28, 20, 21, 13, 12, 4, 5, 6, 14, 15, 7),
]
MORTON_FIGURE = [
    *(0, 1, 8, 9, 2, 3, 10, 11, 16, 17, 24, 25, 18, 19, 26, 27),
    *(4, 5, 12, 13, 6, 7, 14, 15, 20, 21, 28, 29, 22, 23, 30, 31),
    *(32, 33, 40, 41, 34, 35, 42, 43, 48, 49, 56, 57, 50, 51, 58, 59),
    *(36, 37, 44, 45, 38, 39, 46, 47, 52, 53, 60, 61, 54, 55, 62, 63),
]


@lru_cache(maxsize=1)
def all_hilbert() -> dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]:
    return {grid: order("hilbert", *grid) for grid in GRIDS}


def assert_inverse_pair(walk: torch.Tensor, inverse: torch.Tensor, patches: int) -> None:
    """The two undo each other, so both are permutations."""
    positions = torch.arange(patches)
    assert walk.dtype == inverse.dtype == torch.int64
    assert torch.equal(walk[inverse], positions)
    assert torch.equal(inverse[walk], positions)


def test_hilbert_comes_with_its_inverse_on_every_grid():
    for (height, width), (walk, inverse) in all_hilbert().items():
        assert_inverse_pair(walk, inverse, height * width)


@pytest.mark.parametrize("name", ["morton", "raster"])
def test_the_other_orders_come_with_their_inverse_on_every_grid(name):
    for height, width in GRIDS:
        assert_inverse_pair(*order(name, height, width), height * width)


def test_hilbert_steps_only_between_four_neighbours_on_every_grid():
    """There is no diagonal step at all, so every run of the walk is 4-connected."""
    for (_, width), (walk, _) in all_hilbert().items():
        rows, columns = walk // width, walk % width
        assert (rows.diff().abs() + columns.diff().abs() == 1).all()


def test_hilbert_goes_from_the_top_left_to_another_corner_along_a_side_on_every_grid():
    for (height, width), (walk, _) in all_hilbert().items():
        assert walk[0] == 0
        assert walk[-1] in (width - 1, (height - 1) * width)


@pytest.mark.parametrize("exponent", range(7))
def test_hilbert_on_a_square_of_a_power_of_two_is_the_classic_curve_from_top_left_to_top_right(exponent):
    side = 2**exponent
    walk, _ = order("hilbert", side, side)
    if exponent:  # the oracle knows no curve of one cell
        classic = torch.tensor(HilbertCurve(exponent, 2).points_from_distances(range(side**2)))
        mirrored = [classic, classic.flip(1)]
        for axis in range(2):
            flip = torch.tensor([side - 1 if axis == 0 else 0, side - 1 if axis == 1 else 0])
            mirrored += [(flip - points).abs() for points in mirrored]
        assert len({tuple(points.flatten().tolist()) for points in mirrored}) == 8
        assert any(torch.equal(walk, points @ torch.tensor([side, 1])) for points in mirrored)
    assert walk[0] == 0
    assert walk[-1] == side - 1


def test_hilbert_is_drawn_as_in_the_paper():
    assert order("hilbert", 8, 8)[0].tolist() == HILBERT_FIGURE


def test_morton_is_drawn_as_in_the_paper():
    assert order("morton", 8, 8)[0].tolist() == MORTON_FIGURE


@pytest.mark.parametrize("name", ["hilbert", "morton"])
@pytest.mark.parametrize("exponent", range(7))
def test_every_dyadic_cell_of_a_square_is_one_run(name, exponent):
    side = 2**exponent
    _, inverse = order(name, side, side)
    for level in range(exponent + 1):
        cell = 2**level
        positions = inverse.view(side // cell, cell, side // cell, cell)
        extent = positions.amax(dim=(1, 3)) - positions.amin(dim=(1, 3))
        assert (extent == cell**2 - 1).all()


def test_raster_does_not_keep_dyadic_cells_together():
    """The check above can fail."""
    _, inverse = order("raster", 4, 4)
    assert inverse.view(2, 2, 2, 2)[0, :, 0].flatten().tolist() == [0, 1, 4, 5]


@PROPERTY
@given(grids)
def test_morton_sorts_by_interleaved_bits(grid):
    assert order("morton", *grid)[0].tolist() == morton_walk(*grid)


def test_raster_counts_row_by_row_on_every_grid():
    for height, width in GRIDS:
        assert torch.equal(order("raster", height, width)[0], torch.arange(height * width))


@pytest.mark.parametrize("name", ORDERS)
def test_a_walk_is_the_callers_own(name):
    """The walks are cached, and a caller may do with its tensors what it likes."""
    walk, inverse = order(name, 5, 6)
    expected, expected_inverse = walk.clone(), inverse.clone()
    walk.zero_()
    inverse.zero_()
    again, inverse_again = order(name, 5, 6)
    assert torch.equal(again, expected)
    assert torch.equal(inverse_again, expected_inverse)


@pytest.mark.parametrize("name", ["Hilbert", "peano", "", None, 3, ["hilbert"]])
def test_an_unknown_order_is_refused(name):
    assert_refused(lambda: order(name, 4, 4), repr(name), "hilbert, morton, raster")


@pytest.mark.parametrize("side", [0, -3, 2.0, "4", None, True, float("nan")])
@pytest.mark.parametrize("name", ORDERS)
def test_an_impossible_grid_is_refused(name, side):
    assert_refused(lambda: order(name, side, 4), "height", repr(side), "at least 1")
    assert_refused(lambda: order(name, 4, side), "width", repr(side), "at least 1")


@pytest.mark.parametrize("name", ORDERS)
def test_a_grid_that_fills_the_memory_is_refused(name):
    assert_refused(lambda: order(name, 10**6, 10**6), "1000000 x 1000000", "allowed")
