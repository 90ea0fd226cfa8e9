"""`rti eval`: how good the pictures are, at each budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rti.cli.models import (
    COMPILE_HELP,
    DEVICE_HELP,
    DTYPE_HELP,
    GUIDANCE_BUDGET_HELP,
    INT8_HELP,
    MODEL_HELP,
    TEXT_BUDGET_HELP,
    load_pipeline,
)
from rti.cli.options import budget_option, guidance_option, number_option, seed_option, steps_option
from rti.cli.output import say, show_json, show_table
from rti.errors import InputError

if TYPE_CHECKING:
    from rti.lab.evaluation.scenes import SceneResult

evaluations = typer.Typer(
    no_args_is_help=True,
    help="Measure how good a model's pictures are, at each budget. "
    "For example: rti eval scenes MODEL --budget dense,64 --images 240",
)


@evaluations.command()
def scenes(
    model: str = typer.Argument(help=MODEL_HELP),
    budget: str = budget_option(
        None, help="Budgets, one row each: dense,128,0.25. Default: dense, and 0.25 with an adapter."
    ),
    images: int = number_option(
        240, "--images", "--count", help="Pictures per budget, from six tasks in turn; at least 6.", least=6
    ),
    seed: int = seed_option(0, help="Seed of the prompts and of each picture's noise."),
    steps: int = steps_option(None),
    guidance: float = guidance_option(),
    guidance_budget: str = typer.Option(None, help=GUIDANCE_BUDGET_HELP),
    text_budget: str = typer.Option(None, help=TEXT_BUDGET_HELP),
    batch: int = number_option(16, help="Pictures at a time; it does not change them."),
    split: str = typer.Option(
        None, help="Prompts: train (combinations seen in training, the default), held-out (never seen), all (both)."
    ),
    held_out: bool = typer.Option(False, "--held-out", help="Short for --split held-out."),
    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model."),
    reuse: list[Path] = typer.Option(
        None, help="An earlier --output: rows it has of the same weights and settings are not drawn again. Repeatable."
    ),
    output: Path = typer.Option(
        None,
        "--output",
        "-o",
        help="Folder for a sheet of the pictures per budget, and results.json with all verdicts.",
    ),
    device: str = typer.Option("auto", help=DEVICE_HELP),
    dtype: str = typer.Option("float32", help=DTYPE_HELP),
    compile: bool = typer.Option(False, "--compile", help=COMPILE_HELP),
    int8: bool = typer.Option(False, "--int8", help=INT8_HELP),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """SceneEval: GenEval's protocol on the scenes world, judged exactly.

    Draws captions of six tasks (single object, two objects, counting, colors,
    position, color attribution) at each budget and prints the share of right
    pictures, overall as the mean of the tasks, with 95 % intervals. "dense" is
    the frozen backbone without the adapter.

    All budgets draw the same prompts from the same noise, so their differences
    to dense are paired: sharper than the intervals of the rows.

    With an --output, the same command goes on after an interruption. Budgets may
    be drawn by several commands, on as many cores or machines, each with an
    --output; one more with --reuse of those puts them together.
    """
    if held_out and split not in (None, "held-out"):
        raise InputError(f"--held-out and --split {split} given; give one of them")

    from rti.lab.evaluation.earlier import Earlier
    from rti.lab.evaluation.scenes import evaluate_scenes
    from rti.lab.evaluation.sheet import check_folder, save_results
    from rti.lab.evaluation.unfinished import Unfinished
    from rti.method.budgets import parse_budget

    earlier, unfinished = Earlier(reuse or ()), Unfinished(output)
    if output is not None:
        check_folder(output)
    given = None if budget is None else [parse_budget(text) for text in budget.split(",")]
    pipe = load_pipeline(model, adapter, dtype, device, compile)
    budgets = given or ([None, 0.25] if pipe.elastic is not None else [None])
    split = split or ("held-out" if held_out else "train")
    beside = {
        "guidance_budget": None if guidance_budget is None else parse_budget(guidance_budget),
        "text_budget": None if text_budget is None else parse_budget(text_budget),
        "int8": int8,
    }
    results = evaluate_scenes(
        pipe,
        None,
        budgets,
        images=images,
        seed=seed,
        split=split,
        steps=steps,
        guidance=guidance,
        batch=batch,
        earlier=earlier,
        unfinished=unfinished,
        **beside,
    )
    flow = pipe.backbone.flow
    rows = [result.as_dict() for result in results]
    values = rows[0] | {
        "model": model,
        "adapter": adapter,
        "seed": seed,
        "split": split,
        "steps": flow.steps if steps is None else steps,
        "guidance": flow.guidance_scale if guidance is None else guidance,
        **beside,
        "rows": rows,
    }
    _show(model, values, results)
    if output is not None:
        save_results(output, values, results)
        unfinished.clear()
        drawn = any(result.images is not None for result in results)
        say(f"{output}: {'pictures with verdicts, and ' if drawn else ''}results.json")
    if json:
        show_json(values)


@evaluations.command()
def loss(
    model: str = typer.Argument(help=MODEL_HELP),
    data: str = typer.Option(..., help="As of rti train; pictures the model was not trained on. scenes: by the seed."),
    budget: str = budget_option(
        None, help="Budgets, one row each: dense,128,0.25. Default: dense, and 0.25 with an adapter."
    ),
    examples: int = number_option(256, help="Pictures, the same ones at every budget."),
    seed: int = seed_option(7, help="Seed of the pictures' order, times and noise."),
    text_budget: str = typer.Option(None, help=TEXT_BUDGET_HELP),
    batch: int = number_option(32, help="Pictures at a time; it does not change the loss."),
    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model."),
    output: Path = typer.Option(None, "--output", "-o", help="JSON file for the loss and time of every example."),
    estimate: str = typer.Option(
        "own", help="Where cuts are from an estimate: the model's own, the clean picture, or none (even cuts)."
    ),
    device: str = typer.Option("auto", help=DEVICE_HELP),
    dtype: str = typer.Option("float32", help=DTYPE_HELP),
    compile: bool = typer.Option(False, "--compile", help=COMPILE_HELP),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """The velocity loss at each budget, as in training, and by how much it is above that of the frozen backbone.

    All budgets see the same pictures, times and noise, so the differences are
    paired. It tells apart what accuracy needs many more pictures to tell apart.
    --estimate clean shows how much of it is the fault of the estimate.
    """
    from rti.data import open_data
    from rti.lab.evaluation.loss import evaluate_loss, save_losses
    from rti.method.budgets import parse_budget

    given = None if budget is None else [parse_budget(text) for text in budget.split(",")]
    pipe = load_pipeline(model, adapter, dtype, device, compile)
    budgets = given or ([None, 0.25] if pipe.elastic is not None else [None])
    backbone = pipe.backbone
    source = open_data(data, backbone.image_size, seed=seed, kind=backbone.conditioned_on)
    text = None if text_budget is None else parse_budget(text_budget)
    how = dict(examples=examples, seed=seed, text_budget=text, batch=batch, estimate=estimate)
    results = evaluate_loss(pipe, source, budgets, **how)
    if output is not None:
        save_losses(output, results)
    rows = [result.as_dict() for result in results]
    cells = [
        [
            str(row["budget"]),
            f"{row['loss']:.4f}",
            f"{row['difference_to_dense']:+.4f}" if "difference_to_dense" in row else "",
            "{:+.4f} to {:+.4f}".format(*row["difference_interval"]) if row.get("difference_interval") else "",
        ]
        for row in rows
    ]
    title = f"Velocity loss of {model} on {examples} examples of {data}, seed {seed}"
    title += "" if estimate == "own" else f", estimate: {estimate}"
    show_table(title, ("budget", "loss", "minus dense, paired", "95 % interval"), cells)
    if json:
        show_json(rows[0] | {"model": model, "data": data} | how | {"rows": rows})


def _show(model: str, values: dict, results: list[SceneResult]) -> None:
    """A row per budget: accuracy in percent, its 95 % interval beneath; and what each budget loses against dense."""
    tasks = results[0].score.tasks
    rows = []
    for result in results:
        score = result.score
        cells = [(score.overall, score.interval), *((score.tasks[task], score.task_intervals[task]) for task in tasks)]
        rows.append(
            [str(result.name), *(f"{100 * v:.1f}\n{100 * low:.0f}–{100 * high:.0f}" for v, (low, high) in cells)]
        )
    title = f"SceneEval of {model}: % right and 95 % interval\n{values['images']} pictures a row ({values['split']}), "
    title += f"seed {values['seed']}, {values['steps']} steps, guidance {values['guidance']}"
    reused = [str(result.name) for result in results if result.images is None]
    title += f"\ndrawn earlier: {', '.join(reused)}" if reused else ""
    show_table(title, ["budget", "overall", *(task.replace("_", "\n") for task in tasks)], rows)
    changes = [
        (
            str(result.name),
            f"{100 * change.overall:+.1f}",
            "{:+.1f} to {:+.1f}".format(*(100 * v for v in change.interval))
            if change.interval
            else "none: no two differ",
        )
        for result in results
        if (change := result.difference) is not None
    ]
    if changes:
        show_table("Overall minus dense, paired", ("budget", "points", "95 % interval"), changes)
