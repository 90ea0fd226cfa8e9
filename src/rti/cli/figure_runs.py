"""`rti figure frontier`, and `fid` and `steps`, which are it with other defaults: scored runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from rti.cli.figure import OUTPUT_HELP, check_png, figures, write_figure
from rti.cli.options import command

RUNS = typer.Argument(
    help="Scored folders of rti generate, or folders of those, or JSON of rti compare. NAME=FOLDER names its method."
)
AGAINST_HELP = "Against measured speed-ups, those by arithmetic (flops or tokens), budget, or seconds a picture."
FRONTIERS = {  # the scores, what they are drawn against, and the help
    "frontier": (
        "geneval,clip,pick,imagereward",
        "measured",
        """Each score against the speed-up or the budget, of several methods and backbones, dense marked.

        rti figure frontier runs/dense runs/r512 runs/r256 similarity=runs/s512 similarity=runs/s256

        Every backbone needs its dense run. A method is called by its reduction, or as
        NAME=FOLDER says; runs of one name are joined by a line. Speed-ups are those of
        drawing the pictures; --against flops or tokens has those by arithmetic.
        """,
    ),
    "fid": ("fid,is", "measured", "FID and Inception Score: rti figure frontier --metrics fid,is"),
    "steps": (
        "geneval,clip,pick,imagereward,fid",
        "seconds",
        """Fewer steps or fewer tokens, a line per budget: rti figure frontier --against seconds

        rti figure steps runs/dense-6 runs/dense-20 runs/dense-39 runs/r256-16 runs/r256-50 runs/r256-100
        """,
    ),
}


def _frontier(name: str, metrics: str, against: str, text: str) -> Callable[..., dict[str, Any]]:
    def draw(
        runs: list[str] = RUNS,
        against: str = typer.Option(against, help=AGAINST_HELP),
        metrics: str = typer.Option(metrics, help="Which scores, a panel each; those that no run has are left out."),
        output: Path = typer.Option(f"{name}.png", "--output", "-o", help=OUTPUT_HELP),
    ) -> dict[str, Any]:
        from rti.lab.pictures.frontier import frontier_figure
        from rti.lab.pictures.scored_runs import add_speedups, read_runs

        check_png(output)
        rows = add_speedups(read_runs(runs), against)
        figure = frontier_figure(rows, metrics.split(","), against)
        return write_figure(figure, {"figure": name, "against": against, "rows": rows}, output)

    draw.__doc__ = text
    return draw


for _name, _row in FRONTIERS.items():
    figures.command(_name)(command(_frontier(_name, *_row)))
