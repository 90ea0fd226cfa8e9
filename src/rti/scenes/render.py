"""Pictures of scenes: anti-aliased shapes on flat or gently graded near-grey backgrounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rti.errors import InputError
from rti.scenes.layout import CANVAS, RADII, Layout, place
from rti.scenes.shapes import signed_distance
from rti.scenes.words import CAPTION_LENGTH, SHAPES, TEXTURES, encode
from rti.scenes.world import Scene, Thing, sample_scenes

# Hue in degrees, saturation, value. Neighbouring hues are at least 28 degrees apart, jitter takes 4 at most.
PALETTE = {
    "red": (0, 0.88, 0.92),
    "orange": (31, 0.92, 1.00),
    "yellow": (59, 0.88, 1.00),
    "green": (125, 0.80, 0.75),
    "cyan": (182, 0.85, 0.90),
    "blue": (224, 0.85, 0.95),
    "purple": (273, 0.80, 0.85),
    "pink": (325, 0.62, 1.00),
}
_HUE_JITTER = 4.0
_TONE_JITTER = 0.06  # of saturation and value, relative
_SHADE = 0.6  # brightness of stripes and dots
_PERIOD = 6.0  # of stripes and dots, in canvas units
_DOT_RADIUS = 1.9
_BATCHES = 2  # separates the random streams of training batches from those of evaluation prompts


class Batch(NamedTuple):
    """Pictures (n, 3, size, size) float32 in [-1, 1], their scenes, and the word ids of the captions (n, length)."""

    images: np.ndarray
    scenes: list[Scene]
    ids: np.ndarray


def batch(
    seed: int,
    index: int,
    count: int,
    split: str = "train",
    size: int = CANVAS,
    tasks: Sequence[str] | None = None,
    length: int = CAPTION_LENGTH,
) -> Batch:
    """`count` fresh pictures with captions. Depends on the arguments alone, so training can resume at any index."""
    if count < 1:
        raise InputError(f"a batch needs at least one picture, got {count}")
    rng = np.random.default_rng([_BATCHES, seed, index])
    scenes = sample_scenes(count, rng, split, tasks)
    return Batch(render(scenes, rng, size), scenes, np.stack([encode(scene.caption, length) for scene in scenes]))


def render(scenes: Sequence[Scene], rng: np.random.Generator, size: int = CANVAS) -> np.ndarray:
    """Draw each scene once: (n, 3, size, size) float32 in [-1, 1].

    Sizes below 64 are averages over areas of the 64 x 64 picture, sizes above are drawn finer: the same scenes and
    random state give the same picture at every size.
    """
    if size < 1 or (CANVAS % size and size % CANVAS):
        raise InputError(f"size must divide {CANVAS} or be a multiple of it, got {size}")
    return draw(scenes, place(scenes, rng), rng, size)


def draw(scenes: Sequence[Scene], layout: Layout, rng: np.random.Generator, size: int = CANVAS) -> np.ndarray:
    """Draw each scene with its objects where the layout says: (n, 3, size, size) float32 in [-1, 1]."""
    scale = max(1, size // CANVAS)  # pixels per canvas unit
    images = _backgrounds(len(scenes), rng, scale)
    things = [thing for scene in scenes for thing in scene.objects]
    if things:
        _draw_objects(images, things, layout, rng, scale)
    if size < CANVAS:
        block = CANVAS // size
        images = images.reshape(len(scenes), 3, size, block, size, block).mean(axis=(3, 5))
    return np.clip(images * 2 - 1, -1, 1)  # rounding only: all colours are in [0, 1]


def _backgrounds(count: int, rng: np.random.Generator, scale: int) -> np.ndarray:
    """Near-grey, half of them with a gentle slope of brightness: (count, 3, pixels, pixels) in [0, 1]."""
    brightness = rng.uniform(0.3, 0.85, (count, 1)) + rng.uniform(-0.02, 0.02, (count, 3))
    slope = rng.uniform(-0.12, 0.12, (count, 2)) * (rng.random((count, 1)) < 0.5)
    ramp = ((np.arange(CANVAS * scale) + 0.5) / (CANVAS * scale) - 0.5).astype(np.float32)
    brightness, slope = brightness.astype(np.float32), slope.astype(np.float32)
    graded = slope[:, 0, None, None] * ramp + slope[:, 1, None, None] * ramp[:, None]
    return brightness[:, :, None, None] + graded[:, None]


def _draw_objects(
    images: np.ndarray, things: Sequence[Thing], layout: Layout, rng: np.random.Generator, scale: int
) -> None:
    """Paint all objects into the pictures, in place. Each is computed on a window that just holds the largest one."""
    window = int(2 * max(high for _, high in RADII.values()) + 4) * scale
    corner = np.floor(layout.centre * scale).astype(np.int64) - window // 2
    corner = np.clip(corner, 0, CANVAS * scale - window)
    # Offsets of the window's pixel centres from the object's centre, in canvas units: (m, window, window).
    offset = (corner[:, :, None] + np.arange(window) + 0.5) / scale - layout.centre[:, :, None]
    offset = offset.astype(np.float32)
    x = np.broadcast_to(offset[:, 0, None, :], (len(things), window, window))
    y = np.broadcast_to(offset[:, 1, :, None], (len(things), window, window))
    coverage = _coverage([thing.shape for thing in things], x, y, layout.radius.astype(np.float32), scale)
    shade = _shade([thing.texture for thing in things], x, y, rng)
    colour = palette_rgb([thing.colour for thing in things], rng)
    for index, (left, top) in enumerate(corner):
        area = images[layout.scene[index], :, top : top + window, left : left + window]
        area += coverage[index] * (colour[index, :, None, None] * shade[index] - area)


def _coverage(shapes: Sequence[str], x: np.ndarray, y: np.ndarray, radius: np.ndarray, scale: int) -> np.ndarray:
    """How much of each pixel the object covers, in [0, 1]: the signed distance, clipped to one pixel."""
    coverage = np.empty(x.shape, dtype=np.float32)
    kinds = np.array([SHAPES.index(shape) for shape in shapes])
    for kind in np.unique(kinds):
        chosen = np.flatnonzero(kinds == kind)
        unit = radius[chosen, None, None]
        distance = signed_distance(SHAPES[kind], x[chosen] / unit, y[chosen] / unit) * unit
        coverage[chosen] = np.clip(0.5 - distance * scale, 0, 1)
    return coverage


def _shade(textures: Sequence[str], x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Brightness factor of the texture, anchored to the object's centre: 1 for plain, else between _SHADE and 1."""
    shade = np.ones(x.shape, dtype=np.float32)
    kinds = np.array(textures)
    upright = rng.random(len(textures)) < 0.5
    for name in TEXTURES[1:]:
        chosen = np.flatnonzero(kinds == name)
        across, along = x[chosen], y[chosen]
        if name == "striped":
            position = np.where(upright[chosen, None, None], across, along)
            # Distance to the middle of the nearest dark stripe, which is half a period wide.
            inside = _PERIOD / 4 - np.abs((position + _PERIOD / 2) % _PERIOD - _PERIOD / 2)
        else:
            rows = (across + _PERIOD / 2) % _PERIOD - _PERIOD / 2
            columns = (along + _PERIOD / 2) % _PERIOD - _PERIOD / 2
            inside = _DOT_RADIUS - np.hypot(rows, columns)
        shade[chosen] -= (1 - _SHADE) * np.clip(inside + 0.5, 0, 1)
    return shade


def palette_rgb(colours: Sequence[str], rng: np.random.Generator | None = None) -> np.ndarray:
    """Red, green and blue of named colours, slightly varied if there is a random generator: (m, 3) in [0, 1]."""
    hue, saturation, value = np.array([PALETTE[colour] for colour in colours]).T
    if rng is not None:
        hue = hue + rng.uniform(-_HUE_JITTER, _HUE_JITTER, hue.shape)
        saturation = saturation * rng.uniform(1 - _TONE_JITTER, 1 + _TONE_JITTER, hue.shape)
        value = np.minimum(value * rng.uniform(1 - _TONE_JITTER, 1 + _TONE_JITTER, hue.shape), 1)
    # The standard conversion from HSV: each channel is a trapezoid over the hue circle.
    place_on_circle = (np.array([5, 3, 1]) + hue[:, None] / 60) % 6
    trapezoid = np.clip(np.minimum(place_on_circle, 4 - place_on_circle), 0, 1)
    return (value[:, None] * (1 - saturation[:, None] * trapezoid)).astype(np.float32)
