"""`rti figure`: what every figure shares, and the figures of pictures: `gallery`, `overlay` and `methods`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.options import GUIDANCE, MODEL, Loading, budget_option, command, number_option, seed_option, steps_option
from rti.cli.output import say, whole_numbers
from rti.cli.probe import CORE, core_of, pairs
from rti.errors import InputError
from rti.method.budgets import parse_budget, parse_budgets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rti.lab.probes.trajectory import Run
    from rti.pipeline import Pipeline

figures = typer.Typer(
    no_args_is_help=True,
    help="Draw a figure as PNG and SVG, its data beside it as JSON. "
    "For example: rti figure redundancy probes; rti figure gallery scenes 'a red star' --budgets 128,64",
)

OUTPUT_HELP = "Where to write the PNG; the SVG and the data go beside it."
TRAINED = typer.Option(None, help="A further method: NAME=FOLDER of its adapter. May be repeated.")


@dataclass(frozen=True)
class Pictures(Loading):
    """What every figure of pictures is told."""

    model: str = MODEL
    subjects: list[str] = typer.Argument(help="Prompts, or labels for a class-conditional model.")
    seed: int = seed_option(0, help="Seed of the pictures' noise.")
    steps: int = steps_option(None)
    guidance: float = GUIDANCE

    def open(self, output: Path, moments: int = 1) -> Run:
        """The model, what to draw, and how; the steps to watch are so many."""
        from rti.lab.probes.trajectory import Run

        check_png(output)
        pipe, subjects = self.load(self.model), self.subjects
        if pipe.backbone.conditioned_on == "labels":
            subjects = [number for text in subjects for number in whole_numbers(text, "labels")]
        steps = pipe.backbone.flow.steps if self.steps is None else self.steps
        return Run(pipe, subjects, self.seed, steps, self.guidance, moments)

    def trained(self, typed: list[str] | None) -> dict[str, Pipeline]:
        """Each with a backbone of its own, since an adapter changes it."""
        from rti.adapter import adapter_folder

        folders = pairs(typed)
        for folder in folders.values():
            if adapter_folder(folder) is None:
                raise InputError(f"{folder} holds no adapter")
        loading = Loading(None, None, None, self.device, self.dtype)
        return {name: loading.load(str(folder)) for name, folder in folders.items()}

    def write(self, figure: Figure, data: dict[str, Any], output: Path) -> dict[str, Any]:
        return write_figure(figure, data | {"model": self.model}, output)


@figures.command()
@command
def gallery(
    pictures: Pictures,
    budgets: str = budget_option("0.5,0.25,0.125", help="Budgets, a row each, below the dense one."),
    trained: list[str] = TRAINED,
    output: Path = typer.Option("gallery.png", "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """The budget sweep: a dense row, then every budget, the same prompts and noise, for one method or several."""
    from rti.lab.probes.gallery import gallery as draw

    wanted = parse_budgets(budgets)
    run = pictures.open(output)
    own = {run.pipe.elastic.config.name: run.pipe} if run.pipe.elastic else {}
    return pictures.write(*draw(run, own | pictures.trained(trained), wanted), output)


@figures.command()
@command
def overlay(
    pictures: Pictures,
    budget: str = budget_option("0.25", help="How many regions: 64, 0.25, 25%."),
    moments: int = number_option(2, help="How many moments of sampling; two are early and late."),
    output: Path = typer.Option("overlay.png", "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """The regions an adapter uses along sampling, drawn on the picture as it forms."""
    from rti.lab.probes.gallery import overlay as draw

    return pictures.write(*draw(pictures.open(output, moments), parse_budget(budget)), output)


@figures.command()
@command
def methods(
    pictures: Pictures,
    budget: str = budget_option("0.25", help="How many groups: 64, 0.25, 25%."),
    trained: list[str] = TRAINED,
    core: str = CORE,
    output: Path = typer.Option("methods.png", "--output", "-o", help=OUTPUT_HELP),
) -> dict[str, Any]:
    """Methods side by side, their groups tinted: every reduction there is, fresh, on the frozen model's tokens.

    With --trained those methods alone, and below the groups of each its picture.
    """
    from rti.lab.probes.gallery import methods as draw
    from rti.lab.probes.groupings import grouping_rows

    run = pictures.open(output, moments=3)
    span = core_of(run.pipe, core)
    rows = grouping_rows(run.pipe.backbone, span, pairs(trained))
    rows = [row for row in rows if row.trained] if trained else rows
    return pictures.write(*draw(run, rows, span, parse_budget(budget), pictures.trained(trained)), output)


def check_png(output: Path) -> None:
    from rti.images import check_output

    if output.suffix.lower() != ".png":
        raise InputError(f"cannot write {output}: the name must end in .png; the SVG and the data go beside it")
    check_output(output)


def write_figure(figure: Figure, values: dict[str, Any], output: Path) -> dict[str, Any]:
    from rti.lab.plots import save_both
    from rti.lab.probes.records import write_data

    paths = [*save_both(figure, output), output.with_suffix(".json")]
    write_data(paths[-1], values)
    say(", ".join(map(str, paths)))
    return dict(zip(("output", "svg", "data"), map(str, paths), strict=True))
