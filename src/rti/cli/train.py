"""`rti train`: elastic fine-tuning of a frozen backbone. All settings of a run are options."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import MISSING, fields
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from rti.cli.models import MODEL_HELP
from rti.cli.output import show_error, show_json, show_table

if TYPE_CHECKING:
    from rti.training.trainer import Trainer


class SettingsCommand(TyperCommand):
    """A command with an option for every setting of its run, made when they are needed: that imports torch.

    Those that were typed are its context's `obj`, as text; defaults are left to the run, since presets have others.
    """

    @cached_property
    def settings(self) -> dict[str, Any]:
        from rti.method.reductions import REDUCTIONS
        from rti.training.config import PretrainConfig, RunConfig, TrainConfig

        kind = {"train": TrainConfig, "pretrain": PretrainConfig}[self.name]
        every, own = "Settings of every run (presets have values of their own)", f"Settings of rti {self.name}"
        shared = {field.name for field in fields(RunConfig)}
        found = [(field, every if field.name in shared else own, field.default) for field in fields(kind)]
        for reduction, (config, _) in REDUCTIONS.items() if kind is TrainConfig else ():
            usual, panel = config.training_defaults(), f"Settings of --reduction {reduction}"
            found += [(field, panel, usual.get(field.name, field.default)) for field in fields(config)]
        known = {option.name for option in self.params} | {"text_regions"}  # which follow from the text budgets
        parameters: dict[str, Parameter] = {}
        for field, panel, default in found:
            if field.name not in known:
                parameters.setdefault(field.name, _parameter(field, panel, default))
        return _options(parameters.values())

    def get_params(self, ctx: typer.Context) -> list[Any]:
        *own, help = super().get_params(ctx)
        return [*own, *self.settings.values(), help]

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        # A switch has no value, but --flip=yes may be written.
        switches = {f"--{name.replace('_', '-')}": option for name, option in self.settings.items() if option.is_flag}
        words = [word.partition("=") for word in args]
        yes, no = ("true", "yes"), ("false", "no")
        for place, (name, _, value) in enumerate(words):
            if name in switches and value.lower() in yes + no:
                args[place] = name if value.lower() in yes else name.replace("--", "--no-", 1)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> Any:
        values = {name: ctx.params.pop(name) for name in self.settings}
        typed = {name for name in values if ctx.get_parameter_source(name).name == "COMMANDLINE"}
        ctx.obj = {name: value for name, value in values.items() if name in typed}
        return super().invoke(ctx)


def _parameter(field: Any, panel: str, default: Any) -> Parameter:
    """A setting as the parameter of a command: text, which its dataclass converts, but for switches."""
    options = {"help": field.metadata.get("help"), "rich_help_panel": panel}
    if isinstance(default, bool):
        kind = bool
    else:
        kind, default = str, None if default in (MISSING, None, ()) else str(default)
        name = str(field.type).removesuffix(" | None")
        options["metavar"] = "LIST" if name.startswith("tuple") else name.upper()
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=typer.Option(default, **options), annotation=kind)


def _options(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """The options that typer makes of a function with these parameters."""

    def function(**_: Any) -> None: ...

    function.__signature__ = Signature(list(parameters))
    function.__annotations__ = {one.name: one.annotation for one in function.__signature__.parameters.values()}
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return {option.name: option for option in typer.main.get_command(app).params}


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
    from rti.training.assemble import describe, make_trainer
    from rti.training.settings import resolve

    given = {"model": model, "output": output, "data": data} | context.obj
    config, reduced = resolve({name: value for name, value in given.items() if value is not None}, reduction, dry_run)
    if dry_run:
        show(f"rti train {model}", describe(config, reduced), json)
    else:
        run_and_show(make_trainer(config, reduced), f"rti train {model}", "adapter", json)


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
