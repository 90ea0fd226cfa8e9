"""Figures, light and legible. They need matplotlib: pip install 'region-tokens[plots]'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: told apart by everyone


def axes(width: float = 6.0, height: float = 4.0) -> Axes:
    """An empty figure in the style of all of ours."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("a figure needs matplotlib, which is not here: pip install 'region-tokens[plots]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, one = pyplot.subplots(figsize=(width, height), layout="constrained")
    one.grid(alpha=0.25)
    one.spines[["top", "right"]].set_visible(False)
    return one


def save(one: Axes, path: Path, close: bool = True) -> Path:
    """Write the figure, as PNG, SVG or PDF by its name, and forget it unless it is to be written again."""
    from matplotlib import pyplot

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        one.figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path}: {error}") from None
    finally:
        if close:
            pyplot.close(one.figure)
    return path


def cost_figure(values: dict[str, Any], path: Path) -> Path:
    """Measured and analytic cost of a forward pass against the budget, in percent of dense, as in the paper."""
    one = axes()
    rows = [row for row in values["rows"] if row["budget"] != "dense"]
    kinds = list(dict.fromkeys((row["model"], row["text_budget"]) for row in rows))
    for colour, (model, text) in zip(COLOURS * len(kinds), kinds, strict=False):
        some = sorted((r for r in rows if (r["model"], r["text_budget"]) == (model, text)), key=lambda r: r["budget"])
        budgets = [row["budget"] for row in some]
        name = model if text is None else f"{model}, {text} text tokens"
        one.plot(budgets, [100 / row["speedup"] for row in some], "o-", color=colour, label=f"{name}, measured")
        one.plot(
            budgets, [100 / row["analytic_speedup"] for row in some], "--", color=colour, label=f"{name}, analytic"
        )
    one.axhline(100, color="#444444", linewidth=1, label="dense")
    one.set_xscale("log", base=2)
    ticks = sorted({row["budget"] for row in rows})
    one.set_xticks(ticks, [str(tick) for tick in ticks])
    one.minorticks_off()
    one.set_ylim(0, 105)
    one.set_xlabel("budget R, region tokens in the core")
    one.set_ylabel("cost of a forward pass, % of dense")
    one.set_title(f"{values['benchmark']}, batch {values['batch']}, {values['dtype']}, {values['device']}")
    one.legend(frameon=False)
    return save(one, path)
