"""The figures of the probes, from the data they leave. Each gives back a figure; `plots.save_both` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rti.errors import InputError
from rti.files import in_one_line
from rti.lab.plots import COLOURS, GREY, LINES, MARKERS, legend_below, panels, places_of
from rti.method.config import ORDER_NAMES
from rti.method.order import order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {  # what the legend calls them, and their place in LINES: as gaps, fixed cuts and token skip have
    "adaptive": ("cut by content at the core's start", 1),
    "anew": ("cut by content at each block", 7),
    "fixed": ("evenly spaced cuts", 3),
    "skip": ("skipping", 6),
}
ALIKE = 0.01  # shares of the tokens may differ by rounding
TIME = "time of sampling (0 noise, 1 image)"


# The data comes from a file: where something of it is missing, or of another kind, say so in one line.
_of_data = in_one_line("the data of the figure is damaged; rti probe measures it again")


@_of_data
def redundancy_figure(values: dict[str, Any]) -> Figure:
    """Space, time and depth: Lorenz curve, EV of a middle block by time, EV by block with the proposed core."""
    space, time, depth = panels(3, 12.0, 4.2)
    _lorenz(space, values["lorenz"]["share_of_detail"])
    space.set_title("(a) space: where the detail is")
    blocks = list(range(len(values["by_block"]["fixed"])))
    for place, (kind, (label, line)) in enumerate(KINDS.items()):
        style = dict(color=LINES[line], marker=MARKERS[place], markersize=4, linewidth=1.5)
        style |= {"linestyle": "--", "markersize": 0} if kind == "anew" else {}
        time.plot(values["times"], _percent(values["by_step"][kind]), **style)
        depth.plot(blocks, _percent(values["by_block"][kind]), label=label, **style)
    first, last = values["proposed_core"]
    depth.axvspan(first - 0.5, last + 0.5, color=COLOURS[5], alpha=0.12, linewidth=0, label="proposed core")
    depth.xaxis.get_major_locator().set_params(integer=True)
    depth.set(xlabel="block", title=f"(c) depth: mean over {len(values['times'])} steps")
    time.set(xlabel=TIME, xlim=(0, 1), title=f"(b) time: block {values['middle_block']}")
    low = min(min(line.get_ydata(), default=100) for axes in (time, depth) for line in axes.lines)
    for axes in (time, depth):
        axes.set(ylabel="variance retained, %", ylim=(min(20, 10 * (low // 10)), 100))
    note = f"{values['budget']} of {values['patches']} tokens, {values['prompts']} prompts"
    depth.figure.suptitle(note, fontsize=10)
    return legend_below(depth.figure, columns=3)


def _lorenz(axes: Axes, curve: Sequence[float]) -> None:
    """Cumulative detail against the share of patches, most detailed first, and what the paper reads off it."""
    held, last = _percent(curve), len(curve) - 1
    shares = [100 * index / last for index in range(len(curve))]
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1)
    axes.plot(shares, held, color=COLOURS[0], linewidth=1.8)
    axes.fill_between(shares, shares, held, color=COLOURS[0], alpha=0.12, linewidth=0)
    for share in (15, 50):
        y = held[round(share / 100 * last)]
        axes.plot([0, share, share], [y, y, 0], ":", color=COLOURS[1], linewidth=1)
        axes.annotate(f"{share} %: {y:.0f} %", (share, y), (share + 3, y - 8), color=COLOURS[1], fontsize=9)
    axes.set(xlim=(0, 100), xlabel="share of patches, most detailed first, %")
    axes.set(ylim=(0, 102), ylabel="share of all detail, %")


BARS = {  # of each measure: the label of its axis, and by what the value is multiplied
    "spread": ("spread of a group, grid cells\n(small: contiguous)", 1),
    "size_detail": ("size-detail correlation, mid-sampling\n(high: size follows content)", 1),
    "retained": ("variance retained, %\n(high: it summarises)", 100),
    "spread_per_patch": ("distance of a patch to its region's centre,\ngrid cells (small: compact)", 1),
}


def groupings_figure(values: dict[str, Any]) -> Figure:
    """Spread, size-detail and retained variance of every reduction, as bars."""
    return _bars(values, ("spread", "size_detail", "retained"), "groups")


def orders_figure(values: dict[str, Any]) -> Figure:
    """What a partition of each order retains, and how compact its regions are."""
    return _bars(values, ("retained", "spread_per_patch"), "regions")


@_of_data
def _bars(values: dict[str, Any], measures: Sequence[str], what: str) -> Figure:
    """One panel a measure, one bar a row, with standard errors."""
    names = [row["name"] for row in values["rows"]]
    colours = [LINES[place % len(LINES)] for place in places_of(names).values()]
    columns = panels(len(measures), 3.6 * len(measures) + 2.0, 0.6 * len(names) + 2.0)
    for measure, axes in zip(measures, columns, strict=True):
        title, scale = BARS[measure]
        found = [row[measure] for row in values["rows"]]
        shown = [scale * (value or 0) for value in found]
        errors = [scale * (row[f"{measure}_error"] or 0) for row in values["rows"]]
        axes.barh(range(len(names)), shown, xerr=errors, color=colours, height=0.62, ecolor=GREY)
        low, high = min(0.0, *shown), max(*(s + e for s, e in zip(shown, errors, strict=True)), 0.01)
        room = (high - low) * 0.3
        for place, (value, y, error) in enumerate(zip(found, shown, errors, strict=True)):
            text = "no groups" if value is None else f"{y:.1f}" if scale == 100 else f"{y:.2f}"
            axes.text(max(y + error, 0) + 0.12 * room, place, text, va="center", fontsize=9, color=GREY)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.grid(False, axis="y")
        axes.set_yticks(range(len(names)), names if axes is columns[0] else [""] * len(names))
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set(xlabel=title, xlim=(low - (0.1 * room if low < 0 else 0), high + room))
    note = f"{values['budget']} {what} of {values['patches']} patches, {values['prompts']} prompts; "
    columns[0].figure.suptitle(note + "lines: ± one standard error", fontsize=10)
    return columns[0].figure


@_of_data
def routing_figure(values: dict[str, Any]) -> Figure:
    """The trained partition over sampling, one line a budget: detail ratio, size-detail, entropy of sizes."""
    ratio, correlation, entropy = panels(3, 12.0, 4.2)
    times = values["times"]
    for place, row in enumerate(values["rows"]):
        style = _style(place)
        known = [(time, value) for time, value in zip(times, row["detail_ratio"], strict=True) if value is not None]
        if known:
            ratio.plot(*zip(*known, strict=True), **style)
        correlation.plot(times, row["size_detail"], **style)
        entropy.plot(times, row["entropy"], label=f"R = {row['budget']}", **style)
    ratio.set_yscale("log")
    ratio.axhline(1, color=GREY, linewidth=1)
    without = [str(row["budget"]) for row in values["rows"] if all(value is None for value in row["detail_ratio"])]
    if without:
        text = f"R = {', '.join(without)}: too few regions\nof one patch or of 16"
        ratio.text(0.03, 0.97, text, transform=ratio.transAxes, va="top", fontsize=8, color=GREY)
        low, high = ratio.get_ylim()
        ratio.set_ylim(low, high * (high / low) ** 0.2)  # room above the lines for what is said there
    ratio.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ratio.yaxis.set_minor_formatter(lambda value, _: "")
    correlation.axhline(0, color=GREY, linewidth=1)
    for axes in (ratio, correlation, entropy):
        axes.set(xlabel=TIME, xlim=(0, 1))
    fine_over_coarse = "detail in regions of 1 patch\nover that in regions of 16 and more"
    ratio.set(ylabel=fine_over_coarse, title="(a) fine regions are on detail (1: chance)")
    correlation.set(ylabel="correlation of fineness with detail", title="(b) size follows detail")
    entropy.set(ylabel="entropy of region sizes, bits", title="(c) variety of sizes")
    entropy.set_ylim(bottom=0)
    entropy.figure.suptitle(f"{values['patches']} patches, {values['prompts']} prompts", fontsize=10)
    return legend_below(entropy.figure, columns=6)


def _percent(values: Any) -> list[float]:
    return [100 * value for value in values]


def _style(place: int) -> dict[str, Any]:
    return dict(color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)], markersize=4)


# Several models in one figure.


def profiles(probes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of what `rti probe redundancy` wrote for each model: what its blocks retain, cut by content at the core's start.

    `rise` is how much more the best block retains than the first.
    """
    found = {}
    for name, values in probes.items():
        retained = values["by_block"]["adaptive"]
        found[name] = {
            "image_size": values.get("image_size"),  # not known of older data
            "share": values["budget"] / values["patches"],
            "relative_depth": [round(block / max(len(retained) - 1, 1), 4) for block in range(len(retained))],
            "retained": retained,
            "rise": round(max(retained) - retained[0], 6),
        }
    (first, one), *others = found.items()
    for name, other in others:
        if abs(other["share"] - one["share"]) > ALIKE:
            shares = f"{100 * one['share']:.3g} % and {100 * other['share']:.3g} %"
            raise InputError(f"{first} and {name} were probed at {shares} of their tokens; probe at one --budget")
    return found


def profiles_figure(found: dict[str, dict[str, Any]]) -> Figure:
    """Variance retained against relative depth, a line per model, a panel per size of picture, small first.

    One panel for all where the size of any is not known.
    """
    sizes = {name: tuple(one["image_size"] or ()) for name, one in found.items()}
    if () in sizes.values():
        sizes = dict.fromkeys(sizes, ())
    places = sorted(set(sizes.values()))
    columns = panels(len(places), 1.6 + 4.2 * len(places), 4.4)
    for axes, size in zip(columns, places, strict=True):
        for place, (name, one) in enumerate(found.items()):
            if sizes[name] == size:
                axes.plot(one["relative_depth"], _percent(one["retained"]), label=name, **_style(place))
        axes.set(xlabel="relative depth (0 first block, 1 last)", ylabel="variance retained, %", xlim=(-0.02, 1.02))
        axes.set_title("{} x {} pixels".format(*size) if size else "")
    bounds = [axes.get_ylim() for axes in columns]
    for axes in columns:
        axes.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))  # so that levels can be compared
    figure, share = columns[0].figure, next(iter(found.values()))["share"]
    figure.suptitle(f"pooled to {100 * share:.3g} % of the tokens, cut by content at the core's start", fontsize=10)
    return legend_below(figure, columns=min(len(found), 4), fontsize=10)


# The orders themselves, as walks over a small grid with one run of each shaded, as in the paper.

SIDE, FIRST, LENGTH = 8, 12, 8  # patches of the grid, and of the run from which position on


def walks() -> dict[str, list[list[int]]]:
    """Row and column of each patch along every order."""
    orders = {name: order(name, SIDE, SIDE)[0].tolist() for name in ORDER_NAMES}
    return {name: [[*divmod(patch, SIDE)] for patch in walk] for name, walk in orders.items()}


def walks_figure(found: dict[str, list[list[int]]]) -> Figure:
    """A panel for each order: its walk, dotted where it jumps, and the patches of the run."""
    columns = panels(len(found), 3.1 * len(found), 3.4)
    for colour, axes, (name, walk) in zip(COLOURS, columns, found.items(), strict=False):
        for row, column in walk[FIRST : FIRST + LENGTH]:
            axes.fill_between([column - 0.5, column + 0.5], row - 0.5, row + 0.5, color=colour, alpha=0.3, lw=0)
        for (row, column), (below, right) in pairwise(walk):
            jump = abs(row - below) + abs(column - right) > 1
            style = dict(linestyle=":", linewidth=0.9) if jump else dict(linestyle="-", linewidth=1.6)
            axes.plot([column, right], [row, below], color=colour, **style)
        axes.plot(walk[0][1], walk[0][0], "o", color=colour, markersize=5)
        lines = [place - 0.5 for place in range(SIDE + 1)]
        axes.set(xticks=lines, yticks=lines, xticklabels=[], yticklabels=[])
        axes.tick_params(length=0)
        axes.set(xlim=(-0.5, SIDE - 0.5), ylim=(SIDE - 0.5, -0.5), aspect="equal", title=name)
    columns[0].figure.suptitle(f"the same {LENGTH} positions shaded in each order", fontsize=10, color=GREY)
    return columns[0].figure
