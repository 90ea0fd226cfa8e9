"""`rti probe`: where a model's tokens are redundant, and what each grouping makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.options import GUIDANCE, MODEL, Loading, budget_option, command, number_option, seed_option, steps_option
from rti.cli.output import say, show_table, span
from rti.errors import InputError
from rti.method.budgets import parse_budget, parse_budgets

if TYPE_CHECKING:
    from rti.lab.probes.trajectory import Run
    from rti.pipeline import Pipeline

probes = typer.Typer(
    no_args_is_help=True,
    help="Measure where a model's tokens are redundant, by hooks on its blocks while it samples. "
    "For example: rti probe redundancy scenes --prompts 16",
)

PROMPTS_HELP = "How many prompts (or labels, of a class-conditional model)."
WATCHED_HELP = "How many of the steps are watched, spread along the trajectory."
BUDGET = budget_option("0.25", help="How many groups: 256, 0.25, 25%.")
CORE = typer.Option(None, help="First and last block of the core. Default: the adapter's, or the paper's.")


@dataclass(frozen=True)
class Probe(Loading):
    """What every probe of a model is told."""

    model: str = MODEL
    output: Path = typer.Option("probes", "--output", "-o", help="Folder for the data.")
    prompt_file: Path = typer.Option(
        None, help="Text file of prompts, one a line. Default: the scenes world, or templates."
    )
    seed: int = seed_option(7, help="Seed of the prompts and of each picture's noise.")
    steps: int = steps_option(30, help="Sampling steps.")
    guidance: float = GUIDANCE
    batch: int = number_option(8, help="Pictures at a time; it does not change the result.")
    init: str = typer.Option(None, help="'random': random weights instead of a checkpoint, to try out the commands.")

    def open(self, prompts: int, watched: int, core: str | None = None) -> tuple[Run, tuple[int, int]]:
        """The model with how it is run, and its core."""
        from rti.lab.probes.subjects import subjects_of
        from rti.lab.probes.trajectory import Run

        pipe = self.load(self.model, self.init)
        subjects = subjects_of(pipe, prompts, self.seed, self.prompt_file)
        run = Run(pipe, subjects, self.seed, self.steps, self.guidance, watched, self.batch)
        return run, core_of(pipe, core)

    def end(self, values: dict[str, Any]) -> dict[str, Any]:
        name = values["probe"]
        say(f"{self.output / name}.json: the data; rti figure {name} {self.output} draws it")
        return values


@probes.command()
@command
def redundancy(
    probe: Probe,
    prompts: int = number_option(128, help=PROMPTS_HELP),
    watched: int = number_option(8, help=WATCHED_HELP),
    budget: str = BUDGET,
    cuts: str = typer.Option("gaps", help="The rule that cuts by content: gaps (the paper's) or merge (ours)."),
    core: str = CORE,
) -> dict[str, Any]:
    """How much of every block's representation survives pooling, on the frozen model, and a core span from that.

    Cuts by content, evenly spaced cuts and skipping at one budget; and the
    Lorenz curve of detail in the pictures drawn.
    """
    from rti.lab.probes.redundancy import KINDS, probe_redundancy

    run, core_span = probe.open(prompts, watched, core)
    values = probe_redundancy(run, probe.output, core_span, parse_budget(budget), cuts)
    title = f"Variance retained at {values['budget']} of {values['patches']}, {values['prompts']} prompts, by block"
    blocks = zip(*(values["by_block"][kind] for kind in KINDS), strict=True)
    show_table(title, ("block", *KINDS), [(str(block), *row) for block, row in enumerate(blocks)])
    by_step = zip(values["times"], *(values["by_step"][kind] for kind in KINDS), strict=True)
    title = f"At block {values['middle_block']}, by time (0 noise, 1 image)"
    show_table(title, ("time", *KINDS), [(f"{time:.2f}", *row) for time, *row in by_step])
    top, half = (f"{100 * values['lorenz'][name]:.0f} %" for name in ("in_top_15_percent", "in_top_half"))
    say(f"Detail of the pictures: the most detailed 15 % of patches hold {top}, half of them {half}")
    say("Proposed core: blocks {} to {}: ".format(*values["proposed_core"]) + values["why"])
    return probe.end(values)


@probes.command()
@command
def groupings(
    probe: Probe,
    prompts: int = number_option(64, help=PROMPTS_HELP),
    watched: int = number_option(4, help=WATCHED_HELP),
    budget: str = BUDGET,
    core: str = CORE,
    trained: list[str] = typer.Option(
        None, help="An adapter whose reduction is a row too, with its trained weights: NAME=FOLDER. May be repeated."
    ),
) -> dict[str, Any]:
    """Spread, size-detail correlation and retained variance of every reduction, on the same frozen features.

    A reduction that learns how it groups has a row with fresh weights, which
    says little; give its adapter as --trained NAME=FOLDER.
    """
    from rti.lab.probes.groupings import grouping_rows, probe_groupings

    run, core_span = probe.open(prompts, watched, core)
    rows = grouping_rows(run.pipe.backbone, core_span, pairs(trained))
    values = probe_groupings(run, probe.output, rows, core_span, parse_budget(budget))
    _show_rows(values, ("spread", "size_detail", "retained"), "Groupings")
    return probe.end(values)


@probes.command()
@command
def orders(
    probe: Probe,
    prompts: int = number_option(64, help=PROMPTS_HELP),
    watched: int = number_option(4, help=WATCHED_HELP),
    budget: str = BUDGET,
    cuts: str = typer.Option("gaps", help="The rule on each order: gaps (the paper's), merge (ours) or fixed."),
    core: str = CORE,
) -> dict[str, Any]:
    """The Hilbert, Morton and raster orders: what a partition of each retains, and how compact its regions are."""
    from rti.lab.probes.groupings import order_rows, probe_groupings

    run, core_span = probe.open(prompts, watched, core)
    rows = order_rows(run.pipe.backbone, core_span, cuts)
    values = probe_groupings(run, probe.output, rows, core_span, parse_budget(budget), name="orders")
    _show_rows(values, ("retained", "spread_per_patch", "spread"), f"Orders, cut by {cuts}")
    return probe.end(values)


@probes.command()
@command
def routing(
    probe: Probe,
    prompts: int = number_option(48, help=PROMPTS_HELP),
    watched: int = number_option(10, help=WATCHED_HELP),
    budgets: str = budget_option("0.5,0.25,0.125,0.0625", help="Budgets, such as 512,256,0.125."),
) -> dict[str, Any]:
    """Where the partition of a trained adapter spends its tokens while a picture forms, at several budgets.

    Fine regions have one patch, coarse ones 16 or more. The detail ratio is 1
    where fine regions are placed by chance.
    """
    from rti.lab.probes.routing import probe_routing

    wanted = parse_budgets(budgets)
    values = probe_routing(probe.open(prompts, watched)[0], probe.output, wanted)
    cells = []
    for row in values["rows"]:
        ratios = [_number(row["detail_ratio"][place]) for place in (0, -1)]
        entropies = [f"{row['entropy'][place]:.2f}" for place in (0, -1)]
        cells.append([row["budget"], *ratios, row["size_detail_middle"], *entropies])
    titles = ("budget", "detail ratio early", "late", "size-detail, mid", "entropy early, bits", "late")
    show_table(f"Routing of {probe.model}, {values['prompts']} prompts, steps {values['watched']}", titles, cells)
    return probe.end(values)


def core_of(pipe: Pipeline, typed: str | None) -> tuple[int, int]:
    """The core as typed, or the adapter's, or the paper's."""
    from rti.loading import usual_core

    if typed is not None:
        return span(typed)
    if pipe.elastic is not None:
        return pipe.elastic.config.core
    return usual_core(pipe.backbone)


def pairs(typed: list[str] | None) -> dict[str, Path]:
    """Methods and their adapters as typed: NAME=FOLDER each."""
    found = {}
    for text in typed or ():
        name, _, folder = text.partition("=")
        if not name or not folder:
            raise InputError(f"--trained {text!r} is not usable; allowed: NAME=FOLDER of an adapter")
        found[name] = Path(folder)
    return found


_TITLES = {"spread": "spread, cells", "spread_per_patch": "spread per patch, cells"}
_TITLES |= {"size_detail": "size-detail, mid-trajectory", "retained": "retained"}


def _show_rows(values: dict[str, Any], names: tuple[str, ...], title: str) -> None:
    cells = [[row["name"], *(_number(row[name], row[f"{name}_error"]) for name in names)] for row in values["rows"]]
    where = "blocks {} to {}".format(*values["core"])
    title += f" at {values['budget']} of {values['patches']}, {where}, {values['prompts']} prompts (± standard error)"
    show_table(title, ("", *(_TITLES[name] for name in names)), cells)
    soft = [row["name"] for row in values["rows"] if row["spread"] is not None and row["spread_per_patch"] is None]
    if fresh := [name for name in soft if not values["reductions"][name]["trained"]]:
        say(f"{', '.join(fresh)}: read by fresh weights, which says little; give --trained NAME=FOLDER")


def _number(value: float | None, error: float | None = None) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
