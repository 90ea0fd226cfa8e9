"""The paper's figures of scored runs: scores and FID against speed, and steps against tokens at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rti.errors import InputError
from rti.lab.pictures.scored_runs import AGAINST, DENSE, Run, backbone_of, has_budget, is_dense
from rti.lab.plots import COLOURS, GREY, MARKERS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {  # what an axis says, and its scale
    "geneval": ("GenEval, % ↑", 100),
    "clip": ("CLIPScore ↑", 1),
    "pick": ("PickScore ↑", 1),
    "imagereward": ("ImageReward ↑", 1),
    "fid": ("FID ↓", 1),
    "is": ("Inception Score ↑", 1),
}
FADED = (1.0, 0.5, 0.35)  # a backbone is told by its opacity and dashes, a method by its colour and marker
DASHES = ("-", "--", ":")
LOG_FROM = 4  # an axis is logarithmic where its largest value is so many times its smallest
ABOVE = dict(xytext=(0, 5), ha="center", va="bottom")  # where a label is, from its point
BELOW = dict(xytext=(4, -3), ha="left", va="top")
RIGHT = dict(xytext=(5, 1), ha="left", va="bottom")
LABELLED = 4  # budgets are written at all points of a line that has no more


def frontier_figure(runs: Sequence[Run], metrics: Sequence[str], how: str = "measured") -> Figure:
    """Each score against the speed-up or the budget: a line per method and backbone, a star or a line for dense."""
    columns = _panels(runs, metrics)
    styles = _styles(runs)
    first = next((line for line in styles if line[1] != DENSE), None)
    for metric, axes in columns.items():
        for line, some in _lines(runs, metric, _rich_first).items():
            style, y = styles[line], _scores(some, metric)
            x = [_place(how)(run) for run in some]
            if line[1] == DENSE:
                axes.axhline(y[0], color=GREY, alpha=style["alpha"], linewidth=0.9, linestyle="--", zorder=1)
                style |= {"marker": "*", "markersize": 12, "linestyle": "none", "zorder": 5}
            axes.plot(x, y, **style)
            if line == first and how != "budget":
                place = BELOW if metric == "fid" else RIGHT  # on the side that the lines leave free
                _label(axes, x, y, _budgets(some), style["color"], [place] * len(x))
        if metric == "fid":
            _maybe_log(axes, _scores([run for run in runs if metric in run["scores"]], metric))
        axes.set_xlabel(AGAINST[how])
        if how == "budget":
            _log_ticks(axes, [_place(how)(run) for run in runs])
        else:
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.margins(0.08, 0.12)
    note = "dashed: dense"
    if first is not None and how != "budget":
        note += f"; numbers at points: budgets R of {first[1]}"
    return _finish(columns, runs, styles, note)


def steps_figure(runs: Sequence[Run], metrics: Sequence[str]) -> Figure:
    """Each score against the time of a picture: a line per budget through its numbers of steps, dense in grey."""
    untimed = [str(run.get("row")) for run in runs if not run.get("images_per_second")]
    if untimed:
        raise InputError(f"{untimed[0]} was not timed; draw it again by rti generate, which does")
    if len({(backbone_of(run), run["steps"]) for run in runs}) < 2:
        raise InputError(f"all runs have {runs[0]['steps']} steps; give runs of several, by rti generate --steps")
    runs = [run | {"name": _with_budget(run)} for run in runs]
    columns = _panels(runs, metrics)
    styles = _styles(runs)
    for metric, axes in columns.items():
        lines = _lines(runs, metric, by=lambda run: run["steps"])
        points = {line: ([_seconds(run) for run in some], _scores(some, metric)) for line, some in lines.items()}
        for line, some in lines.items():
            axes.plot(*points[line], **styles[line])
            others = [other for name, other in points.items() if name != line]
            steps = [str(run["steps"]) for run in some]
            _label(axes, *points[line], steps, styles[line]["color"], _free(points[line], others))
        _log_ticks(axes, [_seconds(run) for run in runs])
        axes.set_xlabel("seconds a picture")
        axes.margins(0.12, 0.14)
    return _finish(columns, runs, styles, "numbers at points: sampling steps")


def _seconds(run: Run) -> float:
    return 1 / run["images_per_second"]


def _place(how: str) -> Callable[[Run], float]:
    """Where a run is along the axis; the dense one has as many tokens as there are patches."""
    if how != "budget":
        return lambda run: run["speedup"]
    return lambda run: run["patches"] if is_dense(run) else run["budget"]


def _rich_first(run: Run) -> tuple[float, float]:
    """A line goes through its budgets, whatever the noise of their times; one without budgets from slow to fast."""
    return (0 if is_dense(run) or not has_budget(run) else -run["budget"]), run["speedup"] or 0


def _log_ticks(axes: Axes, values: Sequence[float], factor: float = 1.3) -> None:
    """A logarithmic axis with ticks at the values, where they leave room for a label between them."""
    ticks: list[float] = []
    for value in sorted(values):
        if not ticks or value >= factor * ticks[-1]:
            ticks.append(value)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:.2g}" if tick < 100 else f"{tick:.0f}" for tick in ticks])
    axes.tick_params(axis="x", labelsize=8)
    axes.minorticks_off()


def _free(points: tuple[list[float], list[float]], others: Sequence[tuple[list[float], list[float]]]) -> list[dict]:
    """Where each point of a line has room for a label: above it where it is above all other lines, else below."""
    import numpy as np

    tops = [all(y >= np.interp(x, *other) for other in others) for x, y in zip(*points, strict=True)]
    return [ABOVE if top else BELOW for top in tops]


def _with_budget(run: Run) -> str:
    return run["name"] if is_dense(run) or not has_budget(run) else f"{run['name']}, R = {run['budget']}"


def _panels(runs: Sequence[Run], metrics: Sequence[str]) -> dict[str, Axes]:
    """One for each of the metrics that any run has."""
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise InputError(f"metric {unknown[0]!r} is unknown; allowed: {', '.join(METRICS)}")
    there = [metric for metric in metrics if any(metric in run["scores"] for run in runs)]
    if not there:
        raise InputError(f"no run has a score of {', '.join(metrics)}; rti score makes them")
    columns = dict(zip(there, panels(len(there), max(6.4, 3.3 * len(there)), 3.9), strict=True))
    for metric, axes in columns.items():
        axes.set_ylabel(METRICS[metric][0])
    return columns


Line = tuple[str, str]  # backbone and method


def _lines(runs: Sequence[Run], metric: str, by: Callable[[Run], Any]) -> dict[Line, list[Run]]:
    """The runs that have a score, by backbone and method, those of a line in the order of `by`."""
    found: dict[Line, list[Run]] = {}
    for run in sorted(runs, key=by):
        if metric in run["scores"]:
            found.setdefault((backbone_of(run), run["name"]), []).append(run)
    return found


def _scores(runs: Sequence[Run], metric: str) -> list[float]:
    return [METRICS[metric][1] * run["scores"][metric]["score"] for run in runs]


def _styles(runs: Sequence[Run]) -> dict[Line, dict[str, Any]]:
    """Colour and marker of each method, opacity and dashes of each backbone; the same in all panels."""
    backbones = list(dict.fromkeys(backbone_of(run) for run in runs))
    methods = [name for name in dict.fromkeys(run["name"] for run in runs) if name != DENSE]
    styles = {}
    for run in runs:
        place = backbones.index(backbone_of(run))
        number = methods.index(run["name"]) if run["name"] != DENSE else None
        colour = GREY if number is None else COLOURS[number % len(COLOURS)]
        style = dict(color=colour, marker="o" if number is None else MARKERS[number % len(MARKERS)])
        style |= {"alpha": FADED[place % len(FADED)], "linestyle": DASHES[place % len(DASHES)], "linewidth": 1.5}
        style |= {"markerfacecolor": colour if place == 0 else "white", "markersize": 5}
        several = f", {backbone_of(run)}" if len(backbones) > 1 else ""
        styles[backbone_of(run), run["name"]] = style | {"label": run["name"] + several}
    return styles


def _budgets(line: Sequence[Run]) -> list[str]:
    """What to write at a line's points: all budgets where they are few, else those at its ends."""
    ends = (0, len(line) - 1) if len(line) > LABELLED else range(len(line))
    return [str(run["budget"]) if place in ends and has_budget(run) else "" for place, run in enumerate(line)]


def _label(
    axes: Axes, x: Sequence[float], y: Sequence[float], texts: Sequence[str], colour: str, places: Sequence[dict]
) -> None:
    for point, text, place in zip(zip(x, y, strict=True), texts, places, strict=True):
        if text:
            axes.annotate(text, point, textcoords="offset points", fontsize=7, color=colour, **place)


def _maybe_log(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
        axes.tick_params(axis="y", which="minor", labelsize=8)


def _finish(columns: dict[str, Axes], runs: Sequence[Run], styles: dict[Line, dict[str, Any]], note: str) -> Figure:
    """One legend below for all panels, and what the numbers in them are."""
    figure = next(iter(columns.values())).figure
    handles = {}
    for axes in columns.values():
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = [style["label"] for style in styles.values() if style["label"] in handles]
    figure.legend(
        [handles[label] for label in order],
        order,
        loc="outside lower center",
        ncols=max(1, int(figure.get_figwidth() / (0.7 + 0.075 * max(map(len, order))))),
        frameon=False,
        fontsize=8,
    )
    counts = {run["scores"][metric].get("pictures") for run in runs for metric in columns if metric in run["scores"]}
    steps = sorted({run["steps"] for run in runs})
    told = f"{steps[0]} steps; " if len(steps) == 1 else ""
    pictures = " and ".join(f"{count:,}" for count in sorted(counts - {None}))
    figure.suptitle(f"{pictures} pictures; {told}{note}" if pictures else told + note, fontsize=9)
    return figure
