"""`rti train`: elastic fine-tuning of a frozen backbone."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from rti.cli.models import MODEL_HELP
from rti.cli.output import show_error, show_json, show_table

if TYPE_CHECKING:
    from rti.training.trainer import Trainer

# What `rti train` says of the reduction's own settings.
REDUCTION_HELP = {
    "core": "First and last block of the core, such as 3,13. Default: the preset's.",
    "lora_rank": "Of the LoRA on the trunk's projections.",
    "lora_alpha": "Its scale, over the rank.",
    "order": "The walk over the patches: hilbert, morton or raster.",
    "cuts": "The rule of cutting the walk: merge, gaps or fixed.",
    "cuts_from": "What it looks at: estimate (of the clean picture) or features.",
    "size_prior": "Exponent of the size in the cost of merge. Default: 0.5 from the estimate, else 0.",
    "interface": "learned, or mean: pool by the mean and learn nothing of it.",
    "position": "Of a region: average of its patches, or that of its centre.",
    "size_embedding": "Tell the core how large each region is.",
}


class SettingsCommand(TyperCommand):
    """A command whose help lists all settings of its run, which it does not parse itself: see rti.training.parsing."""

    def format_help(self, *given: Any) -> None:
        from rti.method.config import RegionConfig
        from rti.training.config import PretrainConfig, RunConfig, TrainConfig

        super().format_help(*given)
        kind = {"train": TrainConfig, "pretrain": PretrainConfig}[self.name]
        help = {field.name: field.metadata.get("help") for field in fields(kind)}
        shared = {field.name: help.pop(field.name) for field in fields(RunConfig)}
        _show_settings("Settings of every run (presets have values of their own for some)", kind, shared)
        _show_settings(f"Settings of rti {self.name}", kind, help)
        if kind is TrainConfig:
            _show_settings("Settings of --reduction region", RegionConfig, REDUCTION_HELP)


def _show_settings(title: str, kind: type, help: dict[str, str | None]) -> None:
    defaults = kind.training_defaults() if hasattr(kind, "training_defaults") else {}
    rows = []
    for field in fields(kind):
        default = defaults.get(field.name, field.default)
        if isinstance(default, bool):
            default = "yes" if default else "no"  # --flip, --no-flip
        given = default is not MISSING and default is not None and default != ()
        if help.get(field.name):
            rows.append(("--" + field.name.replace("_", "-"), str(default) if given else "", help[field.name]))
    show_table(title, ("", "default", ""), rows)


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

    A preset holds the paper's settings, but for the cuts, which are ours: merge from the estimate. The paper's are
    --cuts gaps --cuts-from features. Any setting below can be given; --dry-run shows all of a run.
    To resume, run the same command again. On several GPUs or machines: accelerate launch -m rti.train MODEL ...
    """
    from rti.training.assemble import describe, make_trainer, resolve

    given = {"model": model, "output": output, "data": data}
    config, reduction_config = resolve(given, reduction, context.args, dry_run)
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
    def text(value: Any) -> str:
        return ", ".join(f"{key} {of}" for key, of in value.items()) if isinstance(value, dict) else str(value)

    show_table(title, ("", ""), [(name.replace("_", " "), text(value)) for name, value in values.items()])
    if json:
        show_json(values)


def peak_memory() -> float:
    """The most memory this process has held, in gigabytes: the GPU's where it trains on one."""
    import sys

    import torch

    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 1e9, 2)
    try:
        import resource
    except ImportError:  # Windows
        import psutil  # comes with accelerate

        return round(psutil.Process().memory_info().peak_wset / 1e9, 2)
    unit = 1e9 if sys.platform == "darwin" else 1e6  # bytes there, kilobytes here
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)
