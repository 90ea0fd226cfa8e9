"""`rti train`: elastic fine-tuning of a frozen backbone."""

from __future__ import annotations

import typer

from rti.cli.models import MODEL_HELP
from rti.cli.output import show_json, show_table


def train(
    context: typer.Context,
    model: str = typer.Argument(help=MODEL_HELP),
    output: str = typer.Option(..., help="Folder of the run; the adapter for use is its sub-folder adapter."),
    data: str = typer.Option(..., help="scenes, a folder of pictures, .tar shards, hf:NAME, or several as A@0.5,B@2."),
    reduction: str = typer.Option("region", help="The token reduction to train."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only print what would train and what a step costs."),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Train Read, Write and LoRA at budgets drawn at random, so that one adapter serves every budget.

    A preset holds the paper's settings. Any of them can be given as --name value, such as --steps 1000
    --learning-rate 2e-4 --budgets 64,128 --cuts gaps --cuts-from features --batch-per-device 1; --dry-run lists them.
    To resume, run the same command again.
    """
    from rti.training.command import describe, make_trainer, resolve

    config, reduction_config = resolve(model, output, data, reduction, context.args)
    if dry_run:
        values = describe(config, reduction_config)
        rows = [(name.replace("_", " "), str(value)) for name, value in values.items()]
        show_table(f"rti train {model}", ("", ""), rows)
    else:
        trainer = make_trainer(config, reduction_config)
        trainer.run()
        values = {"output": output, "adapter": f"{output}/adapter", "step": trainer.step, "skipped": trainer.skipped}
        values |= {"broken_examples": trainer.fetch.broken, "peak_memory_gigabytes": peak_memory()}
        show_table(f"rti train {model}", ("", ""), [(name.replace("_", " "), str(v)) for name, v in values.items()])
    if json:
        show_json(values)


def peak_memory() -> float:
    """The most memory this process has held, in gigabytes."""
    import resource

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
