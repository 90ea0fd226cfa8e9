"""`rti figure` of data that is there: of `rti probe`, of the orders (`walks`), and of scored runs (`frontier`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from rti.cli.figure import OUTPUT_HELP, check_png, figures, write_figure
from rti.cli.options import command
from rti.errors import InputError


def _draw(name: str, data: Path, output: Path | None) -> dict[str, Any]:
    """Draw what a probe left, beside it unless told where."""
    from rti.lab.probes import figures as drawn
    from rti.lab.probes.records import read_data

    values = read_data(data, name)
    output = output or _folder(data) / f"{name}.png"
    check_png(output)
    return write_figure(getattr(drawn, f"{name}_figure")(values), values, output)


def _folder(data: Path) -> Path:
    return data if os.path.isdir(data) else data.parent


def _of_probe(name: str) -> Callable[..., dict[str, Any]]:
    def draw(
        data: Path = typer.Argument(help="Folder of rti probe, or the JSON file it wrote there."),
        output: Path = typer.Option(None, "--output", "-o", help=OUTPUT_HELP),
    ) -> dict[str, Any]:
        return _draw(name, data, output)

    return draw


for _name, _text in {
    "groupings": "Spread, size-detail and retained variance of every reduction.",
    "orders": "The three orders: what they retain, and how compact their regions are.",
    "routing": "Where a trained partition puts its regions while a picture forms.",
}.items():
    figures.command(_name, help=_text)(command(_of_probe(_name)))


@figures.command()
@command
def redundancy(
    data: list[Path] = typer.Argument(help="Folders of rti probe redundancy, or the JSON files it wrote there."),
    names: str = typer.Option(None, help="Of several: what to call them, separated by commas. Default: their folders."),
    output: Path = typer.Option(None, "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """Where tokens are redundant: in space, over sampling, and through the depth.

    Of several models their profiles over the relative depth, a panel for each
    size of picture: rti figure redundancy probes/b16 probes/l16 -o depth.png
    """
    from rti.lab.probes.figures import profiles, profiles_figure
    from rti.lab.probes.records import read_data

    if len(data) == 1:
        return _draw("redundancy", data[0], output)
    titles = names.split(",") if names else [_folder(path).name for path in data]
    if len(titles) != len(data) or len(set(titles)) < len(titles):
        raise InputError(f"names {', '.join(titles)} for {len(data)} models; give --names, a different one each")
    output = output or Path("profiles.png")
    check_png(output)
    if output.with_suffix(".json") in (path / "redundancy.json" if os.path.isdir(path) else path for path in data):
        raise InputError(f"{output} would replace the data of a model; give another --output")
    found = profiles({title: read_data(path, "redundancy") for title, path in zip(titles, data, strict=True)})
    return write_figure(profiles_figure(found), {"figure": "profiles", "profiles": found}, output)


@figures.command()
@command
def walks(output: Path = typer.Option("walks.png", "--output", "-o", help=OUTPUT_HELP)) -> dict[str, Any]:
    """The three orders as walks over a small grid, the same run of positions shaded in each. No model needed."""
    from rti.lab.probes import figures as drawn

    check_png(output)
    found = drawn.walks()
    values = {"figure": "walks", "run": [drawn.FIRST, drawn.LENGTH], "orders": found}
    return write_figure(drawn.walks_figure(found), values, output)


@figures.command()
@command
def frontier(
    runs: list[str] = typer.Argument(
        help="Scored folders of rti generate, or folders of those. NAME=FOLDER names its method."
    ),
    against: str = typer.Option(
        "measured",
        help="Against measured speed-ups, those by arithmetic (flops or tokens), budget, or seconds a picture.",
    ),
    metrics: str = typer.Option(
        "geneval,clip,pick,imagereward",
        help="Which scores, a panel each, also fid and is; those that no run has are left out.",
    ),
    output: Path = typer.Option("frontier.png", "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """Each score against the speed-up or the budget, of several methods and backbones, dense marked.

    rti figure frontier runs/dense runs/r512 runs/r256 similarity=runs/s512 similarity=runs/s256

    Every backbone needs its dense run. A method is called by its reduction, or as
    NAME=FOLDER says; runs of one name are joined by a line. Speed-ups are those of
    drawing the pictures; --against flops or tokens has those by arithmetic.
    Fewer steps or fewer tokens, a line per budget through its numbers of steps:

    rti figure frontier runs/dense-6 runs/dense-20 runs/r256-16 runs/r256-50 --against seconds
    """
    from rti.lab.pictures.frontier import frontier_figure
    from rti.lab.pictures.scored_runs import add_speedups, read_runs

    check_png(output)
    rows = add_speedups(read_runs(runs), against)
    figure = frontier_figure(rows, metrics.split(","), against)
    return write_figure(figure, {"figure": "frontier", "against": against, "rows": rows}, output)
