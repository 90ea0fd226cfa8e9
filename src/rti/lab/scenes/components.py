"""Connected components of a batch of masks, without loops over pixels or pictures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Components(NamedTuple):
    """Label of every pixel (n, height, width), 0 outside; and of component k (label k + 1): picture, box, area.

    `picture` (m,), `box` (m, 4) as left, top, right, bottom (the last two exclusive), `area` (m,) in pixels.
    """

    labels: np.ndarray
    picture: np.ndarray
    box: np.ndarray
    area: np.ndarray


def connected_components(mask: np.ndarray) -> Components:
    """Components of each picture, diagonal neighbours included. (n, height, width) bool -> Components.

    A run is a row's stretch of set pixels. Runs are few, so joining those that touch is much cheaper than pixels.
    """
    count, height, width = mask.shape
    # An empty column and an empty row keep runs of neighbouring rows and pictures apart in the flat array.
    padded = np.zeros((count, height + 1, width + 1), dtype=bool)
    padded[:, :height, :width] = mask
    stride = width + 1
    change = np.flatnonzero(np.diff(padded.reshape(-1).astype(np.int8), prepend=0, append=0))
    start, end = change[::2], change[1::2]

    # Runs of the row above that touch a run lie between the first that ends and the last that starts next to it.
    first = np.searchsorted(end, start - stride, side="left")
    last = np.searchsorted(start, end - stride, side="right")
    touching = np.maximum(last - first, 0)
    below = np.repeat(np.arange(start.size), touching)
    above = np.arange(below.size) - np.repeat(np.cumsum(touching) - touching, touching) + first[below]
    component, number = _join(start.size, below, above)

    labels = np.zeros(padded.shape, dtype=np.int32)
    labels[padded] = np.repeat(component + 1, end - start)
    row, left = np.divmod(start, stride)
    picture, row = np.divmod(row, height + 1)
    box = np.zeros((number, 4), dtype=np.int64)
    box[:, :2] = max(height, width)
    np.minimum.at(box[:, 0], component, left)
    np.minimum.at(box[:, 1], component, row)
    np.maximum.at(box[:, 2], component, left + end - start)
    np.maximum.at(box[:, 3], component, row + 1)
    owner = np.zeros(number, dtype=np.int64)
    owner[component] = picture
    area = np.bincount(component, weights=end - start, minlength=number).astype(np.int64)
    return Components(labels[:, :height, :width], owner, box, area)


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


def _join(size: int, one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, int]:
    """Number the groups of `size` items linked by the edges one[i] - other[i]: (group of each item, how many)."""
    root = np.arange(size)
    while True:
        smaller = np.minimum(root[one], root[other])
        if np.array_equal(root[one], smaller) and np.array_equal(root[other], smaller):
            break
        # The larger roots, not the items, take the smaller ones over: whole groups join at once.
        np.minimum.at(root, root[one], smaller)
        np.minimum.at(root, root[other], smaller)
        while not np.array_equal(root[root], root):
            root = root[root]
    groups, index = np.unique(root, return_inverse=True)
    return index, groups.size
