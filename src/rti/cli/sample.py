"""`rti sample`: pictures from prompts or labels, at several budgets side by side."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from rti.cli.options import MODEL_HELP, Runtime, Sampling, budget_option, command, seed_option, usual_budgets
from rti.cli.output import counted, say, show_table, span, whole_numbers
from rti.dials import Dials, read_presets
from rti.errors import InputError
from rti.method.config import CUT_NAMES, CUT_SOURCES
from rti.shipped import DEFAULT

WHAT_TO_EXPECT = (
    "untrained: scenes loses nothing that 480 pictures show at 0.75 and 0.5 of its patches; fewer lose more, "
    "and other models are not measured; make an adapter: rti adapt"
)


@command
def sample(
    runtime: Runtime,
    sampling: Sampling,
    prompts: list[str] = typer.Argument(None, help="Prompts, for a text-to-image model."),
    model: str = typer.Option(DEFAULT, "--model", "-m", help=MODEL_HELP),
    labels: str = typer.Option(
        None, "--labels", "--label", help="Class labels, such as 207,360, for a class-conditional model."
    ),
    budget: str = budget_option(
        None, help="Budgets, one row each: dense,512,0.25. Default: dense, and 0.25 with an adapter, 0.75 untrained."
    ),
    preset: str = typer.Option(
        None, help="Presets in the place of budgets, one row each: careful,balanced,fast, or those of rti tune."
    ),
    presets: Path = typer.Option(None, help="A file of rti tune. Default: that in the adapter's folder."),
    seconds: float = typer.Option(None, help="Or the best preset that takes no longer for a picture, after rti tune."),
    seed: int = seed_option(
        0, help="Seed of the first picture; the next prompt has the next seed, every row the same."
    ),
    regions: bool = typer.Option(
        False, "--regions", help="Also draw each row's regions at the last step, into NAME-regions.png."
    ),
    regions_of: str = typer.Option(None, help="A budget, one of --budget: draw its regions below its row, such as 64."),
    output: Path = typer.Option(
        None, "--output", "-o", help="Where to write the picture. Default: sample.png, or the next free name."
    ),
    lenient: bool = typer.Option(False, "--lenient", help="Leave out words the model does not know, with a warning."),
    untrained: bool = typer.Option(
        False, "--untrained", help="Without an adapter, or instead of it: a fresh interface, as --adapter untrained."
    ),
    core: str = typer.Option(None, help="With --untrained: first and last block of the core, such as 3,13."),
    cuts: str = typer.Option("merge", help=f"With --untrained: {', '.join(CUT_NAMES)}."),
    cuts_from: str = typer.Option("estimate", help=f"With --untrained: {', '.join(CUT_SOURCES)}."),
    init: str = typer.Option(None, help="'random': random weights instead of a checkpoint, to try out the commands."),
) -> dict[str, Any]:
    """Make pictures, the same prompts and seeds at several budgets, and put them into one picture.

    Rows are budgets, columns are prompts. "dense" is the frozen backbone without the adapter.

    The words of the model scenes: a an; two three four; plain striped dotted;
    red orange yellow green cyan blue purple pink; circle square triangle star
    cross ring moon, and their plurals; left of, right of, above, below; and.
    """
    if not prompts and not labels:
        raise InputError("nothing to draw: give prompts, or --labels for a class-conditional model")

    import torch
    from PIL import Image

    from rti.elastic import attach
    from rti.images import check_output, contact_sheet, draw_regions, enlarge, save_image
    from rti.lab.scenes.classes import subject_names
    from rti.loading import usual_core
    from rti.method.budgets import parse_budget, resolve_budget
    from rti.method.config import RegionConfig
    from rti.pipeline import UNTRAINED

    output = output or _free_name()
    check_output(output)
    if untrained and runtime.adapter not in (None, UNTRAINED):
        raise InputError(f"--adapter {runtime.adapter} and --untrained given; allowed: one of them")
    fresh = untrained or runtime.adapter == UNTRAINED
    pipe = (replace(runtime, adapter=UNTRAINED) if fresh else runtime).load(model, init)
    if presets is not None:
        pipe.presets = read_presets(presets)
    patches, grid = pipe.backbone.patches, pipe.backbone.grid
    if fresh:
        backbone, text = pipe.elastic.detach(), sampling.text_budget is not None
        where = span(core) or usual_core(backbone)
        typed = {"core": where, "cuts": cuts, "cuts_from": cuts_from, "text_regions": text}
        pipe.model = attach(backbone, RegionConfig(**RegionConfig.untrained_defaults() | typed))

    asked = whole_numbers(labels, "labels") if labels else list(prompts)
    names, subject = subject_names(pipe.backbone, asked), "label" if labels else "prompt"
    if preset is None and seconds is None:
        rows = usual_budgets(budget or ("dense,0.75" if fresh else None), pipe)
        rows = [None if row is None else resolve_budget(row, patches) for row in rows]
        drawn = [("dense" if row is None else f"R = {row}", Dials(budget=row)) for row in rows]
    elif budget is not None:
        raise InputError(f"--budget {budget} given, and a preset, which has one; allowed: one of them")
    elif preset is not None and seconds is not None:
        raise InputError("--preset and --seconds given; allowed: one of them")
    elif preset is not None:
        drawn = [(name, pipe.dials(name)) for name in preset.split(",")]
    else:
        drawn = [(f"{seconds:g} s", pipe.dials(seconds=seconds))]
    rows = [None if dials.budget is None else resolve_budget(dials.budget, patches) for _, dials in drawn]
    if pipe.elastic is None and any(rows):
        given = "a preset with regions" if budget is None else f"budget {budget!r}"
        raise InputError(f"{given} needs an adapter; give --adapter FOLDER, or --untrained to see one at work")
    shown = None if regions_of is None else resolve_budget(parse_budget(regions_of), patches)
    if shown not in {*rows, None}:
        raise InputError(f"--regions-of {regions_of} is none of the budgets that are drawn; allowed: one of --budget")

    every_patch = torch.arange(patches).expand(len(names), -1)
    report, pictures, beside, overlays, titles = [], [], [], [], [title for title, _ in drawn]
    for row, (title, dials) in zip(rows, drawn, strict=True):
        typed = sampling.dials()
        if row is None:  # the frozen backbone has none
            typed = replace(typed, text_budget=None, guidance_passes=None)
        below = row is not None and row == shown
        with pipe.drawing(row is None) as drawing:
            started = time.perf_counter()
            result = drawing(
                **{subject: asked},
                **typed.over(dials).given(),
                guidance_scale=sampling.guidance,
                generator=[torch.Generator().manual_seed(seed + index) for index in range(len(names))],
                return_regions=below or (regions and row is not None),
                lenient=lenient,
            )
            took = round(time.perf_counter() - started, 3)
        how = {"preset": title} if dials.solver is not None else {}
        report.append(how | {"budget": "dense" if row is None else row, "seconds": took})
        pictures.append([enlarge(picture, 192) for picture in result.images])  # room for the labels
        beside.append(title)
        if regions or below:
            pairs = zip(result.images, every_patch if row is None else result.regions, strict=True)
            overlays.append([draw_regions(*pair, grid) for pair in pairs])
        if below:
            size = pictures[0][0].size
            pictures.append([overlay.resize(size, Image.Resampling.LANCZOS) for overlay in overlays[-1]])
            beside.append(f"its {row}\nregions")

    where = save_image(contact_sheet(pictures, beside, names), output)
    values = {"output": str(where), "model": model, "subjects": [str(one) for one in asked], "seed": seed}
    if regions:
        second = save_image(contact_sheet(overlays, titles, names), where.with_stem(f"{where.stem}-regions"))
        values["regions"] = str(second)
        where = f"{where} and {second}"
    title = f"{where}: {counted(len(names), 'picture')} a row"
    show_table(title, [*report[0]], [[*entry.values()] for entry in report])
    if fresh:
        say(WHAT_TO_EXPECT)
    return values | {"rows": report}


def _free_name() -> Path:
    """sample.png, sample-1.png, ...: no picture of before is lost."""
    names = (f"sample-{number}" if number else "sample" for number in itertools.count())
    ends = (".png", "-regions.png")
    return next(Path(f"{name}.png") for name in names if not any(os.path.lexists(name + end) for end in ends))
