"""`rti pretrain`: a small backbone from scratch."""

from __future__ import annotations

import typer

from rti.cli.train import run_and_show
from rti.presets import FROM_SCRATCH


def pretrain(
    context: typer.Context,
    model: str = typer.Argument(help=f"What to train: {', '.join(FROM_SCRATCH)}, or the name of a released model."),
    output: str = typer.Option(..., help="Folder of the run; the model for use is its sub-folder model."),
    data: str = typer.Option("scenes", help="As of rti train."),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Train a backbone from scratch, with every parameter trainable: the same loop as rti train, without an interface.

    Any setting below can be given, such as --steps 20000 --save-every 500. --sizes changes the model: --sizes
    image_size=32,patch_spacing=2,prompt_length=16,noise_scale=1.0 is the scenes model at half its size (scenes-jit:
    input_size=32,patch_spacing=2,noise_scale=1.0), and --start-from RUN/model goes on with it at the full size.
    To resume, run the same command again.
    """
    from rti.parsing import convert_stored
    from rti.training.assemble_pretraining import make_trainer
    from rti.training.config import PretrainConfig

    given = {"model": model, "output": output, "data": data} | context.obj
    config = PretrainConfig(**convert_stored(given, PretrainConfig))
    run_and_show(make_trainer(config), f"rti pretrain {model}", "model", json)
