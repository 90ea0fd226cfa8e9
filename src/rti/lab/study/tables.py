"""The tables of a study, in Markdown, from its collected values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rti.lab.scenes import TASKS
from rti.lab.study.faults import KINDS

TIME_EDGES = (0.0, 0.2, 0.4, 0.6, 1.0)  # of the loss by time


def table(values: dict[str, Any]) -> str:
    """Markdown, in the layout of the paper's Table 1: dense, then budgets from rich to lean, each with every method."""
    head = ["method", "R", "speed", "analytic", *(task.replace("_", " ") for task in TASKS), "overall", "minus dense"]
    rows = [[*head, "pictures", "loss minus dense"], ["---"] * (len(head) + 2)]
    for one in values["dense"][:1]:
        tasks = [_percent(one["tasks"].get(task)) for task in TASKS]
        overall = _percent(one["overall"], one["interval"])
        rows.append(["dense", "", "1.00x", "1.00x", *tasks, overall, "", str(one["images"]), ""])
    for row in sorted(values["rows"], key=lambda row: -row["budget"]):
        tasks = [_percent(row.get("tasks", {}).get(task)) for task in TASKS]
        speeds = [f"{row[name]:.2f}x" if name in row else "" for name in ("speedup", "analytic_speedup")]
        overall = _percent(row.get("overall"), row.get("interval"))
        minus = _points(row.get("difference"), row.get("difference_interval"), 100, 1)
        loss = _points(row.get("loss_difference"), row.get("loss_interval"), 1, 4)
        pictures = str(row["images"] * row["seeds"]) if "images" in row else ""
        rows.append([row["title"], _budget(row), *speeds, *tasks, overall, minus, pictures, loss])
    return _markdown(rows)


def _budget(row: dict[str, Any]) -> str:
    return "its own" if not row["elastic"] else f"{row['budget']}" + ("" if row["seen"] else " (unseen)")


def leads(values: dict[str, Any]) -> str:
    """Markdown: by how much ours, the study's first row, leads each other one at each trained budget, paired.

    Only rows that spend what ours spends there: methods without a budget and other cores are in the table alone.
    """
    rows = [row for row in values["rows"] if row["seen"] and _spends_its_budget(row)]
    budgets = sorted({row["budget"] for row in rows})
    head = [f"R = {budget}" for budget in budgets]
    lines = [["ours is better than", "in", *head], ["---"] * (len(head) + 2)]
    for method, title in {row["name"]: row["title"] for row in rows}.items():
        by_budget = {row["budget"]: row for row in rows if row["name"] == method}
        for field, name, scale, digits in (("lead", "right pictures, points", 100, 1), ("loss_lead", "loss", 1, 4)):
            some = [by_budget.get(budget, {}) for budget in budgets]
            cells = [_points(one.get(field), one.get(f"{field}_interval"), scale, digits) for one in some]
            if any(cells):
                lines.append([title, name, *cells])
    return _markdown(lines)


def times(values: dict[str, Any]) -> str:
    """Markdown: the loss above dense by the time of the example, at each trained budget; then paired with ours.

    A method without a budget, or with another core, spends more or less: it is listed, but not compared.
    """
    spans = [f"t {low:g} to {high:g}" for low, high in pairwise(TIME_EDGES)]
    lines = [["method", "R", *spans, "all"], ["---"] * (len(spans) + 3)]
    rows = [row for row in values["rows"] if row["seen"] and "loss_by_time" in row]
    for row in sorted(rows, key=lambda row: -row["budget"]):
        alike = [one for one in rows if one["budget"] == row["budget"] and _spends_its_budget(one)]
        cells = []
        for place, value in enumerate(_losses(row)):
            lowest = min((loss for one in alike if (loss := _losses(one)[place]) is not None), default=None)
            cell = "" if value is None else f"{value:+.4f}"
            cells.append(f"**{cell}**" if cell and row in alike and value == lowest else cell)
        lines.append([row["title"], _budget(row), *cells])
    examples = next((row["loss_by_time_examples"] for row in rows), [])
    text = (
        f"Loss minus dense, by the time of the example ({', '.join(map(str, examples))} examples); bold is the lowest "
    )
    text += "mean of a budget.\n\n" + _markdown(lines)
    compared = [row for row in rows if "loss_lead_by_time" in row and _spends_its_budget(row)]
    if compared:
        lines = [["ours is better than", "R", *spans], ["---"] * (len(spans) + 2)]
        for row in sorted(compared, key=lambda row: -row["budget"]):
            cells = ["" if one is None else _points(one[0], one[1:], 1, 4) for one in row["loss_lead_by_time"]]
            lines.append([row["title"], _budget(row), *cells])
        text += "\nThe same, paired with ours: by how much the loss of ours is lower (95 % interval).\n\n" + _markdown(
            lines
        )
    return text


def faults(values: dict[str, Any]) -> str:
    """Markdown: what is wrong with the wrong pictures, and how often a single object is right, by its shape."""
    rows = [row for row in values["rows"] if "faults" in row]
    shapes = sorted({shape for row in rows for shape in row["faults"]["by_shape"]})
    head = ["method", "R", "wrong", *(f"first fault: {kind}" for kind in KINDS), "pairs miscoloured, of those found"]
    head += [f"one {shape}, right" for shape in shapes]
    lines = [head, ["---"] * len(head)]
    for row in sorted(rows, key=lambda row: -row["budget"]):
        found = row["faults"]
        kinds = [str(found["kinds"][kind]) for kind in KINDS]
        kinds.append(f"{found['pairs_miscoloured']} of {found['pairs_found']}")
        right = ["{} of {}".format(*found["by_shape"][s]) if s in found["by_shape"] else "" for s in shapes]
        lines.append([row["title"], _budget(row), f"{found['wrong']} of {found['pictures']}", *kinds, *right])
    return _markdown(lines)


def _spends_its_budget(row: dict[str, Any]) -> bool:
    return row["elastic"] and row["group"] != "core"


def _losses(row: dict[str, Any]) -> list[float | None]:
    return [*row["loss_by_time"], row["loss_difference"]]


def _markdown(rows: list[list[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _percent(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return ""
    spread = "" if interval is None else f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    return f"{100 * value:.1f}{spread}"


def _points(value: float | None, interval: list[float] | None, scale: float, digits: int) -> str:
    if value is None:
        return ""
    spread = " to ".join(f"{scale * edge:+.{digits}f}" for edge in interval or ())  # none of values that do not vary
    return f"{scale * value:+.{digits}f}" + (f" ({spread})" if spread else "")
