"""The figures of a study, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Collection
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


def _by_title(values: Values, group: str, *needed: str) -> dict[str, list[Values]]:
    """Rows of a group that have all of some fields, by title, from lean to rich."""
    found: dict[str, list[Values]] = {}
    for row in sorted(values["rows"], key=lambda row: row["budget"]):
        if row["group"] == group and all(field in row for field in needed):
            found.setdefault(row["title"], []).append(row)
    return found


def _styles(values: Values) -> dict[str, dict[str, str]]:
    """Colour and marker of every method, by title, the same in all figures; variants are drawn beside ours alone."""
    titles = {row["name"]: row["title"] for row in values["rows"] if row["group"] == "main"}
    variants = dict.fromkeys(row["title"] for row in values["rows"] if row["group"] != "main")
    numbered = [(place, titles[name]) for name, place in places_of(titles).items()]
    return {title: _style(place, place) for place, title in (*numbered, *enumerate(variants, start=1))}


def _style(colour: int, marker: int) -> dict[str, str]:
    return {"color": LINES[colour % len(LINES)], "marker": MARKERS[marker % len(MARKERS)]}


def _points(rows: list[Values], field: str) -> tuple[list[float], list[list[float]]]:
    """Values, pictures in percent, and how far their intervals go to both sides; not at all where there is none."""
    scale = 1 if field.startswith("loss") else 100
    edges = "interval" if field == "overall" else f"{field}_interval"
    spread = [[scale * abs((row[edges] or [row[field]] * 2)[end] - row[field]) for row in rows] for end in (0, 1)]
    return [scale * row[field] for row in rows], spread


def _line(one: Axes, x: list[float], rows: list[Values], field: str, title: str, **style: Any) -> None:
    one.errorbar(x, *_points(rows, field), **{"capsize": 2, "linewidth": 1.4, "label": title} | style)


def _finish(one: Axes, x: str, y: str, title: str | None, columns: int = 2, ticks: Collection[int] = ()) -> Axes:
    """Labels, the legend of the figure, and a logarithmic axis where ticks are given."""
    if ticks:
        one.set_xscale("log", base=2)
        one.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)])
        one.minorticks_off()
    one.set(xlabel=x, ylabel=y, title=title or "")
    legend_below(one.figure, one, columns)
    return one


def _zero(one: Axes, label: str | None = None) -> None:
    one.axhline(0, color=GREY, linewidth=1, label=label)


def _budgets(found: dict[str, list[Values]]) -> set[int]:
    return {row["budget"] for rows in found.values() for row in rows}


def _quality(values: Values, against: str, label: str, title: str) -> Axes | None:
    found = _by_title(values, "main", "difference", against)
    if against == "budget":  # a method without budgets is no curve
        found = {title: rows for title, rows in found.items() if len(rows) > 1}
    if not found:
        return None
    one = axes(7, 4.4)
    for name, rows in found.items():
        _line(one, [row[against] for row in rows], rows, "difference", name, **_styles(values)[name])
    _zero(one, "dense")
    return _finish(one, label, PICTURES, title, ticks=_budgets(found) if against == "budget" else ())


def _elastic(values: Values) -> Axes | None:
    """Budgets that were trained and budgets that were not, on one curve."""
    found = _by_title(values, "main", "loss_difference")
    found = {title: rows for title, rows in found.items() if not all(row["seen"] for row in rows)}
    if not found:
        return None
    one = axes(7, 4.4)
    for title, rows in found.items():
        colour, marker = _styles(values)[title].values()
        one.plot([r["budget"] for r in rows], [r["loss_difference"] for r in rows], color=colour, label=title)
        for seen, face in ((True, colour), (False, "white")):
            some = [(row["budget"], row["loss_difference"]) for row in rows if row["seen"] == seen]
            one.plot(*zip(*some), marker, markerfacecolor=face, markeredgecolor=colour, linestyle="none")  # noqa: B905
    title = "Elasticity: filled budgets were trained, open ones were not"
    return _finish(one, BUDGET, LOSS, title, ticks=_budgets(found))


def _beside_ours(values: Values, group: str, title: str) -> Axes | None:
    """Variants of ours, paired with it: in right pictures where they were drawn, in loss at every trained budget."""
    found = {name: [row for row in rows if row["seen"]] for name, rows in _by_title(values, group, "loss_lead").items()}
    drawn = [row for rows in _by_title(values, group, "lead").values() for row in rows]
    if not found:
        return None
    *left, right = panels(2, 11, 4) if drawn else [axes(7, 4.4)]
    for one in left:
        for place, row in enumerate(drawn):
            lead, spread = _points([row], "lead")
            one.errorbar(lead, place, xerr=spread, capsize=2, **_styles(values)[row["title"]])
        one.set_yticks(range(len(drawn)), [f"{row['title']}, R = {row['budget']}" for row in drawn])
        one.set_ylim(len(drawn) - 0.4, -0.6)  # from above
        one.axvline(0, color=GREY, linewidth=1)
        one.set_xlabel("right pictures that ours has more, points")
    for number, (name, rows) in enumerate(found.items()):
        beside = 2 ** (0.08 * (number - (len(found) - 1) / 2))  # so that no interval covers another
        x = [row["budget"] * beside for row in rows]
        _line(right, x, rows, "loss_lead", name, linestyle="none", linewidth=None, **_styles(values)[name])
    _zero(right)
    right.figure.suptitle(title)
    return _finish(right, BUDGET, "its validation loss minus that of ours", None, 4, _budgets(found))


def _cores(values: Values) -> Axes | None:
    """Spans of blocks differ in cost at the same budget, so they are compared by their cost, each with its own rule."""
    found, usual = (_by_title(values, group, "loss_difference") for group in ("core", "main"))
    if not found or not all("analytic_speedup" in row for row in values["rows"]):
        return None
    rules = {row["title"]: _rule(row) for row in values["study"]["rows"]}
    same = {rules[title]: title for title in reversed(usual) if rules[title] in [rules[other] for other in found]}
    drawn = {title: rows for title, rows in usual.items() if title in same.values()} | found
    pictures = {title: [row for row in rows if {"difference", "speedup"} <= row.keys()] for title, rows in drawn.items()}
    left, *right = panels(2, 11, 4.2) if any(pictures.values()) else [axes(7, 4.4)]
    # Colours that no method has which is drawn here: other blocks are another row, even of the same rule.
    styles = _styles(values) | {title: _style(6 + place % 4, 2 + place) for place, title in enumerate(found)}
    for title, rows in drawn.items():
        style = styles[title] | {"linestyle": "--" if title in found else "-"}
        x, y = [row["analytic_speedup"] for row in rows], [row["loss_difference"] for row in rows]
        left.plot(x, y, markersize=4, linewidth=1.4, label=title, **style)
        for one in right:
            _line(one, [row["speedup"] for row in pictures[title]], pictures[title], "difference", title, **style)
    for one in right:
        _zero(one)
        one.set(xlabel=SPEED, ylabel=PICTURES)
    left.figure.suptitle("Cores of other blocks (dashed), at equal cost")
    return _finish(left, "analytic speed-up", LOSS, None, 3)


def _rule(row: Values) -> tuple[Any, ...]:
    """What a row does, but for the blocks it does it in."""
    return row["reduction"], *sorted((name, value) for name, value in row["settings"].items() if name != "core")


def _loss_by_time(values: Values) -> Axes | None:
    """Which rule wins when, at the budget in the middle."""
    rows = [row for row in values["rows"] if "loss_by_time" in row and row["group"] == "main" and row["seen"]]
    if not rows:
        return None
    budgets = sorted({row["budget"] for row in rows})
    budget = budgets[max(0, len(budgets) // 2 - 1)]
    one = axes(7, 4.4)
    middles = [(low + high) / 2 for low, high in pairwise(TIME_EDGES)]
    for row in rows:
        if row["budget"] == budget:
            points = [(t, loss) for t, loss in zip(middles, row["loss_by_time"], strict=True) if loss is not None]
            one.plot(*zip(*points, strict=True), label=row["title"], **_styles(values)[row["title"]])
    _zero(one)
    return _finish(one, "time t, from noise (0) to picture (1)", LOSS, f"At which time each rule wins, R = {budget}")


def _steps_or_tokens(values: Values) -> Axes | None:
    """Fewer sampling steps against fewer tokens, at equal cost."""
    rows = [row for row in values["rows"] if row.get("by_steps") and "speedup" in row]
    if not rows or len(values["dense"]) < 2:
        return None
    one = axes(7, 4.4)
    dense = [{"steps": row["steps"]} | row.get("same_prompts", row) for row in values["dense"]]
    curves = [("dense", 1, dense, {"color": GREY, "marker": "o"})]
    curves += [
        (f"{row['title']}, R = {row['budget']}", row["speedup"], row["by_steps"], _styles(values)[row["title"]])
        for row in rows
    ]
    for title, speedup, several, style in curves:
        several = sorted(several, key=lambda some: some["steps"])
        _line(one, [some["steps"] / speedup for some in several], several, "overall", title, **style)
    one.set_ylim(0, 100)
    ticks = [row["steps"] for row in dense]
    title = "Fewer steps or fewer tokens"
    return _finish(one, "cost of a picture, in dense steps", "right pictures, %", title, ticks=ticks)


WITH_BARS = "; bars are 95 % intervals"
FIGURES: dict[str, Callable[[Values], Any]] = {
    "quality-against-budget": partial(
        _quality, against="budget", label=BUDGET, title=f"Quality at each budget{WITH_BARS}"
    ),
    "quality-against-speed": partial(
        _quality, against="speedup", label=SPEED, title=f"Quality against speed{WITH_BARS}"
    ),
    "elastic": _elastic,
    "components": partial(
        _beside_ours, group="component", title=f"What each component is worth{WITH_BARS} of the difference"
    ),
    "cores": _cores,
    "orders": partial(_beside_ours, group="order", title=f"Hilbert and other orders{WITH_BARS} of the difference"),
    "loss-by-time": _loss_by_time,
    "steps-or-tokens": _steps_or_tokens,
}
