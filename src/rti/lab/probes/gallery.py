"""Figures of pictures: one checkpoint at every budget, regions along sampling, methods side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from rti.errors import InputError
from rti.flow import picture_generator
from rti.images import draw_regions, enlarge, to_pil
from rti.lab.plots import picture_grid
from rti.lab.probes.groupings import Row
from rti.lab.probes.measures import kept_by_skipping
from rti.lab.probes.tint import fade, glow, tint_groups
from rti.lab.probes.trajectory import Moment, RegionsHook, Run, TrunkHook
from rti.lab.scenes.classes import subject_names
from rti.method.budgets import resolve_budget
from rti.pipeline import Pipeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 256  # small pictures are enlarged to this, so that their pixels stay sharp in print


@dataclass(frozen=True)
class Drawing:
    """How the pictures of a figure are drawn."""

    seed: int = 0
    steps: int | None = None
    guidance: float | None = None

    def pictures(self, pipe: Pipeline, subjects: Sequence[Any], budget: int | None) -> list[Image.Image]:
        generators = [picture_generator(self.seed, index) for index in range(len(subjects))]
        settings = {"num_inference_steps": self.steps, "guidance_scale": self.guidance, "generator": generators}
        drawn = pipe(list(subjects), budget=budget, dense=budget is None, progress=False, **settings)
        return [enlarge(picture, SIDE) for picture in drawn.images]

    def run(self, pipe: Pipeline, subjects: Sequence[Any], watched: int) -> Run:
        steps = pipe.backbone.flow.steps if self.steps is None else self.steps
        return Run(pipe, list(subjects), self.seed, steps, self.guidance, watched, progress=False)


def gallery(
    pipes: dict[str, Pipeline], subjects: Sequence[Any], budgets: Sequence[Any], drawing: Drawing
) -> tuple[Figure, dict[str, Any]]:
    """The budget sweep: a dense row, then at each budget a row for each method, the same noise down a column."""
    first = next(iter(pipes.values()))
    wanted = list(dict.fromkeys(resolve_budget(budget, first.backbone.patches) for budget in budgets))
    rows, labels = [drawing.pictures(first, subjects, None)], ["dense"]
    for budget in wanted:
        for name, pipe in pipes.items():
            rows.append(drawing.pictures(pipe, subjects, budget))
            labels.append(f"R = {budget}" if len(pipes) == 1 else f"R = {budget}\n{name}")
    data = {"figure": "gallery", "methods": list(pipes), "budgets": wanted} | _data(drawing, first, subjects)
    return picture_grid(rows, labels, subject_names(first.backbone, subjects)), data


def overlay(
    pipe: Pipeline, subjects: Sequence[Any], budget: Any, moments: int, drawing: Drawing
) -> tuple[Figure, dict[str, Any]]:
    """The clean image predicted along sampling, with the regions the model used there; a row for each of the moments.

    Two moments are early and late.
    """
    elastic = pipe.elastic
    if elastic is None:
        raise InputError("the overlay shows the regions of an adapter, and this model has none; give --adapter FOLDER")
    regions = resolve_budget(budget, pipe.backbone.patches)
    run = drawing.run(pipe, subjects, moments)
    grid, found = pipe.backbone.grid, []

    def observe(moment: Moment) -> None:
        if moment.seen is None:
            raise InputError(f"the reduction {elastic.config.name!r} forms no regions to draw")
        pictures = to_pil(moment.estimate)
        found.append([draw_regions(one, ids, grid) for one, ids in zip(pictures, moment.seen, strict=False)])

    drawn = run.follow(elastic, range(len(subjects)), RegionsHook(elastic.reduction), observe, regions)
    rows = [*found, [enlarge(picture, SIDE) for picture in to_pil(drawn)]]
    labels = [f"t = {time:.2f}" for time in run.times] + ["the picture"]
    data = {"figure": "overlay", "budget": regions, "times": run.times} | _data(drawing, pipe, subjects)
    return picture_grid(rows, labels, subject_names(pipe.backbone, subjects)), data


def methods(
    pipe: Pipeline,
    rows: Sequence[Row],
    core: tuple[int, int],
    subjects: Sequence[Any],
    budget: Any,
    drawing: Drawing,
    trained: dict[str, Pipeline],
) -> tuple[Figure, dict[str, Any]]:
    """Methods side by side at one budget: how each groups the frozen model's tokens late in sampling, tinted.

    Below its groups stands the picture of each, where all of them are in `trained`. A soft group shows what its first
    token reads, a method without groups which patches it keeps.
    """
    run = drawing.run(pipe, subjects, 3)
    regions, grid = resolve_budget(budget, pipe.backbone.patches), pipe.backbone.grid
    groups: dict[str, torch.Tensor] = {}
    kept: list[torch.Tensor] = []

    def observe(moment: Moment) -> None:
        if moment.place < len(run.at) - 1:
            return
        tokens = moment.seen[core[0]]
        for row in rows:
            found = row.groups(tokens, regions, moment.before)
            if found is not None:
                groups[row.name] = found[: moment.count]
        kept.append(kept_by_skipping(tokens.image[: moment.count].float(), regions))

    with run.frozen() as model, torch.no_grad():
        drawn = to_pil(run.follow(model, range(len(subjects)), TrunkHook(model), observe))
    samples = {name: drawing.pictures(one, subjects, regions) for name, one in trained.items()}
    every_patch = torch.arange(pipe.backbone.patches)
    lines, labels = [], []
    for place, (subject, picture) in enumerate(zip(subject_names(pipe.backbone, subjects), drawn, strict=True)):
        title = "" if len(subjects) == 1 else textwrap.fill(subject, 20) + "\n"
        found = [_drawn(row, groups, kept[0], picture, place, grid) for row in rows]
        lines.append([draw_regions(picture, every_patch, grid), *found])
        labels.append(f"{title}groups")
        if samples:
            lines.append([enlarge(picture, SIDE), *(samples[row.name][place] for row in rows)])
            labels.append("picture")
    data = {"figure": "methods", "budget": regions, "core": list(core), "methods": [row.name for row in rows]}
    data |= {"pictures_of": list(samples), "time": run.times[-1]} | _data(drawing, pipe, subjects)
    return picture_grid(lines, labels, ["dense", *(row.name for row in rows)]), data


def _drawn(
    row: Row, groups: dict[str, torch.Tensor], kept: torch.Tensor, picture: Image.Image, place: int, grid: Any
) -> Image.Image:
    if row.name not in groups:
        return fade(picture, kept[place], grid)
    found = groups[row.name][place]
    return glow(picture, found[0], grid) if found.ndim == 2 else tint_groups(picture, found, grid)


def _data(drawing: Drawing, pipe: Pipeline, subjects: Sequence[Any]) -> dict[str, Any]:
    flow = pipe.backbone.flow
    return {
        "subjects": list(subjects),
        "seed": drawing.seed,
        "steps": flow.steps if drawing.steps is None else drawing.steps,
        "guidance": flow.guidance_scale if drawing.guidance is None else drawing.guidance,
    }
