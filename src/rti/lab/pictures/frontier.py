"""The paper's figures of scored runs: scores and FID against speed, and steps against tokens at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rti.errors import InputError, check_choice
from rti.lab.pictures.compare import Run
from rti.lab.pictures.scored_runs import AGAINST, DENSE, backbone_of, has_budget, is_dense
from rti.lab.pictures.scorers.results import METRICS
from rti.lab.plots import COLOURS, GREY, MARKERS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = tuple[str, str]  # backbone and method
BACKBONES = ((1.0, "-"), (0.5, "--"), (0.35, ":"))  # told by opacity and dashes; a method by its colour and marker
LOG_FROM = 4  # the axis of FID is logarithmic where its largest value is so many times its smallest
LABELLED = 4  # budgets are written at all points of a line that has no more, else at its ends


def frontier_figure(runs: Sequence[Run], metrics: Sequence[str], how: str = "measured") -> Figure:
    """Each score against the speed-up, the budget or the time of a picture: a line per method and backbone.

    Against speed-ups and budgets the dense run is a star and a dashed line, and the first method's points are labelled
    with their budgets. Against time a line is a method at one budget through its numbers of steps, which label it.
    """
    timed = how == "seconds"
    if timed:
        runs = [run | {"name": f"{run['name']}, R = {run['budget']}"} if has_budget(run) else run for run in runs]
    columns, styles = _panels(runs, metrics), _styles(runs)
    first = next((line for line in styles if line[1] != DENSE and how != "budget"), None)
    for metric, axes in columns.items():
        lines = _lines(runs, metric, by=(lambda run: run["steps"]) if timed else _rich_first)
        points = {line: ([_place(run, how) for run in some], _scores(some, metric)) for line, some in lines.items()}
        for line, (x, y) in points.items():
            style, texts = styles[line], [""] * len(x)
            if timed:
                texts = [str(run["steps"]) for run in lines[line]]
            elif line[1] == DENSE:
                axes.axhline(y[0], color=GREY, alpha=style["alpha"], linewidth=0.9, linestyle="--", zorder=1)
                style = style | {"marker": "*", "markersize": 12, "linestyle": "none", "zorder": 5}
            elif line == first and has_budget(lines[line][0]):
                ends = (0, len(x) - 1) if len(x) > LABELLED else range(len(x))
                texts = [str(run["budget"]) if at in ends else "" for at, run in enumerate(lines[line])]
            axes.plot(x, y, **style)
            others = [other for name, other in points.items() if name != line and (timed or name[1] != DENSE)]
            _label(axes, (x, y), texts, style["color"], others)
        if metric == "fid":
            _maybe_log(axes, _scores([run for run in runs if metric in run["scores"]], metric))
        if timed or how == "budget":
            _log_ticks(axes, [_place(run, how) for run in runs])
        else:
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.set_xlabel(AGAINST[how])
        axes.margins(0.1, 0.13)
    note = "" if first is None else f"; numbers at points: budgets R of {first[1]}"
    return _finish(columns, runs, styles, "numbers at points: sampling steps" if timed else f"dashed: dense{note}")


def _place(run: Run, how: str) -> float:
    """Along the axis; a dense run has as many tokens as there are patches."""
    if how == "seconds":
        return 1 / run["images_per_second"]
    if how == "budget":
        return run["patches"] if is_dense(run) else run["budget"]
    return run["speedup"]


def _rich_first(run: Run) -> tuple[float, float]:
    """A line goes through its budgets, whatever the noise of their times; one without them from slow to fast."""
    return -run["budget"] if has_budget(run) else 0, run["speedup"] or 0


def _scores(runs: Sequence[Run], metric: str) -> list[float]:
    return [METRICS[metric].scale * run["scores"][metric]["score"] for run in runs]


def _lines(runs: Sequence[Run], metric: str, by: Callable[[Run], Any]) -> dict[Line, list[Run]]:
    """The runs that have a score, by backbone and method, those of a line in the order of `by`."""
    found: dict[Line, list[Run]] = {}
    for run in sorted(runs, key=by):
        if metric in run["scores"]:
            found.setdefault((backbone_of(run), run["name"]), []).append(run)
    return found


def _panels(runs: Sequence[Run], metrics: Sequence[str]) -> dict[str, Axes]:
    """One for each of the metrics that any run has."""
    for metric in metrics:
        check_choice("metric", metric, METRICS)
    there = [metric for metric in metrics if any(metric in run["scores"] for run in runs)]
    if not there:
        raise InputError(f"no run has a score of {', '.join(metrics)}; rti score makes them")
    columns = dict(zip(there, panels(len(there), max(6.4, 3.3 * len(there)), 3.9), strict=True))
    for metric, axes in columns.items():
        axes.set_ylabel(METRICS[metric].axis)
    return columns


def _styles(runs: Sequence[Run]) -> dict[Line, dict[str, Any]]:
    """Colour and marker of each method, opacity and dashes of each backbone; the same in all panels."""
    backbones = list(dict.fromkeys(backbone_of(run) for run in runs))
    methods = [name for name in dict.fromkeys(run["name"] for run in runs) if name != DENSE]
    looks = {name: (COLOURS[at % len(COLOURS)], MARKERS[at % len(MARKERS)]) for at, name in enumerate(methods)}
    styles = {}
    for run in runs:
        place = backbones.index(backbone_of(run))
        (colour, marker), (alpha, dashes) = looks.get(run["name"], (GREY, "o")), BACKBONES[place % len(BACKBONES)]
        style = dict(color=colour, marker=marker, markersize=5, markerfacecolor="white" if place else colour)
        several = f", {backbone_of(run)}" if len(backbones) > 1 else ""
        style |= dict(alpha=alpha, linestyle=dashes, linewidth=1.5, label=run["name"] + several)
        styles[backbone_of(run), run["name"]] = style
    return styles


Points = tuple[list[float], list[float]]  # x and y of a line


def _label(axes: Axes, points: Points, texts: Sequence[str], colour: str, others: Sequence[Points]) -> None:
    """Write texts at points: above those that are above all other lines, below the others."""
    sorted_others = [np.array(sorted(zip(*other, strict=True))).T for other in others]
    for x, y, text in zip(*points, texts, strict=True):
        if text:
            top = all(y >= np.interp(x, *other) for other in sorted_others)
            place = dict(xytext=(0, 5), ha="center", va="bottom") if top else dict(xytext=(4, -3), ha="left", va="top")
            axes.annotate(text, (x, y), textcoords="offset points", fontsize=7, color=colour, **place)


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
    wide = max(1, int(figure.get_figwidth() / (0.7 + 0.075 * max(map(len, order)))))
    shown = [handles[label] for label in order]
    figure.legend(shown, order, loc="outside lower center", ncols=wide, frameon=False, fontsize=8)
    steps = {run["steps"] for run in runs}
    counts = {run["scores"][metric].get("pictures") for run in runs for metric in columns if metric in run["scores"]}
    told = [" and ".join(f"{count:,}" for count in sorted(counts - {None})) + " pictures"] if counts - {None} else []
    told += [f"{steps.pop()} steps"] if len(steps) == 1 else []
    figure.suptitle("; ".join([*told, note]), fontsize=9)
    return figure
