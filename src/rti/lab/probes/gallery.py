"""Figures of pictures: one checkpoint at every budget, regions along sampling, methods side by side."""

from __future__ import annotations

import itertools
import textwrap
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from rti.errors import InputError
from rti.flow import picture_generator
from rti.images import draw_regions, enlarge, to_pil
from rti.lab.plots import COLOURS, picture_grid
from rti.lab.probes.groupings import Row
from rti.lab.probes.measures import kept_by_skipping
from rti.lab.probes.trajectory import Moment, Run
from rti.lab.scenes.classes import subject_names
from rti.method.budgets import resolve_budget
from rti.pipeline import Pipeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTH = 0.55  # of a tint
SIDE = 256  # small pictures are enlarged to this, so that their pixels stay sharp in print


def gallery(run: Run, pipes: dict[str, Pipeline], budgets: Sequence[Any]) -> tuple[Figure, dict[str, Any]]:
    """The budget sweep: a dense row, then at each budget a row for each method, the same noise down a column."""
    if not pipes:
        advice = "give --adapter FOLDER or --trained NAME=FOLDER"
        raise InputError(f"the model has no adapter, so it has no budget; {advice}")
    wanted = list(dict.fromkeys(resolve_budget(budget, run.pipe.backbone.patches) for budget in budgets))
    rows, labels = [_pictures(run, next(iter(pipes.values())), None)], ["dense"]
    for budget, (name, pipe) in itertools.product(wanted, pipes.items()):
        rows.append(_pictures(run, pipe, budget))
        labels.append(f"R = {budget}" if len(pipes) == 1 else f"R = {budget}\n{name}")
    data = {"figure": "gallery", "methods": list(pipes), "budgets": wanted} | _data(run)
    return picture_grid(rows, labels, _names(run)), data


def overlay(run: Run, budget: Any) -> tuple[Figure, dict[str, Any]]:
    """The clean image predicted along sampling, with the regions the model used there; a row for each watched step.

    Two are early and late.
    """
    regions, grid, rows = resolve_budget(budget, run.pipe.backbone.patches), run.pipe.backbone.grid, []

    def observe(moment: Moment) -> None:
        pictures = zip(to_pil(moment.estimate), moment.seen, strict=False)
        rows.append([draw_regions(picture, ids, grid) for picture, ids in pictures])

    drawn = run.follow(range(len(run.subjects)), observe, regions)
    rows.append([enlarge(picture, SIDE) for picture in to_pil(drawn)])
    labels = [f"t = {time:.2f}" for time in run.times] + ["the picture"]
    data = {"figure": "overlay", "budget": regions, "times": run.times} | _data(run)
    return picture_grid(rows, labels, _names(run)), data


def methods(
    run: Run, rows: Sequence[Row], core: tuple[int, int], budget: Any, trained: dict[str, Pipeline]
) -> tuple[Figure, dict[str, Any]]:
    """Methods side by side at one budget: how each groups the frozen model's tokens at the last watched step, tinted.

    Below its groups stands the picture of each, where all of them are in `trained`. A soft group shows what its first
    token reads, a method without groups which patches it keeps.
    """
    regions, grid = resolve_budget(budget, run.pipe.backbone.patches), run.pipe.backbone.grid
    last: deque[Moment] = deque(maxlen=1)
    drawn = to_pil(run.follow(range(len(run.subjects)), last.append))
    tokens = last[0].seen[core[0]]
    with torch.no_grad():
        groups = {row.name: row.groups(tokens, regions, last[0].before) for row in rows}
    kept = kept_by_skipping(tokens.image[: last[0].count].float(), regions)

    def grouped(name: str, picture: Image.Image, place: int) -> Image.Image:
        if groups[name] is None:
            return fade(picture, kept[place], grid)
        found = groups[name][place]
        return glow(picture, found[0], grid) if found.ndim == 2 else tint_groups(picture, found, grid)

    names = [row.name for row in rows]
    samples = {name: _pictures(run, pipe, regions) for name, pipe in trained.items()}
    every_patch = torch.arange(run.pipe.backbone.patches)
    lines, labels = [], []
    for place, (subject, picture) in enumerate(zip(_names(run), drawn, strict=True)):
        lines.append([draw_regions(picture, every_patch, grid), *(grouped(name, picture, place) for name in names)])
        labels.append("groups" if len(drawn) == 1 else textwrap.fill(subject, 20) + "\ngroups")
        if samples:
            lines.append([enlarge(picture, SIDE), *(samples[name][place] for name in names)])
            labels.append("picture")
    data = {"figure": "methods", "budget": regions, "core": list(core), "methods": names}
    data |= {"pictures_of": list(samples), "time": run.times[-1]} | _data(run)
    return picture_grid(lines, labels, ["dense", *names]), data


def _pictures(run: Run, pipe: Pipeline, budget: int | None) -> list[Image.Image]:
    """The pictures of a run as another model draws them, from the same noise; without a budget the frozen one."""
    generators = [picture_generator(run.seed, index) for index in range(len(run.subjects))]
    settings = {"num_inference_steps": run.steps, "guidance_scale": run.guidance, "generator": generators}
    drawn = pipe(list(run.subjects), budget=budget, dense=budget is None, progress=False, **settings)
    return [enlarge(picture, SIDE) for picture in drawn.images]


def _names(run: Run) -> list[str]:
    return subject_names(run.pipe.backbone, run.subjects)


def _data(run: Run) -> dict[str, Any]:
    settings = run.settings()
    return {"subjects": list(run.subjects)} | {name: settings[name] for name in ("seed", "steps", "guidance")}


# Groups drawn on a picture.


def tint_groups(picture: Image.Image, groups: torch.Tensor, grid: tuple[int, int]) -> Image.Image:
    """Every patch in the colour of its group, of which there are few, boundaries drawn. (N,) groups."""
    colours = np.array([tuple(bytes.fromhex(colour[1:])) for colour in COLOURS])
    wash = colours[groups.view(grid).cpu().numpy() % len(COLOURS)]
    return draw_regions(_blend(picture, wash, STRENGTH), groups, grid)


def glow(picture: Image.Image, weights: torch.Tensor, grid: tuple[int, int]) -> Image.Image:
    """One soft group: the picture where it reads, dark where it does not. (N,) weights."""
    light = (weights / weights.max()).view(grid).double().cpu().numpy()
    return _blend(picture, np.zeros((*grid, 3)), 0.9 * (1 - light[..., None]))


def fade(picture: Image.Image, kept: torch.Tensor, grid: tuple[int, int]) -> Image.Image:
    """The patches that are not kept, faded to white. (N,) bool."""
    away = ~kept.view(grid).cpu().numpy()
    return _blend(picture, np.full((*grid, 3), 255.0), 0.85 * away[..., None])


def _blend(picture: Image.Image, wash: np.ndarray, strength: np.ndarray | float) -> Image.Image:
    """Mix a colour per patch, (rows, columns, 3), into an enlarged picture."""
    rows, columns = wash.shape[:2]
    canvas = enlarge(picture.convert("RGB"), 512)
    if canvas.height % rows or canvas.width % columns:
        raise InputError(f"a picture of {picture.size} does not divide into {rows} x {columns} patches")
    patch = np.ones((canvas.height // rows, canvas.width // columns, 1))
    share = np.kron(np.broadcast_to(strength, (rows, columns, 1)), patch)
    mixed = (1 - share) * np.asarray(canvas, dtype=np.float64) + share * np.kron(wash, patch)
    return Image.fromarray(mixed.round().astype(np.uint8))
