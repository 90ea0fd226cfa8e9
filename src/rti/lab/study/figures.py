"""The figures of a study, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti.lab.plots import GREY, LINES, MARKERS, legend_below, log_axis, panels, places_of, save_both

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = dict[str, Any]  # what `report.collect` gives, or a row of it
BUDGET = "budget R, region tokens in the core"
SPEED = "measured speed-up of a guided forward pass"
PICTURES = "right pictures minus dense, points"  # on the same prompts: rows have as many as each needs


def draw_figures(values: Values, folder: Path) -> list[Path]:
    """Whatever the results so far allow to draw."""
    drawn = []
    for name, draw in FIGURES.items():
        one = draw(values)
        if one is not None:
            drawn += save_both(one.figure, folder / f"{name}.png")
            continue
        for ending in (".png", ".svg"):  # of results that are no more
            (folder / name).with_suffix(ending).unlink(missing_ok=True)
    return drawn


def _rows(values: Values, *fields: str) -> list[Values]:
    """Rows of the main group that have all of some fields, from lean to rich."""
    some = [row for row in values["rows"] if row["group"] == "main" and all(field in row for field in fields)]
    return sorted(some, key=lambda row: row["budget"])


def _styles(values: Values) -> dict[str, dict[str, str]]:
    """Colour and marker of every method, by title, the same in all figures."""
    titles = {row["name"]: row["title"] for row in values["rows"] if row["group"] == "main"}
    return {
        titles[name]: {"color": LINES[place % len(LINES)], "marker": MARKERS[place % len(MARKERS)]}
        for name, place in places_of(titles).items()
    }


def _curves(one: Axes, rows: Sequence[Values], x: str, y: str, styles: dict[str, dict[str, str]], **more: Any) -> Axes:
    """A curve for each title, with a bar for each interval; shares of pictures in percent."""
    scale = 1 if y.startswith("loss") else 100
    for title in dict.fromkeys(row["title"] for row in rows):
        some = [row for row in rows if row["title"] == title]
        edges = [row.get(f"{y}_interval") or [row[y]] * 2 for row in some]
        spread = [[scale * abs(edge[end] - row[y]) for row, edge in zip(some, edges, strict=True)] for end in (0, 1)]
        look = {"linewidth": 1.4, "label": title, "capsize": 2} | styles[title] | more
        bars = spread if any(f"{y}_interval" in row for row in some) else None
        one.errorbar([row[x] for row in some], [scale * row[y] for row in some], bars, **look)
    return one


def _finish(one: Axes, x: str, y: str, title: str, ticks: Sequence[int] = ()) -> Axes:
    """Labels and the figure's legend; with ticks the axis is logarithmic."""
    if ticks:
        log_axis(one.xaxis, ticks)
    one.set(xlabel=x, ylabel=y, title=title)
    legend_below(one.figure, columns=2)
    return one


def _quality(x: str, label: str, title: str, values: Values) -> Axes | None:
    rows, ticks = _rows(values, "difference", x), []
    if x == "budget":  # a method without budgets is no curve
        titles = [row["title"] for row in rows]
        rows = [row for row in rows if titles.count(row["title"]) > 1]
        ticks = [row["budget"] for row in rows]
    if not rows:
        return None
    one = _curves(panels(1, 7, 4.4)[0], rows, x, "difference", _styles(values))
    one.axhline(0, color=GREY, linewidth=1, label="dense")
    return _finish(one, label, PICTURES, f"{title}; bars are 95 % intervals", ticks)


def _elastic(values: Values) -> Axes | None:
    """Budgets that were trained and budgets that were not, on one curve."""
    rows, styles = _rows(values, "loss_difference"), _styles(values)
    unseen = [row for row in rows if not row["seen"]]
    rows = [row for row in rows if row["title"] in {one["title"] for one in unseen}]
    if not rows:
        return None
    one = _curves(panels(1, 7, 4.4)[0], rows, "budget", "loss_difference", styles)
    _curves(one, unseen, "budget", "loss_difference", styles, markerfacecolor="white", linestyle="none", label=None)
    title = "Elasticity: filled budgets were trained, open ones were not"
    return _finish(one, BUDGET, "validation loss minus dense", title, [row["budget"] for row in rows])


def _steps_or_tokens(values: Values) -> Axes | None:
    """Fewer sampling steps against fewer tokens, at equal cost."""
    rows = [row for row in _rows(values, "speedup") if row.get("by_steps")]
    if not rows or len(values["dense"]) < 2:
        return None
    dense = [{"steps": row["steps"]} | row.get("same_prompts", row) for row in values["dense"]]
    drawn, styles = [("dense", 1, dense)], {"dense": {"color": GREY, "marker": "o"}}
    for row in rows:
        title = f"{row['title']}, R = {row['budget']}"
        drawn.append((title, row["speedup"], row["by_steps"]))
        styles[title] = _styles(values)[row["title"]]
    points = [
        {"title": title, "cost": one["steps"] / speed, "right": one["overall"], "right_interval": one["interval"]}
        for title, speed, several in drawn
        for one in sorted(several, key=lambda one: one["steps"])
    ]
    one = _curves(panels(1, 7, 4.4)[0], points, "cost", "right", styles)
    one.set_ylim(0, 100)
    labels = ("cost of a picture, in dense steps", "right pictures, %", "Fewer steps or fewer tokens")
    return _finish(one, *labels, [row["steps"] for row in dense])


FIGURES: dict[str, Callable[[Values], Axes | None]] = {
    "quality-against-budget": partial(_quality, "budget", BUDGET, "Quality at each budget"),
    "quality-against-speed": partial(_quality, "speedup", SPEED, "Quality against speed"),
    "elastic": _elastic,
    "steps-or-tokens": _steps_or_tokens,
}
