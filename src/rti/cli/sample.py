"""`rti sample`: pictures from prompts or labels, at several budgets side by side."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import typer

from rti.cli.models import (
    DEVICE_HELP,
    DTYPE_HELP,
    GUIDANCE_BUDGET_HELP,
    INT8_HELP,
    MODEL_HELP,
    TEXT_BUDGET_HELP,
    load_pipeline,
)
from rti.cli.options import budget_option, guidance_option, seed_option, steps_option
from rti.cli.output import counted, show_json, show_table, span, whole_numbers
from rti.errors import InputError
from rti.method.config import CUT_NAMES, CUT_SOURCES
from rti.presets import default_core, preset_of
from rti.shipped import DEFAULT, SHIPPED, find_shipped

DEFAULT_HELP = f" Default: {DEFAULT}." if DEFAULT in SHIPPED else ""


def sample(
    prompts: list[str] = typer.Argument(None, help="Prompts, for a text-to-image model."),
    model: str = typer.Option(None, "--model", "-m", help=MODEL_HELP + DEFAULT_HELP),
    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model."),
    size: str = typer.Option(None, help="Size of the model where its files do not tell: b16, l16, ..."),
    labels: str = typer.Option(
        None, "--labels", "--label", help="Class labels, such as 207,360, for a class-conditional model."
    ),
    budget: str = budget_option(
        None, help="Budgets, one row each: dense,512,0.25. Default: dense, and 0.25 with an adapter."
    ),
    steps: int = steps_option(None),
    guidance: float = guidance_option(),
    guidance_budget: str = typer.Option(None, help=GUIDANCE_BUDGET_HELP),
    text_budget: str = typer.Option(None, help=TEXT_BUDGET_HELP),
    seed: int = seed_option(
        0, help="Seed of the first picture; the next prompt has the next seed, every row the same."
    ),
    regions: bool = typer.Option(
        False, "--regions", help="Also draw each row's regions at the last step, into NAME-regions.png."
    ),
    output: Path = typer.Option(
        None, "--output", "-o", help="Where to write the picture. Default: sample.png, or the next free name."
    ),
    dtype: str = typer.Option("float32", help=DTYPE_HELP),
    int8: bool = typer.Option(False, "--int8", help=INT8_HELP),
    device: str = typer.Option("auto", help=DEVICE_HELP),
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the checkpoint names."),
    lenient: bool = typer.Option(False, "--lenient", help="Leave out words the model does not know, with a warning."),
    untrained: bool = typer.Option(
        False, "--untrained", help="Without an adapter: attach a fresh interface, untrained."
    ),
    core: str = typer.Option(None, help="With --untrained: first and last block of the core, such as 3,13."),
    cuts: str = typer.Option("merge", help=f"With --untrained: {', '.join(CUT_NAMES)}."),
    cuts_from: str = typer.Option("estimate", help=f"With --untrained: {', '.join(CUT_SOURCES)}."),
    init: str = typer.Option(None, help="'random': random weights instead of a checkpoint, to try out the commands."),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Make pictures, the same prompts and seeds at several budgets, and put them into one picture.

    Rows are budgets, columns are prompts. "dense" is the frozen backbone without the adapter.

    The words of the model scenes: a an; two three four; plain striped dotted;
    red orange yellow green cyan blue purple pink; circle square triangle star
    cross ring moon, and their plurals; left of, right of, above, below; and.
    """
    if model is None:
        if find_shipped(DEFAULT) is None:
            raise InputError("no model given; give --model, for example --model minit2i-b16 --adapter FOLDER")
        model = DEFAULT
    if not prompts and not labels:
        raise InputError("nothing to draw: give prompts, or --labels for a class-conditional model")

    import time

    import torch

    from rti.elastic import ElasticModel, attach
    from rti.images import check_output, contact_sheet, draw_regions, enlarge, save_image
    from rti.lab.scenes.classes import subject_names
    from rti.method.budgets import parse_budget, resolve_budget
    from rti.method.config import RegionConfig

    output = output or _free_name()
    check_output(output)
    options = {"init": init} if init else {}
    pipe = load_pipeline(model, adapter, dtype, device, size=size, text_encoder=text_encoder, **options)
    if untrained and not isinstance(pipe.model, ElasticModel):
        preset = preset_of(model, size)
        where = span(core) or (preset.core if preset else default_core(pipe.backbone.depth))
        pipe.model = attach(
            pipe.model, RegionConfig(core=where, cuts=cuts, cuts_from=cuts_from, text_regions=text_budget is not None)
        )
    elastic = isinstance(pipe.model, ElasticModel)

    rows = [parse_budget(text) for text in (budget or ("dense,0.25" if elastic else "dense")).split(",")]
    rows = [None if row is None else resolve_budget(row, pipe.backbone.patches) for row in rows]
    if not elastic and any(row is not None for row in rows):
        raise InputError(
            f"budget {budget!r} needs an adapter; give --adapter FOLDER, or --untrained to see one at work"
        )
    budgets = {
        "guidance_budget": None if guidance_budget is None else parse_budget(guidance_budget),
        "text_budget": None if text_budget is None else parse_budget(text_budget),
    }
    subjects = {"label": whole_numbers(labels, "labels")} if labels else {"prompt": list(prompts)}
    asked = next(iter(subjects.values()))
    names = subject_names(pipe.backbone, asked)

    pictures, overlays, seconds = {}, {}, {}
    for row in rows:
        with pipe.drawing(row is None, int8) as drawing:
            started = time.perf_counter()
            result = drawing(
                **subjects,
                budget=row,
                **(budgets if row is not None else {}),
                num_inference_steps=steps,
                guidance_scale=guidance,
                generator=[torch.Generator().manual_seed(seed + index) for index in range(len(names))],
                return_regions=regions and row is not None,
                lenient=lenient,
            )
            seconds[row] = round(time.perf_counter() - started, 3)
        pictures[row] = [enlarge(picture, 192) for picture in result.images]  # room for the labels
        if regions:
            every_patch = torch.arange(pipe.backbone.patches).expand(len(names), -1)
            drawn = every_patch if result.regions is None else result.regions
            pairs = zip(result.images, drawn, strict=True)
            overlays[row] = [draw_regions(picture, ids, pipe.backbone.grid) for picture, ids in pairs]

    titles = ["dense" if row is None else f"R = {row}" for row in rows]
    path = save_image(contact_sheet([pictures[row] for row in rows], titles, names), output)
    values = {"output": str(path), "model": model, "subjects": [str(one) for one in asked], "seed": seed}
    if regions:
        beside = path.with_stem(f"{path.stem}-regions")
        values["regions"] = str(save_image(contact_sheet([overlays[row] for row in rows], titles, names), beside))
    report = [{"budget": "dense" if row is None else row, "seconds": seconds[row]} for row in rows]
    where = f"{path} and {values['regions']}" if regions else str(path)
    title = f"{where}: {counted(len(names), 'picture')} a row"
    show_table(title, ("budget", "seconds"), [[*entry.values()] for entry in report])
    if json:
        show_json(values | {"rows": report})


def _free_name() -> Path:
    """sample.png, sample-1.png, ...: no picture of before is lost."""
    names = (f"sample-{number}" if number else "sample" for number in itertools.count())
    return next(
        Path(f"{name}.png")
        for name in names
        if not any(os.path.lexists(f"{name}{end}.png") for end in ("", "-regions"))
    )
