"""Connected components of a batch of masks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rti.errors import InputError


class Components(NamedTuple):
    """Label of every pixel (n, height, width), 0 outside; and of component k (label k + 1): picture, box, area.

    `picture` (m,), `box` (m, 4) as left, top, right, bottom (the last two exclusive), `area` (m,) in pixels.
    """

    labels: np.ndarray
    picture: np.ndarray
    box: np.ndarray
    area: np.ndarray


def connected_components(mask: np.ndarray) -> Components:
    """Components of each picture, diagonal neighbours included. (n, height, width) bool -> Components."""
    try:
        from scipy import ndimage
    except ImportError:
        raise InputError("the detector of the scenes world needs scipy: pip install region-tokens[eval]") from None
    neighbours = np.zeros((3, 3, 3), dtype=bool)
    neighbours[1] = True  # within a picture, none in the pictures before and after
    labels, number = ndimage.label(mask, neighbours)
    places = [
        (picture.start, columns.start, rows.start, columns.stop, rows.stop)
        for picture, rows, columns in ndimage.find_objects(labels)
    ]
    places = np.array(places, dtype=np.int64).reshape(number, 5)
    area = np.bincount(labels.ravel(), minlength=number + 1)[1:]
    return Components(labels, places[:, 0], places[:, 1:], area)


def largest(components: Components, least: int, most: int) -> Components:
    """The components of at least `least` pixels, at most `most` per picture, renumbered; the others become outside."""
    order = np.lexsort((-components.area, components.picture))
    picture = components.picture[order]
    rank = np.arange(len(order)) - np.searchsorted(picture, picture)
    kept = np.sort(order[(rank < most) & (components.area[order] >= least)])
    renumbered = np.zeros(len(order) + 1, dtype=np.int32)
    renumbered[kept + 1] = np.arange(1, len(kept) + 1)
    labels = renumbered[components.labels]
    return Components(labels, components.picture[kept], components.box[kept], components.area[kept])
