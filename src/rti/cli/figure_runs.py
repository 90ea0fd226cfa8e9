"""`rti figure frontier`, `fid`, `steps` and `redundancy`: the figures that put several runs or models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rti.cli.figure import JSON, OUTPUT_HELP, _check, _write
from rti.cli.output import whole_numbers
from rti.errors import InputError

RUNS = typer.Argument(
    help="Scored folders of rti generate, or folders of those, or JSON of rti compare. NAME=FOLDER names its method."
)
AGAINST_HELP = "Against measured speed-ups, those by arithmetic (flops or tokens), budget, or seconds a picture."
SPEEDS = typer.Option(
    None, help="Measured speed-ups from a file of rti bench --json; NAME=FILE for one method. May be repeated."
)


def _of_runs(name: str, metrics: str, against: str, text: str) -> Any:
    """A command that draws scores against what runs cost."""

    def command(
        runs: list[str] = RUNS,
        against: str = typer.Option(against, help=AGAINST_HELP),
        speeds: list[str] = SPEEDS,
        metrics: str = typer.Option(metrics, help="Which scores, a panel each; those that no run has are left out."),
        output: Path = typer.Option(f"{name}.png", "--output", "-o", help=OUTPUT_HELP),
        json: bool = JSON,
    ) -> None:
        from rti.lab.pictures.frontier import frontier_figure
        from rti.lab.pictures.scored_runs import add_speedups, read_runs

        _check(output)
        rows = add_speedups(read_runs(runs), against, speeds or ())
        figure = frontier_figure(rows, metrics.split(","), against)
        _write(figure, {"figure": name, "against": against, "rows": rows}, output, json)

    command.__doc__, command.__name__ = text, name
    return command


frontier = _of_runs(
    "frontier",
    "geneval,clip,pick,imagereward",
    "measured",
    """Each score against the speed-up or the budget, of several methods and backbones, dense marked.

    rti figure frontier runs/dense runs/r512 runs/r256 similarity=runs/s512 similarity=runs/s256

    Every backbone needs its dense run. A method is called by its reduction, or as
    NAME=FOLDER says; runs of one name are joined by a line. Speed-ups are those of
    drawing the pictures, or of rti bench: rti bench MODEL --json | tail -n 1 > FILE
    """,
)
fid = _of_runs(
    "fid",
    "fid,is",
    "measured",
    """FID and Inception Score against the speed-up or the budget, of several methods and backbones, dense marked.

    rti figure fid runs/dense runs/r193 runs/r130 "token skip=runs/skip" "token skip=runs/deep" --against tokens
    """,
)
steps = _of_runs(
    "steps",
    "geneval,clip,pick,imagereward,fid",
    "seconds",
    """Fewer steps or fewer tokens: each score against the seconds a picture takes, a line per budget.

    rti figure steps runs/dense-6 runs/dense-20 runs/dense-39 runs/r256-16 runs/r256-50 runs/r256-100
    """,
)


def redundancy(
    data: list[Path] = typer.Argument(help="Folders of rti probe redundancy, or the JSON files it wrote there."),
    names: str = typer.Option(None, help="Of several: what to call them, separated by commas. Default: their folders."),
    output: Path = typer.Option(None, "--output", "-o", help=OUTPUT_HELP),
    json: bool = JSON,
) -> None:
    """Where tokens are redundant: in space, over sampling, and through the depth.

    Of several models their profiles over the relative depth, a panel for each
    size of picture: rti figure redundancy probes/b16 probes/l16 -o depth.png
    """
    from rti.lab.probes.figures import profiles, profiles_figure, redundancy_figure
    from rti.lab.probes.records import read_data

    if len(data) == 1:
        values = read_data(data[0], "redundancy")
        output = output or (data[0] if data[0].is_dir() else data[0].parent) / "redundancy.png"
        _check(output)
        _write(redundancy_figure(values), values, output, json)
        return
    titles = names.split(",") if names else [(path if path.is_dir() else path.parent).name for path in data]
    if len(titles) != len(data) or len(set(titles)) < len(titles):
        raise InputError(f"names {', '.join(titles)} for {len(data)} models; give --names, a different one each")
    output = output or Path("profiles.png")
    _check(output)
    if output.with_suffix(".json") in (path / "redundancy.json" if path.is_dir() else path for path in data):
        raise InputError(f"{output} would replace the data of a model; give another --output")
    found = profiles({title: read_data(path, "redundancy") for title, path in zip(titles, data, strict=True)})
    _write(profiles_figure(found), {"figure": "profiles", "profiles": found}, output, json)


def walks(
    grid: str = typer.Option("8,8", help="Rows and columns of patches."),
    first: int = typer.Option(12, help="Where along the order the shaded run begins, counted from 0."),
    length: int = typer.Option(8, help="How many patches it has."),
    output: Path = typer.Option("walks.png", "--output", "-o", help=OUTPUT_HELP),
    json: bool = JSON,
) -> None:
    """The three orders as walks over a small grid, the same run of positions shaded in each. No model needed."""
    from rti.lab.probes.figures import walks as find
    from rti.lab.probes.figures import walks_figure

    sides = whole_numbers(grid, "grid")
    if len(sides) != 2:
        raise InputError(f"grid {grid!r} is not usable; allowed: rows and columns, such as 8,8")
    _check(output)
    found = find((sides[0], sides[1]), first, length)
    _write(
        walks_figure(found, first, length), {"figure": "walks", "run": [first, length], "orders": found}, output, json
    )
