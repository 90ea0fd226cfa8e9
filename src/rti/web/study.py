"""The third tab: the table and the curves of a study, where a folder of results is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_results(folder: Path | None) -> dict[str, Any] | None:
    """What `rti study` wrote into the folder; None without one."""
    if folder is None:
        return None
    path = folder / "results.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(values[name], list) for name in ("dense", "rows")):
            return values
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{path} is not what rti study writes; rti study PLAN --output {folder} --report writes it anew")


def study_curves(values: dict[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Every figure that the results allow, with its name."""
    from rti.lab.study.figures import FIGURES

    for name, draw in FIGURES.items():
        one = draw(values)
        if one is not None:
            yield name.replace("-", " "), one.figure
