"""The tables of a study, in Markdown, from its collected values."""

from __future__ import annotations

from typing import Any

from rti.lab.scenes import TASKS


def table(values: dict[str, Any]) -> str:
    """In the layout of the paper's Table 1: dense, then budgets from rich to lean, each with every method."""
    head = ["method", "R", "speed", "analytic", *(task.replace("_", " ") for task in TASKS), "overall", "minus dense"]
    dense = [{"title": "dense", "seeds": 1, "speedup": 1, "analytic_speedup": 1} | one for one in values["dense"][:1]]
    lines = [
        [
            row["title"],
            _budget(row),
            *(f"{row[name]:.2f}x" if name in row else "" for name in ("speedup", "analytic_speedup")),
            *(_number(row.get("tasks", {}).get(task)) for task in TASKS),
            _number(row.get("overall"), row.get("interval")),
            _number(row.get("difference"), row.get("difference_interval"), sign="+"),
            str(row["images"] * row["seeds"]) if "images" in row else "",
            _number(row.get("loss_difference"), row.get("loss_interval"), 1, 4, "+"),
        ]
        for row in (*dense, *sorted(values["rows"], key=lambda row: -row["budget"]))
    ]
    return _markdown([*head, "pictures", "loss minus dense"], lines)


def leads(values: dict[str, Any]) -> str:
    """By how much ours, the study's first row, leads each other one at each trained budget, paired.

    Only rows that spend what ours spends there: methods without a budget and other cores are in the table alone.
    """
    rows = [row for row in values["rows"] if row["seen"] and row["elastic"] and row["group"] != "core"]
    budgets = sorted({row["budget"] for row in rows})
    by_budget = {(row["name"], row["budget"]): row for row in rows}
    lines = []
    for method, title in {row["name"]: row["title"] for row in rows}.items():
        some = [by_budget.get((method, budget), {}) for budget in budgets]
        for field, name, scale, digits in (("lead", "right pictures, points", 100, 1), ("loss_lead", "loss", 1, 4)):
            cells = [_number(one.get(field), one.get(f"{field}_interval"), scale, digits, "+") for one in some]
            lines += [[title, name, *cells]] if any(cells) else []
    return _markdown(["ours is better than", "in", *(f"R = {budget}" for budget in budgets)], lines)


def _budget(row: dict[str, Any]) -> str:
    if "budget" not in row:
        return ""
    return f"{row['budget']}{'' if row['seen'] else ' (unseen)'}" if row["elastic"] else "its own"


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
