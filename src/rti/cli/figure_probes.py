"""`rti figure redundancy` and `walks`: of one model or several side by side, and of none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rti.cli.figure import OUTPUT_HELP, _check, _write, figures
from rti.cli.options import command
from rti.cli.output import whole_numbers
from rti.errors import InputError


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
    from rti.lab.probes.figures import profiles, profiles_figure, redundancy_figure
    from rti.lab.probes.records import read_data

    if len(data) == 1:
        values = read_data(data[0], "redundancy")
        output = output or (data[0] if data[0].is_dir() else data[0].parent) / "redundancy.png"
        _check(output)
        return _write(redundancy_figure(values), values, output)
    titles = names.split(",") if names else [(path if path.is_dir() else path.parent).name for path in data]
    if len(titles) != len(data) or len(set(titles)) < len(titles):
        raise InputError(f"names {', '.join(titles)} for {len(data)} models; give --names, a different one each")
    output = output or Path("profiles.png")
    _check(output)
    if output.with_suffix(".json") in (path / "redundancy.json" if path.is_dir() else path for path in data):
        raise InputError(f"{output} would replace the data of a model; give another --output")
    found = profiles({title: read_data(path, "redundancy") for title, path in zip(titles, data, strict=True)})
    return _write(profiles_figure(found), {"figure": "profiles", "profiles": found}, output)


@figures.command()
@command
def walks(
    grid: str = typer.Option("8,8", help="Rows and columns of patches."),
    first: int = typer.Option(12, help="Where along the order the shaded run begins, counted from 0."),
    length: int = typer.Option(8, help="How many patches it has."),
    output: Path = typer.Option("walks.png", "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """The three orders as walks over a small grid, the same run of positions shaded in each. No model needed."""
    from rti.lab.probes.figures import walks as find
    from rti.lab.probes.figures import walks_figure

    sides = whole_numbers(grid, "grid")
    if len(sides) != 2:
        raise InputError(f"grid {grid!r} is not usable; allowed: rows and columns, such as 8,8")
    _check(output)
    found = find((sides[0], sides[1]), first, length)
    values = {"figure": "walks", "run": [first, length], "orders": found}
    return _write(walks_figure(found, first, length), values, output)
