"""The figures of a study, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti.lab.plots import GREY, LINES, MARKERS, axes, legend_below, panels, places_of, save_both
from rti.lab.study.tables import TIME_EDGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = dict[str, Any]  # what `report.collect` gives, or a row of it
BUDGET = "budget R, region tokens in the core"
SPEED = "measured speed-up of a guided forward pass"
LOSS = "validation loss minus dense"
PICTURES = "right pictures minus dense, points"  # on the same prompts: rows have as many as each needs
BARS = "; bars are 95 % intervals"


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


def _rows(values: Values, group: str, *fields: str) -> list[Values]:
    """Rows of a group that have all of some fields, from lean to rich."""
    some = [row for row in values["rows"] if row["group"] == group and all(field in row for field in fields)]
    return sorted(some, key=lambda row: row["budget"])


def _styles(values: Values) -> dict[str, dict[str, str]]:
    """Colour and marker of every method, by title, the same in all figures; variants are drawn beside ours alone."""
    titles = {row["name"]: row["title"] for row in values["rows"] if row["group"] == "main"}
    variants = dict.fromkeys(row["title"] for row in values["rows"] if row["group"] != "main")
    numbered = [(place, titles[name]) for name, place in places_of(titles).items()]
    return {title: _style(place, place) for place, title in (*numbered, *enumerate(variants, start=1))}


def _style(colour: int, marker: int) -> dict[str, str]:
    return {"color": LINES[colour % len(LINES)], "marker": MARKERS[marker % len(MARKERS)]}


def _points(rows: Sequence[Values], field: str) -> tuple[list[float], list[list[float]]]:
    """A field, pictures in percent, and how far its intervals go to both sides; not at all where there is none."""
    scale = 1 if field.startswith("loss") else 100
    edges = [row.get(f"{field}_interval") or [row[field]] * 2 for row in rows]
    spread = [[scale * abs(edge[end] - row[field]) for row, edge in zip(rows, edges, strict=True)] for end in (0, 1)]
    return [scale * row[field] for row in rows], spread


def _curves(one: Axes, rows: Sequence[Values], x: str, y: str, styles: dict[str, dict[str, str]], **more: Any) -> Axes:
    """A curve for each title, with a bar for each interval."""
    for title in dict.fromkeys(row["title"] for row in rows):
        some = [row for row in rows if row["title"] == title]
        (heights, spread), places = _points(some, y), [row[x] for row in some]
        look = {"linewidth": 1.4, "label": title} | styles[title] | more
        if any(f"{y}_interval" in row for row in some):
            one.errorbar(places, heights, spread, capsize=2, **look)
        else:
            one.plot(places, heights, **look)
    return one


def _finish(
    one: Axes, x: str, y: str, title: str = "", zero: str | None = None, ticks: Sequence[int] = (), columns: int = 2
) -> Axes:
    """Labels, a line at zero if it has a name, the figure's legend; with ticks the axis is logarithmic."""
    if zero is not None:
        one.axhline(0, color=GREY, linewidth=1, label=zero)
    if ticks:
        one.set_xscale("log", base=2)
        one.set_xticks(sorted({*ticks}), [str(tick) for tick in sorted({*ticks})])
        one.minorticks_off()
    one.set(xlabel=x, ylabel=y, title=title)
    if columns:
        legend_below(one.figure, one, columns)
    return one


def _quality(x: str, label: str, title: str, values: Values) -> Axes | None:
    rows, ticks = _rows(values, "main", "difference", x), []
    if x == "budget":  # a method without budgets is no curve
        titles = [row["title"] for row in rows]
        rows = [row for row in rows if titles.count(row["title"]) > 1]
        ticks = [row["budget"] for row in rows]
    if not rows:
        return None
    one = _curves(axes(7, 4.4), rows, x, "difference", _styles(values))
    return _finish(one, label, PICTURES, title, "dense", ticks)


def _elastic(values: Values) -> Axes | None:
    """Budgets that were trained and budgets that were not, on one curve."""
    rows, styles = _rows(values, "main", "loss_difference"), _styles(values)
    unseen = [row for row in rows if not row["seen"]]
    rows = [row for row in rows if row["title"] in {one["title"] for one in unseen}]
    if not rows:
        return None
    one = _curves(axes(7, 4.4), rows, "budget", "loss_difference", styles)
    _curves(one, unseen, "budget", "loss_difference", styles, markerfacecolor="white", linestyle="none", label=None)
    title = "Elasticity: filled budgets were trained, open ones were not"
    return _finish(one, BUDGET, LOSS, title, ticks=[row["budget"] for row in rows])


def _beside_ours(group: str, title: str, values: Values) -> Axes | None:
    """Variants of ours, paired with it: in right pictures where they were drawn, in loss at every trained budget."""
    rows = [row for row in _rows(values, group, "loss_lead") if row["seen"]]
    titles, styles = list(dict.fromkeys(row["title"] for row in rows)), _styles(values)
    drawn = sorted(_rows(values, group, "lead"), key=lambda row: titles.index(row["title"]))
    if not rows:
        return None
    *left, right = panels(2, 11, 4) if drawn else [axes(7, 4.4)]
    for one in left:
        for place, row in enumerate(drawn):
            lead, spread = _points([row], "lead")
            one.errorbar(lead, place, xerr=spread, capsize=2, **styles[row["title"]])
        one.set_yticks(range(len(drawn)), [f"{row['title']}, R = {row['budget']}" for row in drawn])
        one.set_ylim(len(drawn) - 0.4, -0.6)  # from above
        one.axvline(0, color=GREY, linewidth=1)
        one.set_xlabel("right pictures that ours has more, points")
    middle = (len(titles) - 1) / 2  # side by side, so that no interval covers another
    beside = [row | {"place": row["budget"] * 2 ** (0.08 * (titles.index(row["title"]) - middle))} for row in rows]
    _curves(right, beside, "place", "loss_lead", styles, linestyle="none", linewidth=None)
    right.figure.suptitle(title)
    loss = "its validation loss minus that of ours"
    return _finish(right, BUDGET, loss, zero="", ticks=[row["budget"] for row in rows], columns=4)


def _cores(values: Values) -> Axes | None:
    """Spans of blocks differ in cost at the same budget, so they are compared by their cost, each with its own rule."""
    needed = ("loss_difference", "analytic_speedup")
    other, usual = _rows(values, "core", *needed), _rows(values, "main", *needed)
    if not other:
        return None
    rules = {row["title"]: _rule(row) for row in values["study"]["rows"]}
    titles = list(dict.fromkeys(row["title"] for row in other))
    same = {rules[row["title"]]: row["title"] for row in reversed(usual)}  # of two the first
    drawn = [row for row in usual if row["title"] in [same.get(rules[title]) for title in titles]] + other
    pictures = [row for row in drawn if "difference" in row and "speedup" in row]
    left, *right = panels(2, 11, 4.2) if pictures else [axes(7, 4.4)]
    # Colours that no method has which is drawn here: other blocks are another row, even of the same rule.
    dashed = {title: _style(6 + place % 4, 2 + place) | {"linestyle": "--"} for place, title in enumerate(titles)}
    styles = _styles(values) | dashed
    _curves(left, drawn, "analytic_speedup", "loss_difference", styles, markersize=4)
    for one in right:
        _finish(_curves(one, pictures, "speedup", "difference", styles), SPEED, PICTURES, zero="", columns=0)
    left.figure.suptitle("Cores of other blocks (dashed), at equal cost")
    return _finish(left, "analytic speed-up", LOSS, columns=3)


def _rule(row: Values) -> tuple[Any, ...]:
    """What a row does, but for the blocks it does it in."""
    return row["reduction"], *sorted((name, str(value)) for name, value in row["settings"].items() if name != "core")


def _loss_by_time(values: Values) -> Axes | None:
    """Which rule wins when, at the budget in the middle."""
    rows = [row for row in _rows(values, "main", "loss_by_time") if row["seen"]]
    if not rows:
        return None
    budgets = sorted({row["budget"] for row in rows})
    budget = budgets[max(0, len(budgets) // 2 - 1)]
    spans = [
        {"title": row["title"], "time": (low + high) / 2, "loss": loss}
        for row in rows
        for (low, high), loss in zip(pairwise(TIME_EDGES), row["loss_by_time"], strict=True)
        if row["budget"] == budget and loss is not None
    ]
    one = _curves(axes(7, 4.4), spans, "time", "loss", _styles(values))
    title = f"At which time each rule wins, R = {budget}"
    return _finish(one, "time t, from noise (0) to picture (1)", LOSS, title, zero="")


def _steps_or_tokens(values: Values) -> Axes | None:
    """Fewer sampling steps against fewer tokens, at equal cost."""
    rows = [row for row in values["rows"] if row.get("by_steps") and "speedup" in row]
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
    one = _curves(axes(7, 4.4), points, "cost", "right", styles)
    one.set_ylim(0, 100)
    labels = ("cost of a picture, in dense steps", "right pictures, %", "Fewer steps or fewer tokens")
    return _finish(one, *labels, ticks=[row["steps"] for row in dense])


FIGURES: dict[str, Callable[[Values], Any]] = {
    "quality-against-budget": partial(_quality, "budget", BUDGET, f"Quality at each budget{BARS}"),
    "quality-against-speed": partial(_quality, "speedup", SPEED, f"Quality against speed{BARS}"),
    "elastic": _elastic,
    "components": partial(_beside_ours, "component", f"What each component is worth{BARS} of the difference"),
    "cores": _cores,
    "orders": partial(_beside_ours, "order", f"Hilbert and other orders{BARS} of the difference"),
    "loss-by-time": _loss_by_time,
    "steps-or-tokens": _steps_or_tokens,
}
