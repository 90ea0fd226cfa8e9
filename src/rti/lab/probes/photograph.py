"""Regions of a photograph: the partition on plain pixels, without any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from rti.backbones.layers import patchify
from rti.errors import InputError, check_choice, check_whole
from rti.images import check_pixels, fit, open_image, to_tensor
from rti.lab.probes.measures import explained_variance
from rti.method.budgets import Budget, resolve_budget
from rti.method.config import CUT_NAMES
from rti.method.order import MOST_PATCHES
from rti.method.order import order as make_order
from rti.method.partition import partition

SIZE_PRIOR = 0.5  # as for cuts from an estimate, which are cuts of pixels too


def load_photograph(path: str | Path, size: int, patch: int) -> tuple[Image.Image, tuple[int, int]]:
    """A picture whose longer side is `size`, cropped to whole patches, and its grid of patches."""
    check_pixels(size, 1)
    check_whole("patch", patch, most=size)
    picture = open_image(path)
    scale = size / max(picture.size)
    rows, columns = (max(1, round(side * scale / patch)) for side in (picture.height, picture.width))
    if rows * columns > MOST_PATCHES:
        raise InputError(f"size {size} and patch {patch} give {rows * columns:,} patches; allowed: {MOST_PATCHES:,}")
    return fit(picture, rows * patch, columns * patch), (rows, columns)


def cut_photograph(
    picture: Image.Image, grid: tuple[int, int], patch: int, budget: Budget, cuts: str, order: str
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Cut a picture by the pixels of its patches: (N,) region of each patch, row by row, and what there is to tell."""
    check_choice("cuts", cuts, CUT_NAMES)
    walk, position = make_order(order, *grid)
    pixels = patchify(to_tensor(picture), patch)[:, walk]
    budget = resolve_budget(budget, len(walk))
    along_walk = partition(pixels, budget, cuts, SIZE_PRIOR)
    even = partition(pixels, budget, "fixed")
    sizes = along_walk[0].bincount()
    return along_walk[0, position], {
        "largest_region": int(sizes.max()),
        "single_patches": int((sizes == 1).sum()),
        "retained": round(explained_variance(pixels, along_walk).item(), 4),
        "retained_by_even_cuts": round(explained_variance(pixels, even).item(), 4),
    }
