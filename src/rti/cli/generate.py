"""`rti generate`: the pictures of a benchmark, on one process or many, in as many sittings as it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from rti.cli.options import MODEL, Runtime, Sampling, budget_option, command, number_option, seed_option
from rti.cli.output import say, show_error, show_values
from rti.method.budgets import parse_budget

PROMPTS_HELP = (
    "geneval, parti or mjhq (fetched once, and checked); a copy of their file (.jsonl, .tsv, .json); a text file with "
    "a prompt per line (.txt); scenes (captions of the scenes world); classes (labels, balanced)."
)


@dataclass(frozen=True)
class Drawing(Sampling):
    """The same for commands which draw many of them: `settings()` is what they share."""

    batch: int = number_option(16, help="Pictures at a time on each process; it does not change them.")

    def settings(self) -> dict[str, Any]:
        dials = vars(self.dials()).copy()
        del dials["budget"]
        return {"steps": dials.pop("num_inference_steps"), "guidance": self.guidance} | dials


@command
def generate(
    runtime: Runtime,
    drawing: Drawing,
    model: str = MODEL,
    prompts: str = typer.Option(..., help=PROMPTS_HELP),
    output: Path = typer.Option(
        ..., "--output", "-o", help="Folder for the pictures: new, or that of a run to resume."
    ),
    budget: str = budget_option("dense", help="Regions: dense (the frozen backbone), 256, or a share such as 0.25."),
    images: int = number_option(None, help="Pictures per prompt. Default: the benchmark's, 4 for geneval, else 1."),
    count: int = number_option(
        None, help="So many prompts, spread over all; of scenes and classes so many (240 and 50000). Default: all."
    ),
    split: str = typer.Option("train", help="Of scenes: train, held-out or all."),
    seed: int = seed_option(0, help="Every picture has a seed of its own, made from this and its place."),
    lenient: bool = typer.Option(False, "--lenient", help="Leave out words the model does not know, with a warning."),
) -> dict[str, Any]:
    """Draw the prompts of a benchmark into a folder, in the layout it expects, with a manifest of how.

    rti generate scenes --prompts scenes --budget 64 -o runs/r64/scenes

    On several GPUs or machines: accelerate launch -m rti generate MODEL ...
    Pictures depend on their seeds alone, not on the number of processes.
    To resume after any interruption, run the same command again: what is
    there and whole stays. A folder drawn with other settings is refused.
    """
    from rti.lab.pictures.folder import images_per_second
    from rti.lab.pictures.generation import Generation, GenerationSettings, Shard
    from rti.lab.pictures.prompts import open_prompts

    shard = Shard.of_environment()
    own = {"images": images, "seed": seed, "lenient": lenient}
    settings = GenerationSettings(parse_budget(budget), **drawing.settings(), **own)
    # Prompts first, a model may take long to load; but only the model knows how many classes it has.
    wanted = None if prompts == "classes" else open_prompts(prompts, count, seed=seed, split=split)
    pipe = replace(runtime, device=shard.device(runtime.device)).load(model)
    if wanted is None:
        wanted = open_prompts(prompts, count, getattr(pipe.backbone.config, "num_classes", None))
    generation = Generation(pipe, wanted, output, settings, {"model": model, "adapter": runtime.adapter})
    try:
        result = generation.run(drawing.batch, shard)
    except KeyboardInterrupt:
        show_error(f"interrupted with {generation.missing()} pictures to go; run the same command again to go on")
        raise typer.Exit(130) from None
    if shard.rank > 0:
        return None
    rate, missing = images_per_second(output), generation.missing()
    values = {"output": str(output), "prompts": len(wanted), "pictures": len(generation.pictures)} | result
    values |= {"images_per_second": None if rate is None else round(rate, 4), "processes": shard.world}
    values |= {"missing": missing}
    show_values(f"rti generate {model} --prompts {prompts}", values)
    if missing:
        say(f"process 1 of {shard.world} is done; {missing} pictures are still being drawn by the others")
    return values | {"manifest": generation.manifest}
