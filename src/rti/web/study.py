"""The third tab: curves of a study, where its results are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTHING = "There are no results of a study here yet; `rti web --study FOLDER` shows those of a folder."


def study_pictures(folder: Path | None) -> list[tuple[str, str]]:
    """The figures of a folder, PNG files anywhere in it, each with its name as a caption."""
    if folder is None or not folder.is_dir():
        return []
    return [(str(path), path.stem.replace("-", " ").replace("_", " ")) for path in sorted(folder.rglob("*.png"))]


def study_curve(rows: list[list[Any]]) -> Any:
    """Accuracy against the budget, a line per file with its intervals; dense as a level line. None without rows."""
    if not rows:
        return None
    from rti.plots import COLOURS, GREY, MARKERS, axes

    one = axes(7.0, 4.2)
    for place, name in enumerate(dict.fromkeys(row[0] for row in rows)):
        colour = COLOURS[place % len(COLOURS)]
        some = sorted((int(row[1]), row[2], row[3]) for row in rows if row[0] == name and row[1] != "dense")
        for level in (row[2] for row in rows if row[0] == name and row[1] == "dense"):
            one.axhline(level, color=colour, linestyle="--", linewidth=1)
        if some:
            ends = [[float(end) for end in text.split(" to ")] for _, _, text in some]
            bars = [[value - low for (_, value, _), (low, _) in zip(some, ends, strict=True)]]
            bars.append([high - value for (_, value, _), (_, high) in zip(some, ends, strict=True)])
            marker = MARKERS[place % len(MARKERS)]
            one.errorbar(*list(zip(*some, strict=True))[:2], bars, marker=marker, color=colour, capsize=3, label=name)
    one.plot([], [], "--", color=GREY, linewidth=1, label="dense")
    one.set_xscale("log", base=2)
    one.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    one.set_ylim(0, 100)
    one.set_xlabel("budget R, region tokens in the core")
    one.set_ylabel("right pictures, % (95 % interval)")
    one.legend(frameon=False, loc="lower right")
    return one.figure


def study_rows(folder: Path | None) -> list[list[Any]]:
    """Accuracy at each budget, from files that `rti eval scenes --json` wrote: study, budget, percent, interval."""
    if folder is None or not folder.is_dir():
        return []
    rows = []
    for path in sorted(folder.rglob("*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            found = values["rows"]
            for row in found:
                low, high = row["interval"]
                text = f"{100 * low:.1f} to {100 * high:.1f}"
                rows.append([path.stem, str(row["budget"]), round(100 * row["overall"], 1), text])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # other files lie beside them
    return rows
