"""Find the objects of a picture, exactly and quickly: the detector of the scenes world.

Objects are what differs from the background in chroma: background and textures change brightness only, and along a
blurred edge chroma falls in proportion to coverage. Connected components are matched with templates of the outlines,
and named after the hue of their mean chroma.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from rti.errors import InputError
from rti.lab.scenes.layout import CANVAS
from rti.lab.scenes.render import palette_rgb
from rti.lab.scenes.shapes import signed_distance
from rti.text.vocabulary import COLOURS, SHAPES

THRESHOLD = 0.85  # least score of a detection
_CHROMA = 0.15  # least chroma of an object; backgrounds stay below 0.06, shaded pink above 0.3
_EDGE = 0.45  # where an outline is cut, as a share of the object's mean chroma
_AREA = 48  # least number of pixels; the smallest object of the world, a star, has 120
_MOST = 16  # objects looked at per picture, the largest ones, as in GenEval
_GRID = 20  # cells along a side of the templates
_REACH = 2.2  # from the centroid to the templates' border, in radii of gyration; star tips and horns just fit
_BORDER = 2  # objects keep this far from the border: it shows the background


class Detection(NamedTuple):
    """An object found: box (left, top, right, bottom), its centre (x, y) and the area in pixels; score in [0, 1]."""

    shape: str
    colour: str
    box: tuple[float, float, float, float]
    centre: tuple[float, float]
    area: float
    score: float


def detect(images: np.ndarray, threshold: float = THRESHOLD) -> list[list[Detection]]:
    """Objects of each picture, best score first. (n, 3, size, size) in [-1, 1] -> n lists.

    The score is 1 minus the mean displacement of the outline from the best template (in radii of gyration), times the
    coherence of the hue (1 for a single hue): a shape drawn a little wrong keeps most of it, a blob or an object of two
    colours does not.
    """
    images = np.asarray(images, dtype=np.float32)
    if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        raise InputError(f"pictures must be (n, 3, size, size), got {images.shape}")
    unit = images.shape[-1] / CANVAS  # pixels per canvas unit
    return [_detect(image, unit, threshold) for image in _resize(images)]


def _detect(image: np.ndarray, unit: float, threshold: float) -> list[Detection]:
    chroma = _chroma(image)
    labels = _objects(np.hypot(*chroma))
    shape, displacement = _classify(_windows(labels))
    colour, coherence = _hues(chroma, labels)
    score = np.maximum(1 - displacement, 0) * coherence
    area, boxes = np.bincount(labels.ravel())[1:] * unit**2, scipy_ndimage().find_objects(labels)
    found = []
    for index in np.argsort(-score, kind="stable")[: np.count_nonzero(score > threshold)]:
        rows, columns = boxes[index]
        left, top, right, bottom = (float(side * unit) for side in (columns.start, rows.start, columns.stop, rows.stop))
        names, centre = (SHAPES[shape[index]], COLOURS[colour[index]]), ((left + right) / 2, (top + bottom) / 2)
        found.append(Detection(*names, (left, top, right, bottom), centre, float(area[index]), float(score[index])))
    return found


def _resize(images: np.ndarray) -> np.ndarray:
    """Pictures at the size of the canvas, in [0, 1]: interpolated if they are smaller, averaged if larger."""
    size = images.shape[-1]
    images = np.clip((images + 1) / 2, 0, 1)
    if size == CANVAS:
        return images
    width = max(1.0, size / CANVAS)
    middle = (np.arange(CANVAS) + 0.5) * size / CANVAS
    # A tent as wide as the coarser of the two grids; its rows sum to one, also at the border.
    tent = np.maximum(0, 1 - np.abs(middle[:, None] - np.arange(size) - 0.5) / width)
    tent = (tent / tent.sum(axis=1, keepdims=True)).astype(np.float32)
    return tent @ images @ tent.T


def _chroma(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Difference to the background in the plane of hues, two components (size, size). Its angle is the hue."""
    frame = np.ones(image.shape[-2:], dtype=bool)
    frame[_BORDER:-_BORDER, _BORDER:-_BORDER] = False
    background = np.median(image[:, frame], axis=-1)
    return _hue_plane(*(image - background[:, None, None]))


def _hue_plane(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return red - (green + blue) / 2, np.sqrt(np.float32(0.75)) * (green - blue)


def scipy_ndimage() -> ModuleType:
    """What finds connected components; refuse to go on without."""
    try:
        from scipy import ndimage
    except ImportError:
        raise InputError("the detector of the scenes world needs scipy: pip install 'region-tokens[eval]'") from None
    return ndimage


def _objects(strength: np.ndarray) -> np.ndarray:
    """The object of each pixel by its chroma, from 1 on, 0 outside; diagonal neighbours belong together. (h, w) both.

    A first, low threshold finds the objects; within each, its own mean sets the level, so that a blurred outline is
    cut near its middle however strong the colour is. Shaded stripes (0.6 of the colour) stay above that level.
    """
    label, touching = scipy_ndimage().label, np.ones((3, 3))
    labels = label(strength > _CHROMA, touching)[0]
    total, number = np.bincount(labels.ravel(), weights=strength.ravel()), np.bincount(labels.ravel())
    level = (_EDGE * total / np.maximum(number, 1)).astype(np.float32)
    level[0] = np.inf
    labels = label(strength > np.maximum(level[labels], _CHROMA), touching)[0]
    area = np.bincount(labels.ravel())
    area[0] = 0
    kept = np.sort(np.argsort(-area, kind="stable")[:_MOST])
    kept = kept[area[kept] >= _AREA]
    renumbered = np.zeros(len(area), dtype=np.int32)
    renumbered[kept] = np.arange(1, len(kept) + 1)
    return renumbered[labels]


def _hues(chroma: tuple[np.ndarray, np.ndarray], labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest colour (index) and coherence of the hue of each component: (m,), (m,)."""
    values = (*chroma, np.hypot(*chroma))
    x, y, strength = (np.bincount(labels.ravel(), weights=value.ravel())[1:] for value in values)
    palette = _hue_plane(*palette_rgb(COLOURS).T)
    turn = np.arctan2(y, x)[:, None] - np.arctan2(palette[1], palette[0])
    distance = np.abs((turn + np.pi) % (2 * np.pi) - np.pi)
    return distance.argmin(axis=1), np.hypot(x, y) / strength


def _windows(labels: np.ndarray) -> np.ndarray:
    """Each component as coverage of a coarse grid around its centroid: (m, grid, grid) in [0, 1].

    The grid spans _REACH radii of gyration to each side. Unlike the box, these moments hardly move when the outline
    is a little wrong in one place.
    """
    row, column = np.nonzero(labels)
    inside = labels[row, column] - 1
    area = np.bincount(inside)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(inside, weights=values) / area

    x, y = mean(column + 0.5), mean(row + 0.5)
    gyration = np.sqrt(mean((column + 0.5 - x[inside]) ** 2 + (row + 0.5 - y[inside]) ** 2))
    reach, pixels = (_REACH * gyration)[:, None, None], np.arange(len(labels))

    def share(middle: np.ndarray) -> np.ndarray:
        """Of each pixel in each cell of the grid around the middle: (m,) -> (m, grid, size)."""
        edges = middle[:, None, None] + reach * np.linspace(-1, 1, _GRID + 1)[:, None]
        overlap = np.minimum(edges[:, 1:], pixels + 1) - np.maximum(edges[:, :-1], pixels)
        return (np.maximum(overlap, 0) * _GRID / (2 * reach)).astype(np.float32)

    masks = labels == np.arange(1, len(area) + 1)[:, None, None]
    return share(y) @ masks.astype(np.float32) @ share(x).transpose(0, 2, 1)


def _classify(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best shape (index) and how far the outline is off, in radii of gyration: (m, grid, grid) -> (m,), (m,).

    The area where object and template differ, divided by the length of the template's outline, is the mean
    displacement of the outline: the same error counts the same for a compact circle and a thin ring.
    """
    templates, outlines, shapes = _templates()
    differing = np.stack([np.abs(windows - template).sum(axis=(1, 2)) for template in templates], axis=1)
    displacement = differing / outlines * (2 * _REACH / _GRID)
    best = displacement.argmin(axis=1)
    return shapes[best], displacement[np.arange(len(best)), best]


@lru_cache(maxsize=1)
def _templates() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each shape at three sizes, normalised: (t, grid, grid), length of the outlines in cells (t,), shapes (t,)."""
    x, y = np.meshgrid(*2 * [np.arange(CANVAS) + 0.5 - CANVAS / 2])
    radii = (9.0, 12.0, 16.0)
    masks = [signed_distance(shape, x / radius, y / radius) < 0 for shape in SHAPES for radius in radii]
    windows = np.concatenate([_windows(mask.astype(np.int64)) for mask in masks])
    slopes = np.gradient(np.pad(windows, ((0, 0), (1, 1), (1, 1))), axis=(1, 2))
    return windows, np.hypot(*slopes).sum(axis=(1, 2)), np.repeat(np.arange(len(SHAPES)), len(radii))
