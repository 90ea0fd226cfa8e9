"""`rti figure`: the paper's figures, from what `rti probe` measured, and of pictures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.models import DEVICE_HELP, MODEL_HELP, load_pipeline
from rti.cli.options import budget_option, command, guidance_option, number_option, seed_option, steps_option
from rti.cli.output import say, show_json, whole_numbers
from rti.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rti.lab.probes.gallery import Drawing
    from rti.pipeline import Pipeline

figures = typer.Typer(
    no_args_is_help=True,
    help="Draw a figure as PNG and SVG, its data beside it as JSON. "
    "For example: rti figure redundancy probes; rti figure gallery scenes 'a red star' --budgets 128,64",
)

DATA = typer.Argument(help="Folder of rti probe, or the JSON file it wrote there.")
OUTPUT_HELP = "Where to write the PNG; the SVG and the data go beside it."
PAPER = typer.Option(False, "--paper", help="Draw the paper's values of MiniT2I-B/16 beside it.")
TRAINED = typer.Option(None, help="A further method: NAME=FOLDER of its adapter. May be repeated.")
JSON = typer.Option(False, "--json", help="Print one JSON line at the end.")


@dataclass(frozen=True)
class Pictures:
    """What every figure of pictures is told."""

    model: str = typer.Argument(help=MODEL_HELP)
    subjects: list[str] = typer.Argument(help="Prompts, or labels for a class-conditional model.")
    seed: int = seed_option(0, help="Seed of the pictures' noise.")
    steps: int = steps_option(None)
    guidance: float = guidance_option()
    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model.")
    device: str = typer.Option("auto", help=DEVICE_HELP)
    json: bool = JSON

    def open(self) -> tuple[Pipeline, list[Any], Drawing]:
        """The model, what to draw, and how."""
        from rti.lab.probes.gallery import Drawing

        pipe = load_pipeline(self.model, self.adapter, device=self.device)
        subjects = self.subjects
        if pipe.backbone.conditioned_on == "labels":
            subjects = [number for text in subjects for number in whole_numbers(text, "labels")]
        return pipe, subjects, Drawing(self.seed, self.steps, self.guidance)

    def write(self, figure: Figure, data: dict[str, Any], output: Path) -> None:
        _write(figure, data | {"model": self.model}, output, self.json)


def _from_data(name: str, text: str) -> Any:
    """A command that draws what a probe left."""

    def command(
        data: Path = DATA,
        output: Path = typer.Option(None, "--output", "-o", help=OUTPUT_HELP),
        paper: bool = PAPER,
        json: bool = JSON,
    ) -> None:
        from rti.lab.probes import figures as drawn
        from rti.lab.probes.records import read_data

        values = read_data(data, name)
        output = output or (data if os.path.isdir(data) else data.parent) / f"{name}.png"
        _check(output)
        _write(getattr(drawn, f"{name}_figure")(values, paper), values, output, json)

    command.__doc__ = text
    return command


for _name, _text in {
    "groupings": "Spread, size-detail and retained variance of every reduction.",
    "orders": "The three orders: what they retain, and how compact their regions are.",
    "routing": "Where a trained partition puts its regions while a picture forms.",
}.items():
    figures.command(_name)(_from_data(_name, _text))


@figures.command()
def lorenz(
    data: list[Path] = typer.Argument(
        help="JSON files of rti probe redundancy, or folders of rti probe lorenz; a curve each."
    ),
    names: str = typer.Option(None, help="What to call the curves, separated by commas. Default: the files' names."),
    output: Path = typer.Option("lorenz.png", "--output", "-o", help=OUTPUT_HELP),
    paper: bool = PAPER,
    json: bool = JSON,
) -> None:
    """How unevenly detail lies, in the pictures a model draws and in photographs."""
    from rti.files import read_json
    from rti.lab.probes.figures import lorenz_figure

    titles = names.split(",") if names else [f"{path.parent.name}/{path.stem}" for path in data]
    if len(titles) != len(data):
        raise InputError(f"{len(titles)} names for {len(data)} curves; give one each")
    _check(output)
    curves = {}
    for title, path in zip(titles, data, strict=True):
        values = read_json(path / "lorenz.json" if os.path.isdir(path) else path)
        curve = values["lorenz"].get("share_of_detail") if isinstance(values.get("lorenz"), dict) else None
        if curve is None:
            raise InputError(f"{path} has no Lorenz curve; allowed: what rti probe redundancy or lorenz writes")
        curves[title] = curve
    _write(lorenz_figure(curves, paper), {"figure": "lorenz", "curves": curves}, output, json)


@figures.command()
@command
def gallery(
    pictures: Pictures,
    budgets: str = budget_option("0.5,0.25,0.125", help="Budgets, a row each, below the dense one."),
    trained: list[str] = TRAINED,
    output: Path = typer.Option("gallery.png", "--output", "-o", help=OUTPUT_HELP),
) -> None:
    """The budget sweep: a dense row, then every budget, the same prompts and noise, for one method or several."""
    from rti.lab.probes.gallery import gallery as draw
    from rti.method.budgets import parse_budget

    _check(output)
    wanted = [parse_budget(text) for text in budgets.split(",")]
    pipe, subjects, drawing = pictures.open()
    pipes = ({pipe.elastic.config.name: pipe} if pipe.elastic else {}) | _pipelines(trained, pictures.device)
    if not pipes:
        advice = "give --adapter FOLDER or --trained NAME=FOLDER"
        raise InputError(f"{pictures.model} has no adapter, so it has no budget; {advice}")
    pictures.write(*draw(pipes, subjects, wanted, drawing), output)


@figures.command()
@command
def overlay(
    pictures: Pictures,
    budget: str = budget_option("0.25", help="How many regions: 64, 0.25, 25%."),
    moments: int = number_option(2, help="How many moments of sampling; two are early and late."),
    output: Path = typer.Option("overlay.png", "--output", "-o", help=OUTPUT_HELP),
) -> None:
    """The regions an adapter uses along sampling, drawn on the picture as it forms."""
    from rti.lab.probes.gallery import overlay as draw
    from rti.method.budgets import parse_budget

    _check(output)
    pipe, subjects, drawing = pictures.open()
    pictures.write(*draw(pipe, subjects, parse_budget(budget), moments, drawing), output)


@figures.command()
@command
def methods(
    pictures: Pictures,
    budget: str = budget_option("0.25", help="How many groups: 64, 0.25, 25%."),
    trained: list[str] = TRAINED,
    core: str = typer.Option(None, help="First and last block of the core. Default: the adapter's, or the paper's."),
    output: Path = typer.Option("methods.png", "--output", "-o", help=OUTPUT_HELP),
) -> None:
    """Methods side by side, their groups tinted: every reduction there is, fresh, on the frozen model's tokens.

    With --trained those methods alone, and below the groups of each its picture.
    """
    from rti.cli.probe import core_of, pair
    from rti.lab.probes.gallery import methods as draw
    from rti.lab.probes.groupings import grouping_rows
    from rti.method.budgets import parse_budget

    _check(output)
    pipe, subjects, drawing = pictures.open()
    span = core_of(pictures.model, None, pipe, core)
    rows = grouping_rows(pipe.backbone, span, dict(pair(text) for text in trained or ()))
    pipes = _pipelines(trained, pictures.device)
    rows = [row for row in rows if row.trained] if pipes else rows
    pictures.write(*draw(pipe, rows, span, subjects, parse_budget(budget), drawing, pipes), output)


def _pipelines(trained: list[str] | None, device: str) -> dict[str, Pipeline]:
    """Each with a backbone of its own, since an adapter changes it."""
    from rti.adapter import adapter_folder
    from rti.cli.probe import pair

    pipes = {}
    for text in trained or ():
        name, folder = pair(text)
        if adapter_folder(folder) is None:
            raise InputError(f"{folder} holds no adapter")
        pipes[name] = load_pipeline(str(folder), device=device)
    return pipes


def _check(output: Path) -> None:
    from rti.images import check_output

    if output.suffix.lower() != ".png":
        raise InputError(f"cannot write {output}: the name must end in .png; the SVG and the data go beside it")
    check_output(output)


def _write(figure: Figure, values: dict[str, Any], output: Path, json: bool) -> None:
    from rti.lab.plots import save_both
    from rti.lab.probes.records import write_data

    paths = save_both(figure, output)
    data = output.with_suffix(".json")
    write_data(data, values)
    say(", ".join(str(path) for path in (*paths, data)))
    if json:
        show_json({"output": str(paths[0]), "svg": str(paths[1]), "data": str(data)})
