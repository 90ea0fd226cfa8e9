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


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # Fold the plane onto one half point (a tip up, on the vertical axis): there the outline is a single segment.
    sector = np.pi / _STAR_POINTS
    # Tips reach higher than the feet reach low: move the star down so that its box is centred.
    y = y - _STAR_OUTER * (1 - np.cos(sector)) / 2
    radius, angle = np.hypot(x, y), np.abs(np.arctan2(x, -y))
    angle = np.abs((angle + sector) % (2 * sector) - sector)
    normal = np.array([_STAR_INNER * np.sin(sector), 1 - _STAR_INNER * np.cos(sector)])
    normal /= np.hypot(*normal)
    return (radius * np.cos(angle) - _STAR_OUTER) * normal[0] + radius * np.sin(angle) * normal[1]


_DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": lambda x, y: np.hypot(x, y) - 0.97,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) - _SQUARE_SIDE,
    # Apex (0, -0.9), base from (-1, 0.9) to (1, 0.9).
    "triangle": lambda x, y: np.maximum(y - 0.9, (1.8 * abs(x) - (y + 0.9)) / np.hypot(1.8, 1.0)),
    "star": _star,
    "cross": lambda x, y: np.maximum(np.minimum(abs(x), abs(y)) - _ARM, np.maximum(abs(x), abs(y)) - 1.0),
    "ring": lambda x, y: abs(np.hypot(x, y) - (1 + _HOLE) / 2) - (1 - _HOLE) / 2,
    # A disc without a smaller one to its right, moved so that the box is centred.
    "moon": lambda x, y: np.maximum(
        np.hypot(x - _MOON_SHIFT, y) - 1.0, _MOON_BITE - np.hypot(x - _MOON_SHIFT - 0.5, y)
    ),
}


def signed_distance(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance to the outline, negative inside. Coordinates of any shape, in units of the object's radius."""
    return _DISTANCES[shape](x, y)
