"""Groups drawn on a picture: tinted by group, a soft group as a glow, skipped patches faded."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from rti.errors import InputError
from rti.images import draw_regions, enlarge
from rti.lab.plots import COLOURS

STRENGTH = 0.55  # of a tint


def tint_groups(picture: Image.Image, groups: torch.Tensor, grid: tuple[int, int]) -> Image.Image:
    """Every patch in the colour of its group, groups that touch in different ones, boundaries drawn. (N,) groups."""
    colours = np.array([_rgb(colour) for colour in COLOURS])
    wash = colours[_apart(groups.view(grid).cpu().numpy())]
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


def _apart(groups: np.ndarray) -> np.ndarray:
    """A colour number for each patch, the same within a group, and different where groups touch while that is possible.

    Greedy over the groups in order of their number; a group picks the colour least used by its neighbours.
    """
    beside = zip((groups[:, :-1], groups[:-1]), (groups[:, 1:], groups[1:]), strict=True)
    touching = {pair for one, other in beside for pair in zip(one.flat, other.flat, strict=True)}
    chosen: dict[int, int] = {}
    for turn, group in enumerate(np.unique(groups)):
        others = {a if b == group else b for a, b in touching if group in (a, b)} - {group}
        taken = [chosen[other] for other in others if other in chosen]
        # Of the colours that are equally free, each in its turn: all are used about as often.
        free = range(turn, turn + len(COLOURS))
        chosen[group] = min(free, key=lambda colour: taken.count(colour % len(COLOURS))) % len(COLOURS)
    return np.vectorize(chosen.__getitem__)(groups)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))
