"""The orders of the patches themselves, as walks over a small grid with one run of each shaded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rti.errors import InputError
from rti.lab.plots import COLOURS, GREY, panels
from rti.method.config import ORDER_NAMES
from rti.method.order import order

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def walks(grid: tuple[int, int] = (8, 8), first: int = 12, length: int = 8) -> dict[str, list[list[int]]]:
    """Row and column of each patch along every order, the same run of `length` positions from `first` on."""
    height, width = grid
    if min(grid) < 1 or not 0 <= first < first + length <= height * width:
        allowed = f"allowed: a run within the {height * width} patches"
        raise InputError(f"a run of {length} from {first} on in a grid of {height} x {width} is not there; {allowed}")
    found = {}
    for name in ORDER_NAMES:
        walk, _ = order(name, height, width)
        found[name] = [[int(patch) // width, int(patch) % width] for patch in walk]
    return found


def walks_figure(found: dict[str, list[list[int]]], first: int = 12, length: int = 8) -> Figure:
    """A panel for each order: its walk, dotted where it jumps, and the patches of the run."""
    columns = panels(len(found), 3.1 * len(found), 3.4)
    for place, (axes, (name, walk)) in enumerate(zip(columns, found.items(), strict=True)):
        rows, sides = (max(patch[axis] for patch in walk) + 1 for axis in (0, 1))
        for row, column in walk[first : first + length]:
            axes.fill_between([column - 0.5, column + 0.5], row - 0.5, row + 0.5, color=COLOURS[place], alpha=0.3, lw=0)
        for (row, column), (below, right) in pairwise(walk):
            jump = abs(row - below) + abs(column - right) > 1
            style = dict(linestyle=":", linewidth=0.9) if jump else dict(linestyle="-", linewidth=1.6)
            axes.plot([column, right], [row, below], color=COLOURS[place], **style)
        axes.plot(walk[0][1], walk[0][0], "o", color=COLOURS[place], markersize=5)
        axes.set_xticks([column - 0.5 for column in range(sides + 1)], [""] * (sides + 1))
        axes.set_yticks([row - 0.5 for row in range(rows + 1)], [""] * (rows + 1))
        axes.tick_params(length=0)
        axes.set(xlim=(-0.5, sides - 0.5), ylim=(rows - 0.5, -0.5), aspect="equal", title=name)
    columns[0].figure.suptitle(f"the same {length} positions shaded in each order", fontsize=10, color=GREY)
    return columns[0].figure
