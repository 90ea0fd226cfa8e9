"""Outlines of the shapes as signed distances in a box of half side 1 (x to the right, y down)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# The set was chosen by measuring confusions under strong smooth warps (1.5 pixels RMS): 2.5 % for the first six, 2.6 %
# with a moon, but 3.9 to 5.8 % with a diamond (taken for a circle or cross) and 4.9 % with a heart (for a circle).
# Compact shapes fill less of the box, so that all look equally large.
_SQUARE_SIDE = 0.88
_ARM = 0.33  # half the thickness of the cross
_HOLE = 0.54  # radius of the ring's hole
_STAR_POINTS = 5
_STAR_INNER = 0.46  # radius of the star's inner corners over that of its tips
_STAR_OUTER = 1.05
_MOON_BITE = 0.78  # radius of the disc that is cut out
_MOON_SHIFT = 0.18


def _circle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.hypot(x, y) - 0.97


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y)) - _SQUARE_SIDE


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # Apex (0, -0.9), base from (-1, 0.9) to (1, 0.9).
    normal = np.hypot(1.8, 1.0)
    return np.maximum(y - 0.9, (1.8 * np.abs(x) - (y + 0.9)) / normal)


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # Fold the plane onto one half point (a tip up, on the vertical axis): there the outline is a single segment.
    sector = np.pi / _STAR_POINTS
    # Tips reach higher than the feet reach low: move the star down so that its box is centred.
    shift = _STAR_OUTER * (1 - np.cos(sector)) / 2
    y = y - shift
    radius, angle = np.hypot(x, y), np.abs(np.arctan2(x, -y))
    angle = np.abs((angle + sector) % (2 * sector) - sector)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    inner_along, inner_across = _STAR_INNER * np.cos(sector), _STAR_INNER * np.sin(sector)
    normal = np.array([inner_across, 1 - inner_along])
    normal /= np.hypot(*normal)
    return (along - _STAR_OUTER) * normal[0] + across * normal[1]


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.minimum(x, y) - _ARM, np.maximum(x, y) - 1.0)


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.hypot(x, y) - (1 + _HOLE) / 2) - (1 - _HOLE) / 2


def _moon(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # A disc without a smaller one to its right, moved so that the box is centred.
    x = x - _MOON_SHIFT
    return np.maximum(np.hypot(x, y) - 1.0, _MOON_BITE - np.hypot(x - 0.5, y))


_DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "moon": _moon,
}


def signed_distance(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance to the outline, negative inside. Coordinates of any shape, in units of the object's radius."""
    return _DISTANCES[shape](x, y)
