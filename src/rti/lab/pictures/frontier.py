"""The paper's figures of scored runs: scores and FID against speed, and steps against tokens at equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rti.errors import InputError, check_choice
from rti.lab.pictures.compare import Run
from rti.lab.pictures.scored_runs import AGAINST, DENSE, backbone_of, has_budget, is_dense
from rti.lab.pictures.scorers.results import METRICS
from rti.lab.plots import COLOURS, GREY, MARKERS, log_axis, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = tuple[str, str]  # backbone and method
BACKBONES = ((1.0, "-"), (0.5, "--"), (0.35, ":"))  # told by opacity and dashes; a method by its colour and marker
STAR = dict(marker="*", markersize=12, linestyle="none", zorder=5)
LOG_FROM = 4  # the axis of FID is logarithmic where its largest value is so many times its smallest
ROOM = 1.3  # ticks of a logarithmic axis are at least by this factor apart, so that their labels are too


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
        every_x, every_y = [], []
        for line, some in lines.items():
            style, x = styles[line], [_along(run, how) for run in some]
            y = [METRICS[metric].scale * run["scores"][metric]["score"] for run in some]
            every_x, every_y = every_x + x, every_y + y
            axes.plot(x, y, **style)
            if line[1] == DENSE and not timed:
                axes.axhline(y[0], color=GREY, alpha=style["alpha"], linewidth=0.9, linestyle="--", zorder=1)
            if timed or (line == first and has_budget(some[0])):
                look = dict(textcoords="offset points", ha="center", fontsize=7, color=style["color"])
                for run, *point in zip(some, x, y, strict=True):
                    axes.annotate(str(run["steps" if timed else "budget"]), point, (0, 5), **look)
        if metric == "fid" and max(every_y) >= LOG_FROM * min(every_y) > 0:
            log_axis(axes.yaxis, every_y, ROOM, labelsize=8)
        if timed or how == "budget":
            log_axis(axes.xaxis, every_x, ROOM, labelsize=8)
        else:
            axes.xaxis.set_major_formatter("{x:g}x")
        axes.set(xlabel=AGAINST[how], ylabel=METRICS[metric].axis)
        axes.margins(0.1, 0.13)
    figure, labels = columns[0].figure, [style["label"] for style in styles.values()]
    handles = [columns[0].plot([], [], **style | {"label": "_"})[0] for style in styles.values()]
    wide = max(1, int(figure.get_figwidth() / (0.7 + 0.075 * max(map(len, labels)))))
    figure.legend(handles, labels, loc="outside lower center", ncols=wide, frameon=False, fontsize=8)
    note = "" if first is None else f"; numbers at points: budgets R of {first[1]}"
    note = "numbers at points: sampling steps" if timed else f"dashed: dense{note}"
    figure.suptitle("; ".join([*_conditions(runs, there), note]), fontsize=9)
    return figure


def _rich_first(run: Run) -> tuple[float, float]:
    """A line goes through its budgets, whatever the noise of their times; one without them from slow to fast."""
    return -run["budget"] if has_budget(run) else 0, run["speedup"] or 0


def _along(run: Run, how: str) -> float:
    """Where a run stands along the axis; a dense one has as many tokens as there are patches."""
    if how == "seconds":
        return 1 / run["images_per_second"]
    if how == "budget":
        return run["patches"] if is_dense(run) else run["budget"]
    return run["speedup"]


def _conditions(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
    """The number of pictures that were scored, where it is known, and that of steps, where there is one."""
    steps = {run["steps"] for run in runs}
    counts = {run["scores"][metric].get("pictures") for run in runs for metric in metrics if metric in run["scores"]}
    told = [" and ".join(f"{count:,}" for count in sorted(counts - {None})) + " pictures"] if counts - {None} else []
    return told + ([f"{steps.pop()} steps"] if len(steps) == 1 else [])


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
