"""`rti eval`: how good the pictures are, at each budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from rti.cli.generate import Drawing
from rti.cli.options import (
    MODEL,
    TEXT_BUDGET,
    Runtime,
    budget_option,
    command,
    number_option,
    seed_option,
    usual_budgets,
)
from rti.cli.output import say, show_table
from rti.method.budgets import parse_budget

evaluations = typer.Typer(
    no_args_is_help=True,
    help="Measure how good a model's pictures are, at each budget. "
    "For example: rti eval scenes MODEL --budget dense,64 --images 240",
)
BUDGETS = budget_option(None, help="Budgets, one row each: dense,128,0.25. Default: dense, and 0.25 with an adapter.")


@evaluations.command()
@command
def scenes(
    runtime: Runtime,
    drawing: Drawing,
    model: str = MODEL,
    budget: str = BUDGETS,
    images: int = number_option(
        240, "--images", "--count", help="Pictures per budget, from six tasks in turn; at least 6.", least=6
    ),
    seed: int = seed_option(0, help="Seed of the prompts and of each picture's noise."),
    split: str = typer.Option(
        "train", help="Prompts: train (combinations seen in training), held-out (never seen), all (both)."
    ),
    output: Path = typer.Option(
        None, "--output", "-o", help="Folder for the pictures, and results.json with all verdicts."
    ),
) -> dict[str, Any]:
    """SceneEval: GenEval's protocol on the scenes world, judged exactly.

    Draws captions of six tasks (single object, two objects, counting, colors,
    position, color attribution) at each budget and prints the share of right
    pictures, overall as the mean of the tasks, with 95 % intervals. "dense" is
    the frozen backbone without the adapter.

    All budgets draw the same prompts from the same noise, so their differences
    to dense are paired: sharper than the intervals of the rows.

    With an --output, the same command goes on after an interruption: each budget
    has a folder there, as of rti generate. Several commands, one for each budget,
    may draw into one --output; one more with all budgets then puts them together.
    """
    from rti.lab.evaluation.scenes import evaluate_scenes, save_results

    pipe, settings = runtime.load(model), drawing.settings()
    names = {"model": model, "adapter": runtime.adapter}
    budgets = usual_budgets(budget, pipe)
    results = evaluate_scenes(pipe, budgets, images, seed, split, output, drawing.batch, names, **settings)
    rows = [result.row for result in results]
    how = {name: rows[0]["how"][name] for name in ("seed", "split", "steps", "guidance")}
    values = rows[0] | names | settings | how | {"rows": rows}
    _show(values)
    if output is not None:
        save_results(output, values, results)
        say(f"{output}: pictures with verdicts, and results.json")
    return values


def _show(values: dict[str, Any]) -> None:
    """A row per budget: accuracy in percent, its 95 % interval beneath; and what each budget loses against dense."""
    rows, changes = [], []
    for row in values["rows"]:
        cells = [(row["overall"], row["interval"])]
        cells += [(row["tasks"][task], interval) for task, interval in row["task_intervals"].items()]
        shown = [f"{100 * value:.1f}\n{100 * low:.0f}–{100 * high:.0f}" for value, (low, high) in cells]
        rows.append([str(row["budget"]), *shown])
        if (change := row.get("difference_to_dense")) is not None:
            interval = [100 * side for side in change["interval"] or ()]
            between = "{:+.1f} to {:+.1f}".format(*interval) if interval else "none: no two differ"
            near = [f"{row['fidelity'][name]['score']:.{digits}f}" for name, digits in (("psnr", 2), ("ssim", 3))]
            changes.append((str(row["budget"]), f"{100 * change['overall']:+.1f}", between, *near))
    title = "SceneEval of {model}: % right and 95 % interval\n"
    title += "{images} pictures a row ({split}), seed {seed}, {steps} steps, guidance {guidance}"
    columns = ["budget", "overall", *(task.replace("_", "\n") for task in values["tasks"])]
    show_table(title.format(**values), columns, rows)
    if changes:
        heads = ("budget", "points", "95 % interval", "PSNR to dense, dB", "SSIM")
        show_table("Overall minus dense, paired; and how near the pictures are to it", heads, changes)


@evaluations.command()
@command
def loss(
    runtime: Runtime,
    model: str = MODEL,
    data: str = typer.Option(..., help="As of rti train; pictures the model was not trained on. scenes: by the seed."),
    budget: str = BUDGETS,
    examples: int = number_option(256, help="Pictures, the same ones at every budget."),
    seed: int = seed_option(7, help="Seed of the pictures' order, times and noise."),
    text_budget: str = TEXT_BUDGET,
    batch: int = number_option(32, help="Pictures at a time; it does not change the loss."),
    output: Path = typer.Option(None, "--output", "-o", help="JSON file for the loss and time of every example."),
) -> dict[str, Any]:
    """The velocity loss at each budget, as in training, and by how much it is above that of the frozen backbone.

    All budgets see the same pictures, times and noise, so the differences are
    paired. It tells apart what accuracy needs many more pictures to tell apart.
    """
    from rti.data import open_data
    from rti.files import write_whole
    from rti.lab.evaluation.loss import evaluate_loss

    pipe = runtime.load(model)
    source = open_data(data, pipe.backbone.image_size, seed=seed, kind=pipe.backbone.conditioned_on)
    how = dict(examples=examples, seed=seed, text_budget=parse_budget(text_budget), batch=batch)
    results = evaluate_loss(pipe, source, usual_budgets(budget, pipe), **how)
    if output is not None:
        every = {str(result.row["budget"]): result.losses.tolist() for result in results}
        write_whole(output, json.dumps({"times": results[0].times.tolist(), "losses": every}) + "\n")
    rows = [result.row for result in results]
    cells = []
    for row in rows:
        change, interval = row.get("difference_to_dense"), row.get("difference_interval")
        between = "{:+.4f} to {:+.4f}".format(*interval) if interval else ""
        cells.append([str(row["budget"]), f"{row['loss']:.4f}", "" if change is None else f"{change:+.4f}", between])
    title = f"Velocity loss of {model} on {examples} examples of {data}, seed {seed}"
    show_table(title, ("budget", "loss", "minus dense, paired", "95 % interval"), cells)
    return rows[0] | {"model": model, "data": data} | how | {"rows": rows}
