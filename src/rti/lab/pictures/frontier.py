"""The paper's figures of scored runs: scores and FID against speed, and steps against tokens at equal cost."""

from __future__ import annotations

from collections.abc import Sequence
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
Points = tuple[list[float], list[float]]  # x and y of a line
BACKBONES = ((1.0, "-"), (0.5, "--"), (0.35, ":"))  # told by opacity and dashes; a method by its colour and marker
STAR = dict(marker="*", markersize=12, linestyle="none", zorder=5)
LOG_FROM = 4  # the axis of FID is logarithmic where its largest value is so many times its smallest
LABELLED = 4  # budgets are written at all points of a line that has no more, else at its ends


def frontier_figure(runs: Sequence[Run], metrics: Sequence[str], how: str = "measured") -> Figure:
    """Each score against the speed-up, the budget or the time of a picture: a line per method and backbone.

    Against speed-ups and budgets the dense run is a star and a dashed line, and the first method's points are labelled
    with their budgets. Against time a line is a method at one budget through its numbers of steps, which label it.
    """
    for metric in metrics:
        check_choice("metric", metric, METRICS)
    there = [metric for metric in metrics if any(metric in run["scores"] for run in runs)]
    if not there:
        raise InputError(f"no run has a score of {', '.join(metrics)}; rti score makes them")
    timed = how == "seconds"
    runs = [run for run in runs if any(metric in run["scores"] for metric in there)]
    if timed:
        runs = [run | {"name": f"{run['name']}, R = {run['budget']}"} if has_budget(run) else run for run in runs]
    styles = _styles(runs, {} if timed else STAR)
    first = next((line for line in styles if line[1] != DENSE and how in ("measured", "flops", "tokens")), None)
    columns = panels(len(there), max(6.4, 3.3 * len(there)), 3.9)
    for metric, axes in zip(there, columns, strict=True):
        lines: dict[Line, list[Run]] = {}
        for run in sorted(runs, key=lambda run: run["steps"] if timed else _rich_first(run)):
            if metric in run["scores"]:
                lines.setdefault((backbone_of(run), run["name"]), []).append(run)
        points = {line: _points(some, metric, how) for line, some in lines.items()}
        for line, some in lines.items():
            texts = [str(run["steps"]) for run in some] if timed else []
            if line == first and has_budget(some[0]):
                ends = (0, len(some) - 1) if len(some) > LABELLED else range(len(some))
                texts = [str(run["budget"]) if at in ends else "" for at, run in enumerate(some)]
            axes.plot(*points[line], **styles[line])
            if line[1] == DENSE and not timed:
                level = points[line][1][0]
                axes.axhline(level, color=GREY, alpha=styles[line]["alpha"], linewidth=0.9, linestyle="--", zorder=1)
            others = [other for name, other in points.items() if name != line and (timed or name[1] != DENSE)]
            _label(axes, points[line], texts, styles[line]["color"], others)
        x, y = (np.concatenate(some) for some in zip(*points.values(), strict=True))
        if metric == "fid" and y.max() >= LOG_FROM * y.min() > 0:
            _log_ticks(axes, "y", y)
        if timed or how == "budget":
            _log_ticks(axes, "x", x)
        else:
            axes.xaxis.set_major_formatter("{x:g}x")
        axes.set(xlabel=AGAINST[how], ylabel=METRICS[metric].axis)
        axes.margins(0.1, 0.13)
    note = "" if first is None else f"; numbers at points: budgets R of {first[1]}"
    _finish(columns, runs, styles, "numbers at points: sampling steps" if timed else f"dashed: dense{note}", there)
    return columns[0].figure


def _rich_first(run: Run) -> tuple[float, float]:
    """A line goes through its budgets, whatever the noise of their times; one without them from slow to fast."""
    return -run["budget"] if has_budget(run) else 0, run["speedup"] or 0


def _points(runs: Sequence[Run], metric: str, how: str) -> Points:
    """Along the axis, and the score; a dense run has as many tokens as there are patches."""
    if how == "seconds":
        x = [1 / run["images_per_second"] for run in runs]
    elif how == "budget":
        x = [run["patches"] if is_dense(run) else run["budget"] for run in runs]
    else:
        x = [run["speedup"] for run in runs]
    return x, [METRICS[metric].scale * run["scores"][metric]["score"] for run in runs]


def _styles(runs: Sequence[Run], dense: dict[str, Any]) -> dict[Line, dict[str, Any]]:
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
        styles[backbone_of(run), run["name"]] = style | (dense if is_dense(run) else {})
    return styles


def _label(axes: Axes, points: Points, texts: Sequence[str], colour: str, others: Sequence[Points]) -> None:
    """Write texts at points: above those that are above all other lines there, below the others."""
    sorted_others = [np.array(sorted(zip(*other, strict=True))).T for other in others]
    for x, y, text in zip(*points, texts, strict=False):
        if text:
            top = all(y >= np.interp(x, *other, left=-np.inf, right=-np.inf) for other in sorted_others)
            place = dict(xytext=(0, 5), ha="center", va="bottom") if top else dict(xytext=(4, -3), ha="left", va="top")
            axes.annotate(text, (x, y), textcoords="offset points", fontsize=7, color=colour, **place)


def _log_ticks(axes: Axes, side: str, values: Sequence[float], factor: float = 1.3) -> None:
    """A logarithmic axis with ticks at the values, where they leave room for a label between them."""
    ticks: list[float] = []
    for value in sorted(values):
        if not ticks or value >= factor * ticks[-1]:
            ticks.append(value)
    labels = [f"{tick:.2g}" if tick < 100 else f"{tick:.0f}" for tick in ticks]
    axes.set(**{f"{side}scale": "log", f"{side}ticks": ticks, f"{side}ticklabels": labels})
    axes.tick_params(axis=side, labelsize=8)
    axes.minorticks_off()


def _finish(
    columns: Sequence[Axes], runs: Sequence[Run], styles: dict[Line, dict[str, Any]], note: str, metrics: Sequence[str]
) -> None:
    """One legend below for all panels, and what the numbers in them are."""
    figure, labels = columns[0].figure, [style["label"] for style in styles.values()]
    handles = [columns[0].plot([], [], **style | {"label": "_"})[0] for style in styles.values()]
    wide = max(1, int(figure.get_figwidth() / (0.7 + 0.075 * max(map(len, labels)))))
    figure.legend(handles, labels, loc="outside lower center", ncols=wide, frameon=False, fontsize=8)
    steps = {run["steps"] for run in runs}
    counts = {run["scores"][metric].get("pictures") for run in runs for metric in metrics if metric in run["scores"]}
    told = [" and ".join(f"{count:,}" for count in sorted(counts - {None})) + " pictures"] if counts - {None} else []
    told += [f"{steps.pop()} steps"] if len(steps) == 1 else []
    figure.suptitle("; ".join([*told, note]), fontsize=9)
