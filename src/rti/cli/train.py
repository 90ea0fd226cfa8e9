"""`rti train`, elastic fine-tuning of a frozen backbone, and `rti pretrain`. All settings of a run are options."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cached_property
from inspect import Parameter, get_annotations, unwrap
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from rti.cli.options import MODEL_HELP, command
from rti.cli.output import show_error, show_table, show_values
from rti.presets import FROM_SCRATCH

if TYPE_CHECKING:
    from rti.training.trainer import Trainer


class SettingsCommand(TyperCommand):
    """A command with an option for every setting of its run, made when they are needed: that imports torch.

    What was typed goes to the command as text, the rest as None: defaults are the run's, since presets have others.
    """

    @cached_property
    def whole(self) -> TyperCommand:
        from rti.method.config import RegionConfig
        from rti.method.reductions import REDUCTIONS
        from rti.training.config import AdaptConfig, PretrainConfig, RunConfig, TrainConfig

        kind = {"train": TrainConfig, "pretrain": PretrainConfig, "adapt": AdaptConfig}[self.name]
        groups = {f"rti {self.name}": kind, "every run (presets have values of their own)": RunConfig}
        if kind is AdaptConfig:
            groups |= {"the regions": RegionConfig}
        if kind is TrainConfig:
            groups |= {f"--reduction {name}": config for name, (config, _) in REDUCTIONS.items()}
        known = {option.name for option in self.params} | {"text_regions", "one_pass"}  # which follow from others
        every_run = RunConfig.__dataclass_fields__
        found: dict[str, Parameter] = {}
        for title, group in groups.items():
            usual = getattr(group, "training_defaults", dict)() | getattr(kind, "reduction_defaults", {})
            for field in _own_first(group):
                if field.name not in known | found.keys() and (group is not kind or field.name not in every_run):
                    own = kind.__dataclass_fields__.get(field.name, field)  # whose default may be another
                    found[field.name] = _parameter(own, title, usual.get(field.name, own.default))
        app = typer.Typer(add_completion=False)
        app.command()(command(unwrap(self.callback), found.values()))
        return typer.main.get_command(app)

    def get_params(self, ctx: typer.Context) -> list[Any]:
        return self.whole.get_params(ctx)

    def make_context(self, *given: Any, **extra: Any) -> typer.Context:
        return self.whole.make_context(*given, **extra)


def _own_first(kind: type) -> list[Any]:
    """A dataclass's fields, those that it adds before those that it inherits."""
    order = [name for one in kind.__mro__ for name in get_annotations(one)]
    return sorted(fields(kind), key=lambda field: order.index(field.name))


def _parameter(field: Any, group: str, default: Any) -> Parameter:
    """A setting as the parameter of a command: text, which its dataclass converts, but for switches."""
    name = str(field.type).removesuffix(" | None")
    metavar = None if name == "bool" else "LIST" if name.startswith("tuple") else name.upper()
    shown = False if default in (MISSING, None, ()) else str(default)
    words = {"help": field.metadata.get("help"), "rich_help_panel": f"Settings of {group}"}
    option = typer.Option(None, show_default=shown, metavar=metavar, **words)
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=option, annotation=bool if metavar is None else str)


@command
def train(
    model: str = typer.Argument(help=MODEL_HELP + " Or the config.json of another run."),
    output: str = typer.Option(None, help="Folder of the run; the adapter for use is its sub-folder adapter."),
    data: str = typer.Option(None, help="scenes, a folder of pictures, .tar shards, hf:NAME, or several as A@0.5,B@2."),
    reduction: str = typer.Option(None, help="The token reduction to train. Default: region."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only print what would train and what a step costs."),
    **settings: Any,
) -> dict[str, Any]:
    """Train Read, Write and LoRA at budgets drawn at random, so that one adapter serves every budget.

    A preset holds the paper's settings, but for the cuts, which are ours: merge from the estimate. The paper's are
    --cuts gaps --cuts-from features. Any setting below can be given; --dry-run shows all of a run.
    To resume, run the same command again. On several GPUs or machines: accelerate launch -m rti.train MODEL ...

    rti adapt needs no data set. After 300 steps of either its pictures were better
    (docs/training.md), and the models that ship come from it.
    """
    from rti.training.assemble import make_trainer, preview
    from rti.training.settings import read_settings

    given = {"model": model, "output": output, "data": data} | settings
    config, reduced = read_settings(given, reduction, dry_run)
    if dry_run:
        values = preview(config, reduced)
        show_values(f"rti train {model}", values)
        return values
    return run_and_show(make_trainer(config, reduced), f"rti train {model}", "adapter")


@command
def pretrain(
    model: str = typer.Argument(help=f"What to train: {', '.join(FROM_SCRATCH)}, or the name of a released model."),
    output: str = typer.Option(..., help="Folder of the run; the model for use is its sub-folder model."),
    data: str = typer.Option("scenes", help="As of rti train."),
    **settings: Any,
) -> dict[str, Any]:
    """Train a backbone from scratch, with every parameter trainable: the same loop as rti train, without an interface.

    Any setting below can be given, such as --steps 20000 --save-every 500. --sizes changes the model: --sizes
    image_size=32,patch_spacing=2,prompt_length=16,noise_scale=1.0 is the scenes model at half its size (scenes-jit:
    input_size=32,patch_spacing=2,noise_scale=1.0), and --start-from RUN/model goes on with it at the full size.
    To resume, run the same command again.
    """
    from rti.parsing import convert_stored
    from rti.training.assemble import make_trainer
    from rti.training.config import PretrainConfig

    given = {"model": model, "output": output, "data": data} | settings
    given = {name: value for name, value in given.items() if value is not None}
    config = PretrainConfig(**convert_stored(given, PretrainConfig))
    return run_and_show(make_trainer(config), f"rti pretrain {model}", "model")


@command
def adapt(
    model: str = typer.Argument(help=MODEL_HELP),
    output: str = typer.Option(..., help="Folder of the run; the adapter for use is its sub-folder adapter."),
    **settings: Any,
) -> dict[str, Any]:
    """Make an adapter from prompts alone: no data set, minutes instead of days. The frozen model is the teacher.

    First Write's map by least squares along the model's own trajectories (--stage linear: that alone, about a minute
    for a small model), then gradient steps for as long as --minutes allows. Without --prompts a list of varied ones is
    used; a class-conditional model takes its classes. At the end the adapter is measured against the frozen model.
    To resume, run the same command again. On several GPUs: accelerate launch -m rti adapt MODEL ...
    """
    from rti.training.adapt import Adapting

    run = Adapting.of(model, {"output": output} | settings)
    values = run.run()
    if not run.engine.is_main_process:  # the first one speaks for all
        raise typer.Exit(130 if values.get("stopped") else 0)
    if values.get("stopped"):
        show_error(f"stopped at step {values['step']}, which is saved; to resume, run the same command again")
    elif rows := values.get("against_dense"):
        names = ("budget", "PSNR to dense, dB", "loss against dense")
        show_table(f"{values['adapter']}, made in {values['seconds']} s", names, [[*row.values()] for row in rows])
    return values | {"peak_memory_gigabytes": peak_memory()}


def run_and_show(trainer: Trainer, title: str, made: str) -> dict[str, Any]:
    """Train, and tell how it ended."""
    trainer.run()
    stopped = trainer.step < trainer.config.steps
    if not trainer.accelerator.is_main_process:  # the first one speaks for all
        raise typer.Exit(130 if stopped else 0)
    values = {"output": trainer.config.output, made: f"{trainer.config.output}/{made}", "step": trainer.step}
    values |= {"stopped": stopped, "skipped": trainer.skipped, "broken_examples": trainer.broken}
    if stopped:
        show_error(f"stopped at step {trainer.step}, which is saved; to resume, run the same command again")
    values["peak_memory_gigabytes"] = peak_memory()
    show_values(title, values)
    return values


def peak_memory() -> float | None:
    """The most memory this process has held, in gigabytes: the GPU's where it trains on one; None on Windows."""
    import torch

    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 1e9, 2)
    with suppress(ImportError):
        import resource

        unit = 1e9 if sys.platform == "darwin" else 1e6  # bytes there, kilobytes here
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)
    return None
