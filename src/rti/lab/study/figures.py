"""The figures of a study, each as PNG and SVG."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti.lab.plots import GREY, LINES, MARKERS, axes, legend_below, panels, places_of, save_both
from rti.lab.study.tables import TIME_EDGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_figures(values: dict[str, Any], folder: Path) -> list[Path]:
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


def _by_name(values: dict[str, Any], field: str, groups: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """Rows that have a field, by title, from lean to rich."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(values["rows"], key=lambda row: row["budget"]):
        if field in row and row["group"] in groups:
            found.setdefault(row["title"], []).append(row)
    return found


def _styles(values: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Colour and marker of every method, by title, the same in all figures; variants are drawn beside ours alone."""
    titles = {row["name"]: row["title"] for row in values["rows"] if row["group"] == "main"}
    variants = dict.fromkeys(row["title"] for row in values["rows"] if row["group"] != "main")
    numbered = [(place, titles[name]) for name, place in places_of(titles).items()]
    numbered += [*enumerate(variants, start=1)]
    return {title: (LINES[number % len(LINES)], MARKERS[number % len(MARKERS)]) for number, title in numbered}


def _line(
    one: Axes,
    x: list[float],
    rows: list[dict[str, Any]],
    style: tuple[str, str],
    title: str,
    fields: tuple[str, str] = ("overall", "interval"),
    dashes: str = "-",
) -> None:
    """Accuracy, or its difference to dense, in percent, with its interval."""
    value, edges = fields
    y = [100 * row[value] for row in rows]
    spread = _spread(rows, value, edges, 100)
    colour, marker = style
    one.errorbar(x, y, spread, fmt=dashes, color=colour, marker=marker, capsize=2, linewidth=1.4, label=title)


def _spread(rows: list[dict[str, Any]], value: str, edges: str, scale: float) -> list[list[float]]:
    """How far the intervals go to both sides; not at all where there is none."""
    return [[scale * abs((row[edges] or [row[value]] * 2)[end] - row[value]) for row in rows] for end in (0, 1)]


PAIRED = ("difference", "difference_interval")


def _against_dense(one: Axes) -> None:
    """Rows have as many prompts as each needs, so what can be compared is the difference to dense on the same."""
    one.axhline(0, color=GREY, linewidth=1, label="dense")
    one.set_ylabel("right pictures minus dense, points")
    legend_below(one.figure, one, 2)


def quality_against_speed(values: dict[str, Any]) -> Axes | None:
    found = _by_name(values, "difference", ("main",))
    found = {title: some for title, rows in found.items() if (some := [row for row in rows if "speedup" in row])}
    if not found:
        return None
    one = axes(7, 4.4)
    for title, rows in found.items():
        _line(one, [row["speedup"] for row in rows], rows, _styles(values)[title], title, PAIRED)
    one.set_xlabel("measured speed-up of a guided forward pass")
    one.set_title("Quality against speed; bars are 95 % intervals")
    _against_dense(one)
    return one


def quality_against_budget(values: dict[str, Any]) -> Axes | None:
    found = {title: rows for title, rows in _by_name(values, "difference", ("main",)).items() if len(rows) > 1}
    if not found:
        return None
    one = axes(7, 4.4)
    for title, rows in found.items():
        _line(one, [row["budget"] for row in rows], rows, _styles(values)[title], title, PAIRED)
    _budget_axis(one, sorted({row["budget"] for rows in found.values() for row in rows}))
    one.set_title("Quality at each budget; bars are 95 % intervals")
    _against_dense(one)
    return one


def elastic(values: dict[str, Any]) -> Axes | None:
    """Budgets that were trained and budgets that were not, on one curve."""
    found = {
        title: rows
        for title, rows in _by_name(values, "loss_difference", ("main",)).items()
        if any(not row["seen"] for row in rows)
    }
    if not found:
        return None
    one = axes(7, 4.4)
    for title, rows in found.items():
        colour, marker = _styles(values)[title]
        one.plot([r["budget"] for r in rows], [r["loss_difference"] for r in rows], color=colour, label=title)
        for seen, face in ((True, colour), (False, "white")):
            some = [row for row in rows if row["seen"] == seen]
            x, y = [r["budget"] for r in some], [r["loss_difference"] for r in some]
            one.plot(x, y, marker, markerfacecolor=face, markeredgecolor=colour, linestyle="none")
    _budget_axis(one, sorted({row["budget"] for rows in found.values() for row in rows}))
    one.set_ylabel("validation loss minus dense")
    one.set_title("Elasticity: filled budgets were trained, open ones were not")
    legend_below(one.figure, one, 2)
    return one


def _budget_axis(one: Axes, budgets: list[int]) -> None:
    one.set_xscale("log", base=2)
    one.set_xticks(budgets, [str(budget) for budget in budgets])
    one.minorticks_off()
    one.set_xlabel("budget R, region tokens in the core")


def _beside_ours(values: dict[str, Any], group: str, title: str) -> Axes | None:
    """Variants of ours, paired with it: in right pictures where they were drawn, in loss at every trained budget."""
    found = _by_name(values, "loss_lead", (group,))
    drawn = [row for rows in _by_name(values, "lead", (group,)).values() for row in rows]
    if not found:
        return None
    *left, right = panels(2, 11, 4) if drawn else [axes(7, 4.4)]
    styles = {name: dict(zip(("color", "marker"), style, strict=True)) for name, style in _styles(values).items()}
    for one in left:
        for place, row in enumerate(drawn):
            lead, spread = _leads([row], "lead", 100)
            one.errorbar(lead, place, xerr=spread, capsize=2, **styles[row["title"]])
        one.set_yticks(range(len(drawn)), [f"{row['title']}, R = {row['budget']}" for row in drawn])
        one.set_ylim(len(drawn) - 0.4, -0.6)  # from above
        one.axvline(0, color=GREY, linewidth=1)
        one.set_xlabel("right pictures that ours has more, points")
    for number, (name, rows) in enumerate(found.items()):
        rows = [row for row in rows if row["seen"]]
        beside = 2 ** (0.08 * (number - (len(found) - 1) / 2))  # so that no interval covers another
        lead, spread = _leads(rows, "loss_lead", 1)
        x = [row["budget"] * beside for row in rows]
        right.errorbar(x, lead, spread, linestyle="none", capsize=2, label=name, **styles[name])
    _budget_axis(right, sorted({row["budget"] for rows in found.values() for row in rows if row["seen"]}))
    right.axhline(0, color=GREY, linewidth=1)
    right.set_ylabel("its validation loss minus that of ours")
    legend_below(right.figure, right, 4)
    right.figure.suptitle(title)
    return right


def _leads(rows: list[dict[str, Any]], field: str, scale: float) -> tuple[list[float], list[list[float]]]:
    """By how much ours leads each row, and how far its interval goes to both sides."""
    spread = _spread(rows, field, f"{field}_interval", scale)
    return [scale * row[field] for row in rows], spread


def components(values: dict[str, Any]) -> Axes | None:
    return _beside_ours(values, "component", "What each component is worth; bars are 95 % intervals of the difference")


def cores(values: dict[str, Any]) -> Axes | None:
    """Spans of blocks differ in cost at the same budget, so they are compared by their cost, each with its own rule."""
    found = _by_name(values, "loss_difference", ("core",))
    if not found or not all("analytic_speedup" in row for row in values["rows"]):
        return None
    usual = _by_name(values, "loss_difference", ("main",))
    rules = {row["title"]: _rule(row) for row in values["study"]["rows"]}
    main = {rules[title]: title for title in reversed(usual) if rules[title] in [rules[other] for other in found]}
    drawn = {title: rows for title, rows in usual.items() if title in main.values()} | found
    pictures = {
        title: [row for row in rows if "difference" in row and "speedup" in row] for title, rows in drawn.items()
    }
    left, *right = panels(2, 11, 4.2) if any(pictures.values()) else [axes(7, 4.4)]
    styles = _styles(values)
    # Colours that no method has which is drawn here: other blocks are another row, even of the same rule.
    styles |= {title: (LINES[6 + place % 4], MARKERS[(2 + place) % 7]) for place, title in enumerate(found)}
    for title, rows in drawn.items():
        colour, marker = styles[title]
        dashes = "--" if title in found else "-"
        x, y = [row["analytic_speedup"] for row in rows], [row["loss_difference"] for row in rows]
        left.plot(x, y, dashes, color=colour, marker=marker, markersize=4, linewidth=1.4, label=title)
        for one in right:
            some = pictures[title]
            _line(one, [row["speedup"] for row in some], some, (colour, marker), title, PAIRED, dashes)
    left.set_xlabel("analytic speed-up")
    left.set_ylabel("validation loss minus dense")
    legend_below(left.figure, left, 3)
    for one in right:
        one.axhline(0, color=GREY, linewidth=1)
        one.set_xlabel("measured speed-up of a guided forward pass")
        one.set_ylabel("right pictures minus dense, points")
    left.figure.suptitle("Cores of other blocks (dashed), at equal cost")
    return left


def _rule(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row does, but for the blocks it does it in."""
    return row["reduction"], *sorted((name, value) for name, value in row["settings"].items() if name != "core")


def orders(values: dict[str, Any]) -> Axes | None:
    return _beside_ours(values, "order", "Hilbert and other orders; bars are 95 % intervals of the difference")


def loss_by_time(values: dict[str, Any]) -> Axes | None:
    """Which rule wins when, at the budget in the middle."""
    rows = [row for row in values["rows"] if "loss_by_time" in row and row["group"] == "main" and row["seen"]]
    budgets = sorted({row["budget"] for row in rows})
    if not rows:
        return None
    budget = budgets[len(budgets) // 2 - 1] if len(budgets) > 1 else budgets[0]
    one = axes(7, 4.4)
    middles = [(low + high) / 2 for low, high in pairwise(TIME_EDGES)]
    some = [row for row in rows if row["budget"] == budget]
    for row in some:
        colour, marker = _styles(values)[row["title"]]
        points = [(t, loss) for t, loss in zip(middles, row["loss_by_time"], strict=True) if loss is not None]
        one.plot(*zip(*points, strict=True), color=colour, marker=marker, label=row["title"])
    one.axhline(0, color=GREY, linewidth=1)
    one.set_xlabel("time t, from noise (0) to picture (1)")
    one.set_ylabel("validation loss minus dense")
    one.set_title(f"At which time each rule wins, R = {budget}")
    legend_below(one.figure, one, 2)
    return one


def steps_or_tokens(values: dict[str, Any]) -> Axes | None:
    """Fewer sampling steps against fewer tokens, at equal cost."""
    rows = [row for row in values["rows"] if row.get("by_steps") and "speedup" in row]
    if not rows or len(values["dense"]) < 2:
        return None
    one = axes(7, 4.4)
    dense = [{"steps": row["steps"]} | row.get("same_prompts", row) for row in values["dense"]]
    dense.sort(key=lambda row: row["steps"])
    _line(one, [row["steps"] for row in dense], dense, (GREY, "o"), "dense")
    for row in rows:
        several = sorted(row["by_steps"], key=lambda some: some["steps"])
        cost = [some["steps"] / row["speedup"] for some in several]
        _line(one, cost, several, _styles(values)[row["title"]], f"{row['title']}, R = {row['budget']}")
    one.set_xscale("log", base=2)
    ticks = [row["steps"] for row in dense]
    one.set_xticks(ticks, [str(steps) for steps in ticks])
    one.minorticks_off()
    one.set_xlabel("cost of a picture, in dense steps")
    one.set_ylabel("right pictures, %")
    one.set_ylim(0, 100)
    one.set_title("Fewer steps or fewer tokens")
    legend_below(one.figure, one, 2)
    return one


FIGURES = {
    "quality-against-budget": quality_against_budget,
    "quality-against-speed": quality_against_speed,
    "elastic": elastic,
    "components": components,
    "cores": cores,
    "orders": orders,
    "loss-by-time": loss_by_time,
    "steps-or-tokens": steps_or_tokens,
}
