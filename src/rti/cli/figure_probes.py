"""`rti figure` of what `rti probe` measured: `redundancy`, `groupings`, `orders`, `routing`, `lorenz`; and `walks`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from rti.cli.figure import OUTPUT_HELP, check_png, figures, write_figure
from rti.cli.options import command
from rti.cli.output import whole_numbers
from rti.errors import InputError


def _of_probe(name: str, text: str) -> Callable[..., dict[str, Any]]:
    """A command that draws what a probe left."""

    def draw(
        data: Path = typer.Argument(help="Folder of rti probe, or the JSON file it wrote there."),
        output: Path = typer.Option(None, "--output", "-o", help=OUTPUT_HELP),
    ) -> dict[str, Any]:
        from rti.lab.probes import figures as drawn
        from rti.lab.probes.records import read_data

        values = read_data(data, name)
        file = output or (data if os.path.isdir(data) else data.parent) / f"{name}.png"
        check_png(file)
        return write_figure(getattr(drawn, f"{name}_figure")(values), values, file)

    draw.__doc__ = text
    return draw


for _name, _text in {
    "groupings": "Spread, size-detail and retained variance of every reduction.",
    "orders": "The three orders: what they retain, and how compact their regions are.",
    "routing": "Where a trained partition puts its regions while a picture forms.",
}.items():
    figures.command(_name)(command(_of_probe(_name, _text)))


@figures.command()
@command
def lorenz(
    data: list[Path] = typer.Argument(
        help="JSON files of rti probe redundancy, or folders of rti probe lorenz; a curve each."
    ),
    names: str = typer.Option(None, help="What to call the curves, separated by commas. Default: the files' names."),
    output: Path = typer.Option("lorenz.png", "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """How unevenly detail lies, in the pictures a model draws and in photographs."""
    from rti.files import read_json
    from rti.lab.probes.figures import lorenz_figure

    titles = names.split(",") if names else [f"{path.parent.name}/{path.stem}" for path in data]
    if len(titles) != len(data):
        raise InputError(f"{len(titles)} names for {len(data)} curves; give one each")
    check_png(output)
    curves = {}
    for title, path in zip(titles, data, strict=True):
        found = read_json(path / "lorenz.json" if os.path.isdir(path) else path).get("lorenz")
        if not isinstance(found, dict) or "share_of_detail" not in found:
            raise InputError(f"{path} has no Lorenz curve; allowed: what rti probe redundancy or lorenz writes")
        curves[title] = found["share_of_detail"]
    return write_figure(lorenz_figure(curves), {"figure": "lorenz", "curves": curves}, output)


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
        check_png(output)
        return write_figure(redundancy_figure(values), values, output)
    titles = names.split(",") if names else [(path if path.is_dir() else path.parent).name for path in data]
    if len(titles) != len(data) or len(set(titles)) < len(titles):
        raise InputError(f"names {', '.join(titles)} for {len(data)} models; give --names, a different one each")
    output = output or Path("profiles.png")
    check_png(output)
    if output.with_suffix(".json") in (path / "redundancy.json" if path.is_dir() else path for path in data):
        raise InputError(f"{output} would replace the data of a model; give another --output")
    found = profiles({title: read_data(path, "redundancy") for title, path in zip(titles, data, strict=True)})
    return write_figure(profiles_figure(found), {"figure": "profiles", "profiles": found}, output)


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
    check_png(output)
    found = find((sides[0], sides[1]), first, length)
    values = {"figure": "walks", "run": [first, length], "orders": found}
    return write_figure(walks_figure(found, first, length), values, output)
