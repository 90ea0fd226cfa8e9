"""Pictures of scenes: anti-aliased shapes on flat or gently graded near-grey backgrounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rti.errors import InputError, check_whole
from rti.lab.scenes.layout import CANVAS, Layout, place
from rti.lab.scenes.shapes import signed_distance
from rti.lab.scenes.world import TASKS, Scene, sample_scenes

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


def batch(
    seed: int, index: int, count: int, split: str = "train", size: int = CANVAS, tasks: Sequence[str] = TASKS
) -> tuple[np.ndarray, list[Scene]]:
    """`count` fresh pictures, (n, 3, size, size) float32 in [-1, 1], and their scenes.

    They depend on the arguments alone, so training can resume at any index.
    """
    check_whole("number of pictures", count)
    rng = np.random.default_rng([_BATCHES, seed, index])
    scenes = sample_scenes(count, rng, split, tasks)
    return render(scenes, rng, size), scenes


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
    upright = rng.random(len(things)) < 0.5
    colour = palette_rgb([thing.colour for thing in things], rng)
    # Each object is painted on a window that just holds it; the blurred tips of a star reach 1.3 pixels further.
    half = (np.ceil(layout.radius).astype(np.int64) + 2) * scale
    corner = np.floor(layout.centre * scale).astype(np.int64) - half[:, None]
    corner = np.minimum(np.maximum(corner, 0), CANVAS * scale - 2 * half[:, None])
    middles = (np.arange(CANVAS * scale) + 0.5) / scale  # of the pixels, in canvas units
    for index, (left, top) in enumerate(corner.tolist()):
        columns, rows = slice(left, left + 2 * half[index]), slice(top, top + 2 * half[index])
        # Offsets from the object's centre. A row (w,) and a column (w, 1) until a shape or a texture joins them.
        x = (middles[columns] - layout.centre[index, 0]).astype(np.float32)
        y = (middles[rows] - layout.centre[index, 1]).astype(np.float32)[:, None]
        # How much of each pixel the object covers: the signed distance, clipped to one pixel.
        radius = np.float32(layout.radius[index])
        distance = signed_distance(things[index].shape, x / radius, y / radius) * radius
        cover = np.minimum(np.maximum(0.5 - distance * scale, 0), 1).astype(np.float32)
        shade = _shade(things[index].texture, x, y, upright[index])
        area = images[layout.scene[index], :, rows, columns]
        area += cover * (colour[index, :, None, None] * shade - area)
    if size < CANVAS:
        block = CANVAS // size
        images = images.reshape(len(images), 3, size, block, size, block).mean(axis=(3, 5))
    images *= 2
    images -= 1
    return images.clip(-1, 1, out=images)  # rounding only: all colours are in [0, 1]


def _backgrounds(count: int, rng: np.random.Generator, scale: int) -> np.ndarray:
    """Near-grey, half of them with a gentle slope of brightness: (count, 3, pixels, pixels) in [0, 1]."""
    brightness = rng.uniform(0.3, 0.85, (count, 1)) + rng.uniform(-0.02, 0.02, (count, 3))
    slope = rng.uniform(-0.12, 0.12, (count, 2)) * (rng.random((count, 1)) < 0.5)
    ramp = ((np.arange(CANVAS * scale) + 0.5) / (CANVAS * scale) - 0.5).astype(np.float32)
    brightness, slope = brightness.astype(np.float32), slope.astype(np.float32)
    graded = slope[:, 0, None, None] * ramp + slope[:, 1, None, None] * ramp[:, None]
    return brightness[:, :, None, None] + graded[:, None]


def _shade(texture: str, x: np.ndarray, y: np.ndarray, upright: bool) -> np.ndarray | float:
    """Brightness factor of the texture, anchored to the object's centre: 1 for plain, else between _SHADE and 1."""
    if texture == "plain":
        return 1.0
    if texture == "striped":
        # Distance to the middle of the nearest dark stripe, which is half a period wide.
        inside = _PERIOD / 4 - np.abs(_repeat(x if upright else y))
    else:
        inside = _DOT_RADIUS - np.hypot(_repeat(x), _repeat(y))
    return 1 - (1 - _SHADE) * np.minimum(np.maximum(inside + 0.5, 0), 1)


def _repeat(line: np.ndarray) -> np.ndarray:
    """Offset from the middle of the nearest stripe or dot."""
    return (line + _PERIOD / 2) % _PERIOD - _PERIOD / 2


def palette_rgb(colours: Sequence[str], rng: np.random.Generator | None = None) -> np.ndarray:
    """Red, green and blue of named colours, slightly varied if there is a random generator: (m, 3) in [0, 1]."""
    hue, saturation, value = np.array([PALETTE[colour] for colour in colours]).reshape(-1, 3).T
    if rng is not None:
        hue = hue + rng.uniform(-_HUE_JITTER, _HUE_JITTER, hue.shape)
        saturation = saturation * rng.uniform(1 - _TONE_JITTER, 1 + _TONE_JITTER, hue.shape)
        value = np.minimum(value * rng.uniform(1 - _TONE_JITTER, 1 + _TONE_JITTER, hue.shape), 1)
    # The standard conversion from HSV: each channel is a trapezoid over the hue circle.
    place_on_circle = (np.array([5, 3, 1]) + hue[:, None] / 60) % 6
    trapezoid = np.clip(np.minimum(place_on_circle, 4 - place_on_circle), 0, 1)
    return (value[:, None] * (1 - saturation[:, None] * trapezoid)).astype(np.float32)
