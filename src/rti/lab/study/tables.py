"""The tables of a study, in Markdown, from its collected values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rti.lab.scenes import TASKS
from rti.lab.study.faults import KINDS

TIME_EDGES = (0.0, 0.2, 0.4, 0.6, 1.0)  # of the loss by time
SPANS = [f"t {low:g} to {high:g}" for low, high in pairwise(TIME_EDGES)]


def table(values: dict[str, Any]) -> str:
    """In the layout of the paper's Table 1: dense, then budgets from rich to lean, each with every method."""
    head = ["method", "R", "speed", "analytic", *(task.replace("_", " ") for task in TASKS), "overall", "minus dense"]
    dense = [{"title": "dense", "seeds": 1, "speedup": 1, "analytic_speedup": 1} | one for one in values["dense"][:1]]
    lines = [
        [
            row["title"],
            _budget(row) if "budget" in row else "",
            *(f"{row[name]:.2f}x" if name in row else "" for name in ("speedup", "analytic_speedup")),
            *(_number(row.get("tasks", {}).get(task)) for task in TASKS),
            _number(row.get("overall"), row.get("interval")),
            _number(row.get("difference"), row.get("difference_interval"), sign="+"),
            str(row["images"] * row["seeds"]) if "images" in row else "",
            _number(row.get("loss_difference"), row.get("loss_interval"), 1, 4, "+"),
        ]
        for row in (*dense, *_from_rich_to_lean(values["rows"]))
    ]
    return _markdown([*head, "pictures", "loss minus dense"], lines)


def leads(values: dict[str, Any]) -> str:
    """By how much ours, the study's first row, leads each other one at each trained budget, paired.

    Only rows that spend what ours spends there: methods without a budget and other cores are in the table alone.
    """
    rows = [row for row in values["rows"] if row["seen"] and _spends_its_budget(row)]
    budgets = sorted({row["budget"] for row in rows})
    lines = []
    for method, title in {row["name"]: row["title"] for row in rows}.items():
        by_budget = {row["budget"]: row for row in rows if row["name"] == method}
        for field, name, scale, digits in (("lead", "right pictures, points", 100, 1), ("loss_lead", "loss", 1, 4)):
            some = [by_budget.get(budget, {}) for budget in budgets]
            cells = [_number(one.get(field), one.get(f"{field}_interval"), scale, digits, "+") for one in some]
            lines += [[title, name, *cells]] if any(cells) else []
    return _markdown(["ours is better than", "in", *(f"R = {budget}" for budget in budgets)], lines)


def times(values: dict[str, Any]) -> str:
    """The loss above dense by the time of the example, at each trained budget; then paired with ours.

    A method without a budget, or with another core, spends more or less: it is listed, but not compared.
    """
    rows = [row for row in _from_rich_to_lean(values["rows"]) if row["seen"] and "loss_by_time" in row]
    lines = []
    for row in rows:
        alike = [_losses(one) for one in rows if one["budget"] == row["budget"] and _spends_its_budget(one)]
        lowest = [min((loss for loss in some if loss is not None), default=None) for some in zip(*alike, strict=True)]
        cells = [_number(loss, None, 1, 4, "+") for loss in _losses(row)]
        if _spends_its_budget(row):
            best = [loss is not None and loss == least for loss, least in zip(_losses(row), lowest, strict=True)]
            cells = [f"**{cell}**" if bold else cell for cell, bold in zip(cells, best, strict=True)]
        lines.append([row["title"], _budget(row), *cells])
    examples = ", ".join(map(str, rows[0]["loss_by_time_examples"] if rows else ()))
    text = (
        f"Loss minus dense, by the time of the example ({examples} examples); bold is the lowest mean of a budget.\n\n"
    )
    text += _markdown(["method", "R", *SPANS, "all"], lines)
    lines = [
        [row["title"], _budget(row), *("" if one is None else _number(one[0], one[1:], 1, 4, "+") for one in by_time)]
        for row in rows
        if _spends_its_budget(row) and (by_time := row.get("loss_lead_by_time"))
    ]
    if lines:
        text += "\nThe same, paired with ours: by how much the loss of ours is lower (95 % interval).\n\n"
        text += _markdown(["ours is better than", "R", *SPANS], lines)
    return text


def faults(values: dict[str, Any]) -> str:
    """What is wrong with the wrong pictures, and how often a single object is right, by its shape."""
    rows = [row for row in _from_rich_to_lean(values["rows"]) if "faults" in row]
    shapes = sorted({shape for row in rows for shape in row["faults"]["by_shape"]})
    head = ["method", "R", "wrong", *(f"first fault: {kind}" for kind in KINDS), "pairs miscoloured, of those found"]
    lines = [
        [
            row["title"],
            _budget(row),
            f"{found['wrong']} of {found['pictures']}",
            *(str(found["kinds"][kind]) for kind in KINDS),
            f"{found['pairs_miscoloured']} of {found['pairs_found']}",
            *("{} of {}".format(*found["by_shape"][one]) if one in found["by_shape"] else "" for one in shapes),
        ]
        for row in rows
        for found in [row["faults"]]
    ]
    return _markdown([*head, *(f"one {shape}, right" for shape in shapes)], lines)


TABLES = {"table": table, "leads": leads, "times": times, "faults": faults}


def _from_rich_to_lean(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -row["budget"])


def _budget(row: dict[str, Any]) -> str:
    return "its own" if not row["elastic"] else f"{row['budget']}" + ("" if row["seen"] else " (unseen)")


def _spends_its_budget(row: dict[str, Any]) -> bool:
    return row["elastic"] and row["group"] != "core"


def _losses(row: dict[str, Any]) -> list[float | None]:
    return [*row["loss_by_time"], row["loss_difference"]]


def _markdown(head: list[str], lines: list[list[str]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *lines))


def _number(
    value: float | None, interval: list[float] | None = None, scale: float = 100, digits: int = 1, sign: str = ""
) -> str:
    """A value with its interval; values that do not vary have none."""
    if value is None:
        return ""
    number, *edges = (f"{scale * one:{sign}.{digits}f}" for one in (value, *(interval or ())))
    return f"{number} ({' to '.join(edges)})" if edges else number
