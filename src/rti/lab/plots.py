"""Figures, light and legible. They need matplotlib: pip install 'region-tokens[plots]'."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti.errors import InputError
from rti.files import in_one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: told apart by everyone
LINES = (*COLOURS, "#7A5C3E", "#999999", "#882255", "#117733")  # where there are more
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one more than colours, so that pairs repeat late
GREY = "#444444"

# A method has one colour, in the study (by the name of its row) as in the probes (by its title): its place in LINES.
METHODS = {
    **{"merge-estimate": 0, "gaps": 1, "merge": 2, "fixed": 3, "feature-similarity": 4, "latent-array": 5},
    **{"merge on the estimate (ours)": 0, "gaps of the features (paper)": 1, "merge on the features": 2},
    **{"fixed boundaries": 3, "feature similarity": 4, "latent array": 5, "token-skip": 6, "token skip": 6},
}


def places_of(names: Iterable[str]) -> dict[str, int]:
    """The place in LINES and MARKERS of each name: its own, or the next that none of the others has."""
    names = list(dict.fromkeys(names))
    free = (place for place in itertools.count() if place not in {METHODS.get(name) for name in names})
    return {name: METHODS[name] if name in METHODS else next(free) for name in names}


def legend_below(figure: Figure, columns: int, fontsize: int = 9) -> Figure:
    """One legend for all panels, below them, where it covers nothing."""
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=fontsize)
    return figure


def panels(count: int, width: float, height: float) -> list[Axes]:
    """Empty axes side by side in one figure, in the style of all of ours."""
    row = list(_figure(figsize=(width, height), layout="constrained").subplots(1, count, squeeze=False)[0])
    for one in row:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    return row


def log_axis(axis: Axis, values: Iterable[float], factor: float = 1.0, **look: Any) -> None:
    """Make an axis logarithmic, with ticks at the values that are at least by a factor apart."""
    ticks: list[float] = []
    for value in sorted({*values}):
        if not ticks or value >= factor * ticks[-1]:
            ticks.append(value)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [f"{tick:.2g}" if tick < 100 else f"{tick:.0f}" for tick in ticks])
    axis.set_tick_params(**look)
    axis.axes.minorticks_off()


def picture_grid(rows: Sequence[Sequence[Any]], row_labels: Sequence[str], column_labels: Sequence[str]) -> Figure:
    """Pictures in rows with labels at the left and above; None leaves a place empty."""
    columns, style = max(map(len, rows)), {"fontsize": 9, "color": GREY}
    figure = _figure(figsize=(1.5 + 1.7 * columns, 0.6 + 1.7 * len(rows)), layout="compressed")
    places = figure.subplots(len(rows), columns, squeeze=False)
    for place, heading in zip(places[0], column_labels, strict=False):
        place.set_title(textwrap.fill(heading, 22), **style)
    for row, pictures, label in zip(places, rows, row_labels, strict=True):
        row[0].set_ylabel(label, rotation="horizontal", ha="right", va="center", **style)
        for place, picture in itertools.zip_longest(row, pictures):
            place.set(xticks=[], yticks=[])
            place.spines[:].set_visible(False)
            if picture is not None:
                place.imshow(picture)
    return figure


def _figure(**settings: Any) -> Figure:
    """An empty figure that pyplot knows nothing of: it is gone with its last reference, also after an error."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a figure needs matplotlib, which is not here: pip install 'region-tokens[plots]'") from None
    return FigureCanvasAgg(Figure(**settings)).figure


def save(figure: Figure, path: Path, **options: Any) -> Path:
    """Write a figure, as PNG, SVG or PDF by its name."""
    with in_one_line(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, **options)
    return path


def save_both(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and as SVG beside it, the same bytes each time."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "rti"}):
        return [save(figure, path.with_suffix(".png")), save(figure, path.with_suffix(".svg"), metadata={"Date": None})]


def tuning_figure(rows: Sequence[dict[str, Any]], named: dict[str, Any], by: str, path: Path) -> Path:
    """The score of what `rti tune` tried against the seconds of a picture, with the presets by name."""
    (one,) = panels(1, 6.0, 4.0)
    one.plot([row["seconds"] for row in rows], [row["score"] for row in rows], ".", color=GREY, alpha=0.5)
    for row in rows:
        names = [name for name, trial in named.items() if trial.dials.given() == row["dials"]]
        if names:
            one.plot(row["seconds"], row["score"], "o", color=COLOURS[0])
            look = dict(textcoords="offset points", ha="right", fontsize=8, color=COLOURS[0])
            one.annotate(", ".join(names), (row["seconds"], row["score"]), (-5, 4), **look)
    log_axis(one.xaxis, [row["seconds"] for row in rows], 1.3)
    one.set(xlabel="seconds of a picture", ylabel=by)
    return save(one.figure, path)


def cost_figure(values: dict[str, Any], path: Path) -> Path:
    """Measured and analytic cost of a forward pass against the budget, in percent of dense, as in the paper."""
    (one,), lines = panels(1, 6.0, 4.0), {}
    rows = sorted((row for row in values["rows"] if row["budget"] != "dense"), key=lambda row: row["budget"])
    for row in rows:
        text = "" if row["text_budget"] is None else f", {row['text_budget']} text tokens"
        lines.setdefault(row["model"] + text, []).append(row)
    for colour, (name, some) in zip(itertools.cycle(COLOURS), lines.items(), strict=False):
        for kind, field, style in (("measured", "speedup", "o-"), ("analytic", "analytic_speedup", "--")):
            costs = [100 / row[field] for row in some]
            one.plot([row["budget"] for row in some], costs, style, color=colour, label=f"{name}, {kind}")
    one.axhline(100, color=GREY, linewidth=1, label="dense")
    log_axis(one.xaxis, [row["budget"] for row in rows])
    one.set(xlabel="budget R, region tokens in the core", ylabel="cost of a forward pass, % of dense", ylim=(0, 105))
    one.set_title(f"{values['benchmark']}, batch {values['batch']}, {values['dtype']}, {values['device']}")
    one.legend(frameon=False, loc="lower left", ncols=2, fontsize=8)  # the lines are above
    return save(one.figure, path)
