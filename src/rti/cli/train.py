"""`rti train`: elastic fine-tuning of a frozen backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from rti.cli.models import MODEL_HELP
from rti.cli.output import show_error, show_json, show_table

if TYPE_CHECKING:
    from rti.training.trainer import Trainer


def train(
    context: typer.Context,
    model: str = typer.Argument(help=MODEL_HELP + " Or the config.json of another run."),
    output: str = typer.Option(None, help="Folder of the run; the adapter for use is its sub-folder adapter."),
    data: str = typer.Option(None, help="scenes, a folder of pictures, .tar shards, hf:NAME, or several as A@0.5,B@2."),
    reduction: str = typer.Option(None, help="The token reduction to train. Default: region."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only print what would train and what a step costs."),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Train Read, Write and LoRA at budgets drawn at random, so that one adapter serves every budget.

    A preset holds the paper's settings. Any of them can be given as --name value, such as --steps 1000
    --learning-rate 2e-4 --budgets 64,128 --cuts gaps --cuts-from features --batch-per-device 1; --dry-run lists them.
    To resume, run the same command again. On several GPUs or machines: accelerate launch -m rti.train MODEL ...
    """
    from rti.training.command import describe, make_trainer, resolve

    config, reduction_config = resolve({"model": model, "output": output, "data": data}, reduction, context.args)
    if dry_run:
        show(f"rti train {model}", describe(config, reduction_config), json)
    else:
        run_and_show(make_trainer(config, reduction_config), f"rti train {model}", "adapter", json)


def run_and_show(trainer: Trainer, title: str, made: str, json: bool) -> None:
    """Train, and tell how it ended. A run that was asked to stop ends like any interrupted command, with 130."""
    trainer.run()
    stopped = trainer.step < trainer.config.steps
    if trainer.accelerator.is_main_process:
        values = {"output": trainer.config.output, made: f"{trainer.config.output}/{made}", "step": trainer.step}
        values |= {"stopped": stopped, "skipped": trainer.skipped, "broken_examples": trainer.broken}
        show(title, values | {"peak_memory_gigabytes": peak_memory()}, json)
        if stopped:
            show_error(f"stopped at step {trainer.step}, which is saved; to resume, run the same command again")
    if stopped:
        raise typer.Exit(130)


def show(title: str, values: dict[str, Any], json: bool) -> None:
    show_table(title, ("", ""), [(name.replace("_", " "), str(value)) for name, value in values.items()])
    if json:
        show_json(values)


def peak_memory() -> float:
    """The most memory this process has held, in gigabytes: the GPU's where it trains on one."""
    import resource
    import sys

    import torch

    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 1e9, 2)
    unit = 1e9 if sys.platform == "darwin" else 1e6  # bytes there, kilobytes here
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)
