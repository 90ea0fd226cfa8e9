"""`rti demo`: one checkpoint at every budget, in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rti.cli.models import DEVICE_HELP, load_pipeline
from rti.cli.options import budget_option, command, number_option, seed_option, steps_option
from rti.cli.output import show_table, whole_numbers
from rti.errors import InputError
from rti.shipped import DEFAULT, find_shipped


@command
def demo(
    output: Path = typer.Option("demo.png", "--output", "-o", help="Where to write the picture."),
    budget: str = budget_option("128,64,32,16", help="Numbers of regions, one row each, below the dense one."),
    steps: int = steps_option(25, help="Sampling steps."),
    seed: int = seed_option(0, help="Seed of the first prompt; the next has the next seed."),
    passes: int = number_option(2, help="How often each row is drawn; its time is the median."),
    device: str = typer.Option("auto", help=DEVICE_HELP),
) -> dict[str, Any]:
    """Draw the same prompts and seeds at several budgets with the model that ships with rti, and time them.

    Nothing is downloaded. The rows take turns, so the speed-ups are those of this
    machine; the share of right pictures was measured when the model was made.
    """
    from rti.images import check_output, save_image
    from rti.lab.demo import PROMPTS, demo_sheet, measured_accuracies, run_demo

    check_output(output)
    budgets = whole_numbers(budget, "budget")
    folder = find_shipped(DEFAULT)
    if folder is None:
        raise InputError(f"the model {DEFAULT!r} is not in this installation of rti")
    pipe = load_pipeline(str(folder / "adapter"), device=device)
    right, images = measured_accuracies(folder)
    rows = run_demo(pipe, budgets, PROMPTS, steps, seed, passes)
    path = save_image(demo_sheet(rows, PROMPTS, pipe.backbone.grid, right), output)
    report, cells = [], []
    for row in rows:
        accuracy = right.get(row.budget)
        entry = {"budget": row.budget or "dense", "seconds": round(row.seconds, 2), "speedup": round(row.speedup, 2)}
        report.append(entry | {"accuracy": accuracy})
        cells.append((*entry.values(), "" if accuracy is None else f"{100 * accuracy:.1f} %"))
    title = f"{path}: {len(PROMPTS)} pictures a row, {steps} steps, medians of {passes} passes in turn"
    if right:
        title += f"\nright: share of {images} pictures of rti eval scenes, measured when the model was made"
    show_table(title, ("budget", "seconds", "speed-up", "right"), cells)
    return {"output": str(path), "model": DEFAULT, "steps": steps, "rows": report}
