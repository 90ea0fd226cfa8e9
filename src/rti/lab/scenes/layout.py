"""Where the objects of a scene stand: constructed, not tried, so that it always succeeds and works on whole batches.

All lengths are in canvas units: the canvas is CANVAS wide and high whatever the size of the picture in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rti.lab.scenes.world import HELD_OUT_TRIPLES, Scene
from rti.text.vocabulary import RELATIONS

CANVAS = 64
MARGIN = 2.0  # between an object and the border
GAP = 3.5  # at least, between the boxes of two objects
RADII = {1: (12.0, 18.0), 2: (10.0, 13.5), 3: (9.5, 12.5), 4: (9.0, 11.5)}  # by the number of objects

# Sideways offset over the distance along the relation: below 0.6 only that one relation holds by GenEval's rule.
_CONE = 0.6
_FREE = 1.5


class Layout(NamedTuple):
    """Objects of all scenes, one after the other: index of the scene (m,), centre (m, 2) as x and y, radius (m,)."""

    scene: np.ndarray
    centre: np.ndarray
    radius: np.ndarray


def place(scenes: Sequence[Scene], rng: np.random.Generator) -> Layout:
    """Place the objects of every scene: inside the canvas, apart from each other, in the relation if there is one.

    Objects without a relation never show a held-out triple, so a picture shows one only if its caption asks for it.
    """
    numbers = np.array([len(scene.objects) for scene in scenes], dtype=np.int64)
    first = np.cumsum(numbers) - numbers
    centre, radius = np.zeros((numbers.sum(), 2)), np.zeros(numbers.sum())
    for number, bounds in RADII.items():
        chosen = np.flatnonzero(numbers == number)
        if not chosen.size:
            continue
        radii = rng.uniform(*bounds, (chosen.size, number))
        if number == 1:
            centres = np.stack([_inside(radii, rng), _inside(radii, rng)], axis=-1)
        elif number == 2:
            centres = _pairs(radii, [scenes[index] for index in chosen], rng)
        else:
            centres = _shelves(radii, rng)
        rows = first[chosen, None] + np.arange(number)
        centre[rows], radius[rows] = centres, radii
    return Layout(np.repeat(np.arange(len(scenes)), numbers), centre, radius)


def _inside(radii: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Any coordinate that keeps each object inside the canvas. (...) -> (...)."""
    return rng.uniform(MARGIN + radii, CANVAS - MARGIN - radii)


def _side_by_side(low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of two neighbours of these radii, the first one lower; the spare room is split at random."""
    spare = CANVAS - 2 * MARGIN - GAP - 2 * (low + high)
    before, after = np.sort(rng.random((2, *spare.shape)), axis=0)
    return MARGIN + low + before * spare, CANVAS - MARGIN - high - (1 - after) * spare


def _pairs(radii: np.ndarray, scenes: Sequence[Scene], rng: np.random.Generator) -> np.ndarray:
    """Two objects each, the first in its relation to the second, or in any allowed. (n, 2) radii -> (n, 2, 2)."""
    directions, reach = [], []  # the relation to draw, and how far sideways the objects may stand
    for scene, random in zip(scenes, rng.random(len(scenes)), strict=True):
        one, other = (thing.shape for thing in scene.objects)
        allowed = [name for name in RELATIONS if (one, name, other) not in HELD_OUT_TRIPLES]
        allowed = allowed if scene.relation is None else [scene.relation]
        directions.append(allowed[int(random * len(allowed))])
        reach.append(_FREE if len(allowed) == len(RELATIONS) else _CONE)
    rows, lower = np.arange(len(radii)), np.isin(directions, ("right of", "below")).astype(np.int64)
    along, across = np.zeros_like(radii), np.zeros_like(radii)
    along[rows, lower], along[rows, 1 - lower] = _side_by_side(radii[rows, lower], radii[rows, 1 - lower], rng)
    sideways = reach * np.abs(along[:, 0] - along[:, 1])
    across[:, 0] = _inside(radii[:, 0], rng)
    least = np.maximum(MARGIN + radii[:, 1], across[:, 0] - sideways)
    most = np.minimum(CANVAS - MARGIN - radii[:, 1], across[:, 0] + sideways)
    across[:, 1] = rng.uniform(least, most)
    vertical = np.isin(directions, ("above", "below"))[:, None]
    return np.stack([np.where(vertical, across, along), np.where(vertical, along, across)], axis=-1)


def _shelves(radii: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Three or four objects on two shelves, lying or standing. (n, 3 or 4) radii -> (n, 3 or 4, 2) centres."""
    number = radii.shape[1]
    along, across = np.zeros_like(radii), np.zeros_like(radii)
    shelves = (slice(0, 2), slice(2, number))
    depths = [radii[:, shelf].max(axis=1) for shelf in shelves]
    for shelf, depth, line in zip(shelves, depths, _side_by_side(*depths, rng), strict=True):
        room = depth[:, None] - radii[:, shelf]
        across[:, shelf] = line[:, None] + rng.uniform(-room, room)
    along[:, 0], along[:, 1] = _side_by_side(radii[:, 0], radii[:, 1], rng)
    if number == 4:
        along[:, 2], along[:, 3] = _side_by_side(radii[:, 2], radii[:, 3], rng)
    else:
        along[:, 2] = _inside(radii[:, 2], rng)
    # The shelf of two is first by construction: a mirror image puts it second half of the time.
    mirrored, standing = rng.random((2, len(radii), 1)) < 0.5
    across = np.where(mirrored, CANVAS - across, across)
    return np.stack([np.where(standing, across, along), np.where(standing, along, across)], axis=-1)
