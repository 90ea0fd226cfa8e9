"""The figures of the probes, from the data they leave. Each gives back a figure; `plots.save_both` writes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rti.errors import InputError
from rti.lab.plots import COLOURS, GREY, LINES, MARKERS, legend_below, panels, places_of
from rti.lab.probes import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_LABELS = {
    "adaptive": "cut by content at the core's start",
    "anew": "cut by content at each block",
    "fixed": "evenly spaced cuts",
    "skip": "skipping",
}
KIND_PLACES = {"adaptive": 1, "anew": 7, "fixed": 3, "skip": 6}  # in LINES, as gaps, fixed cuts and token skip have
FAR = 2.5  # times the longest bar: a value of the paper beyond is no part of the axis
TIME = "time of sampling (0 noise, 1 image)"


def _of_data(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """The data comes from a file: where something of it is missing, or of another kind, say so in one line."""

    @functools.wraps(draw)
    def drawn(values: dict[str, Any], with_paper: bool = False) -> Figure:
        try:
            return draw(values, with_paper)
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            raise InputError(f"the data of the figure is damaged ({why}); rti probe measures it again") from None

    return drawn


@_of_data
def redundancy_figure(values: dict[str, Any], with_paper: bool = False) -> Figure:
    """Space, time and depth: Lorenz curve, EV of a middle block by time, EV by block with the proposed core."""
    space, time, depth = panels(3, 12.0, 4.2)
    _lorenz(space, {"pictures drawn": values["lorenz"]["share_of_detail"]}, with_paper)
    space.set_title("(a) space: where the detail is")

    blocks = list(range(len(values["by_block"]["fixed"])))
    for place, kind in enumerate(KIND_LABELS):
        style = dict(color=LINES[KIND_PLACES[kind]], marker=MARKERS[place], markersize=4, linewidth=1.5)
        style |= {"linestyle": "--", "markersize": 0} if kind == "anew" else {}
        for axes, x, y in ((time, values["times"], "by_step"), (depth, blocks, "by_block")):
            axes.plot(x, _percent(values[y][kind]), label=KIND_LABELS[kind] if axes is depth else None, **style)
        if with_paper and kind in paper.BY_BLOCK:
            style |= {"linestyle": ":", "marker": "", "linewidth": 1.2}
            time.plot(paper.TIMES, _percent(paper.BY_STEP[kind]), **style)
            stretch = (len(blocks) - 1) / (len(paper.BY_BLOCK[kind]) - 1)  # by relative depth
            depth.plot([stretch * i for i in range(len(paper.BY_BLOCK[kind]))], _percent(paper.BY_BLOCK[kind]), **style)
    if with_paper:
        depth.plot([], [], ":", color=GREY, linewidth=1.2, label=f"dotted: {paper.MODEL}")
    first, last = values["proposed_core"]
    depth.axvspan(first - 0.5, last + 0.5, color=COLOURS[5], alpha=0.12, linewidth=0, label="proposed core")
    depth.set_xlabel("block")
    depth.xaxis.get_major_locator().set_params(integer=True)
    depth.set_title(f"(c) depth: mean over {len(values['times'])} steps")
    time.set_xlabel(TIME)
    time.set_xlim(0, 1)
    time.set_title(f"(b) time: block {values['middle_block']}")
    low = min(min(line.get_ydata(), default=100) for axes in (time, depth) for line in axes.lines)
    for axes in (time, depth):
        axes.set_ylabel("variance retained, %")
        axes.set_ylim(min(20, 10 * (low // 10)), 100)
    return _finish(depth, f"{values['budget']} of {values['patches']} tokens, {values['prompts']} prompts", columns=3)


@_of_data
def lorenz_figure(curves: dict[str, Sequence[float]], with_paper: bool = False) -> Figure:
    """Cumulative detail against the share of patches, most detailed first, one curve per source."""
    (axes,) = panels(1, 5.4, 4.8)
    _lorenz(axes, curves, with_paper)
    axes.set_title("Where the detail of pictures is")
    axes.legend(frameon=False, loc="lower right")
    return axes.figure


def _lorenz(axes: Axes, curves: dict[str, Sequence[float]], with_paper: bool) -> None:
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1, label="even" if len(curves) > 1 or with_paper else None)
    for place, (name, curve) in enumerate(curves.items()):
        shares = [100 * index / (len(curve) - 1) for index in range(len(curve))]
        label = name if len(curves) > 1 or with_paper else None
        axes.plot(shares, _percent(curve), color=COLOURS[place % len(COLOURS)], linewidth=1.8, label=label)
        if len(curves) == 1:
            axes.fill_between(shares, shares, _percent(curve), color=COLOURS[place], alpha=0.12, linewidth=0)
    if len(curves) == 1:
        curve = next(iter(curves.values()))
        for share in paper.IN_TOP:
            held = 100 * curve[round(share * (len(curve) - 1))]
            axes.plot([0, 100 * share, 100 * share], [held, held, 0], ":", color=COLOURS[1], linewidth=1)
            axes.annotate(
                f"{100 * share:.0f} %: {held:.0f} %",
                (100 * share, held),
                (100 * share + 3, held - 8),
                color=COLOURS[1],
                fontsize=9,
            )
    if with_paper:
        axes.plot(
            [100 * share for share in paper.IN_TOP],
            _percent(paper.IN_TOP.values()),
            "D",
            color=COLOURS[4],
            markeredgecolor=GREY,
            markersize=6,
            label=paper.MODEL,
            zorder=5,
        )
        if len(curves) == 1:
            axes.legend(frameon=False, loc="lower right", fontsize=8)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 102)
    axes.set_xlabel("share of patches, most detailed first, %")
    axes.set_ylabel("share of all detail, %")


@_of_data
def groupings_figure(values: dict[str, Any], with_paper: bool = False) -> Figure:
    """Spread, size-detail and retained variance of every reduction, as bars."""
    titles = {
        "spread": "spread of a group, grid cells\n(small: contiguous)",
        "size_detail": "size-detail correlation, mid-sampling\n(high: size follows content)",
        "retained": "variance retained, %\n(high: it summarises)",
    }
    return _bars(values, titles, paper.GROUPINGS if with_paper else {}, "groups")


@_of_data
def orders_figure(values: dict[str, Any], with_paper: bool = False) -> Figure:
    """What a partition of each order retains, and how compact its regions are."""
    titles = {
        "retained": "variance retained, %\n(high: it summarises)",
        "spread_per_patch": "distance of a patch to its region's centre,\ngrid cells (small: compact)",
    }
    return _bars(values, titles, paper.ORDERS if with_paper else {}, "regions")


def _bars(values: dict[str, Any], titles: dict[str, str], beside: dict[str, tuple], what: str) -> Figure:
    """One panel a measure, one bar a row, with standard errors, and the paper's value as a diamond."""
    rows, beyond = values["rows"], False
    columns = panels(len(titles), 3.6 * len(titles) + 2.0, 0.6 * len(rows) + 2.0)
    for panel, (axes, (measure, title)) in enumerate(zip(columns, titles.items(), strict=True)):
        scale = 100 if measure == "retained" else 1
        shown = [scale * (row[measure] or 0) for row in rows]
        errors = [scale * (row[f"{measure}_error"] or 0) for row in rows]
        colours = [LINES[place % len(LINES)] for place in places_of(row["name"] for row in rows).values()]
        axes.barh(range(len(rows)), shown, xerr=errors, color=colours, height=0.62, ecolor=GREY)
        theirs = [beside.get(row["name"], (None,) * len(titles))[panel] for row in rows]
        # At the lower edge of a bar, so that it hides no number.
        marks = [(scale * value, place + 0.31) for place, value in enumerate(theirs) if value is not None]
        own = max(*(s + e for s, e in zip(shown, errors, strict=True)), 0.01)
        far = [mark for mark in marks if mark[0] > FAR * own]  # would shrink everything else: said at the edge instead
        marks = [mark for mark in marks if mark not in far]
        beyond = beyond or bool(far)
        if marks:
            axes.plot(*zip(*marks, strict=True), "D", color="white", markeredgecolor="black", markersize=6)
        low = min(0.0, *shown, *(mark[0] for mark in marks))
        high = max([own, *(mark[0] for mark in marks)])
        room = (high - low) * 0.3
        for value, place in far:
            text = f"\N{RIGHTWARDS ARROW} {value:g}"
            axes.text(high + 0.95 * room, place, text, ha="right", va="center", fontsize=9, color="black")
        for place, row in enumerate(rows):
            end = max(shown[place] + errors[place], 0)
            text = "no groups" if row[measure] is None else f"{scale * row[measure]:.{1 if scale == 100 else 2}f}"
            axes.text(end + 0.12 * room, place, text, va="center", fontsize=9, color=GREY)
        axes.set_xlim(low - (0.1 * room if low < 0 else 0), high + room)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.grid(False, axis="y")
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows] if panel == 0 else [""] * len(rows))
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlabel(title)
    note = f"{values['budget']} {what} of {values['patches']} patches, {values['prompts']} prompts; "
    note += "lines: ± one standard error"
    if beside:
        note += f"; diamonds{' and arrow' if beyond else ''}: {paper.MODEL}"
    columns[0].figure.suptitle(note, fontsize=10)
    return columns[0].figure


@_of_data
def routing_figure(values: dict[str, Any], with_paper: bool = False) -> Figure:
    """The trained partition over sampling, one line a budget: detail ratio, size-detail, entropy of sizes."""
    ratio, correlation, entropy = panels(3, 12.0, 4.2)
    times = values["times"]
    for place, row in enumerate(values["rows"]):
        style = dict(color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)], markersize=4)
        known = [(time, value) for time, value in zip(times, row["detail_ratio"], strict=True) if value is not None]
        if known:
            ratio.plot(*zip(*known, strict=True), **style)
        correlation.plot(times, row["size_detail"], **style)
        entropy.plot(times, row["entropy"], label=f"R = {row['budget']}", **style)
    without = [row["budget"] for row in values["rows"] if all(value is None for value in row["detail_ratio"])]
    if without:
        text = f"R = {', '.join(map(str, without))}: too few regions\nof one patch or of 16"
        ratio.text(0.03, 0.97, text, transform=ratio.transAxes, va="top", fontsize=8, color=GREY)
    ratio.axhline(1, color=GREY, linewidth=1)
    ratio.set_yscale("log")
    if without:
        low, high = ratio.get_ylim()
        ratio.set_ylim(low, high * (high / low) ** 0.2)  # room above the lines for what is said there
    ratio.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ratio.yaxis.set_minor_formatter(lambda value, _: "")
    ratio.set_ylabel("detail in regions of 1 patch\nover that in regions of 16 and more")
    ratio.set_title("(a) fine regions are on detail (1: chance)")
    if with_paper:
        ratio.axhline(paper.DETAIL_RATIO_LATE, color=COLOURS[4], linestyle=":", linewidth=1.5)
        correlation.plot([0.5], [paper.SIZE_DETAIL_TRAINED], "D", color="white", markeredgecolor="black", markersize=6)
        entropy.plot([], [], ":", color=COLOURS[4], linewidth=1.5, label="paper: about 6 late in sampling")
        label = "paper: R = 256 of 1024, mid-sampling"
        entropy.plot([], [], "D", color="white", markeredgecolor="black", markersize=6, label=label)
    correlation.axhline(0, color=GREY, linewidth=1)
    correlation.set_ylabel("correlation of fineness with detail")
    correlation.set_title("(b) size follows detail")
    entropy.set_ylabel("entropy of region sizes, bits")
    entropy.set_ylim(bottom=0)
    entropy.set_title("(c) variety of sizes")
    for axes in (ratio, correlation, entropy):
        axes.set_xlabel(TIME)
        axes.set_xlim(0, 1)
    return _finish(entropy, f"{values['patches']} patches, {values['prompts']} prompts", columns=6)


def _finish(axes: Axes, note: str, columns: int) -> Figure:
    figure = axes.figure
    legend_below(figure, axes, columns)
    figure.suptitle(note, fontsize=10)
    return figure


def _percent(values: Any) -> list[float]:
    return [100 * value for value in values]
