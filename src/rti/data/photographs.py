"""A world of photographs: a class is one photograph, an example a crop of random place, scale and mirror image.

The end of every photograph's longer side is held out: no training crop touches it, and held-out crops lie within it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from rti.data.folder import is_picture, walk
from rti.data.source import Example, Size, Source, check_size
from rti.errors import InputError, check_choice
from rti.images import open_image, to_tensor

# As shares of the photograph's shorter side: how much of its longer side is held out, and how large crops are.
HELD_OUT = 0.4
CROPS = {"train": (0.3, 0.6), "held-out": (0.3, 0.4)}
_STREAMS = {"train": 7, "held-out": 9}  # of random numbers for crops; the next number is one of orders


class PhotographSource(Source):
    """As many crops as one likes of the photographs in a folder, each a function of (seed, index).

    A photograph's label is the rank of its file's name; as many examples as there are photographs show each once.
    """

    kind = "labels"
    endless = True

    def __init__(self, folder: str | Path, size: Size, seed: int = 0, split: str = "train") -> None:
        check_choice("split of photographs", split, CROPS)
        self.size, self.seed, self.split = check_size(size), seed, split
        names = [name for name in walk(folder) if is_picture(name)]
        if not names:
            raise InputError(f"{str(folder)!r} is no folder of photographs; scripts/photographs.py makes one")
        self.classes = [Path(name).stem for name in names]
        photographs = [open_image(Path(folder) / name) for name in names]
        self.shorter = [min(photograph.size) for photograph in photographs]
        self.parts = [part_of(photograph, split) for photograph in photographs]  # the rest is not even kept

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        turn, place = divmod(index, len(self.classes))
        stream = _STREAMS[self.split]
        label = int(np.random.default_rng([stream + 1, self.seed, turn]).permutation(len(self.classes))[place])
        rng = np.random.default_rng([stream, self.seed, index])
        part, (height, width) = self.parts[label], self.size
        side = self.shorter[label] * rng.uniform(*CROPS[self.split])
        box = crop_box(part.size, side, width / height, rng)
        image = to_tensor(part.resize((width, height), Image.Resampling.BICUBIC, box=box))[0]
        return Example(image.flip(-1).contiguous() if rng.random() < 0.5 else image.contiguous(), None, label)

    def describe(self) -> str:
        height, width = self.size
        return f"photographs: {self.split} crops of {len(self.classes)} photographs at {height} x {width}"


def part_of(photograph: Image.Image, split: str) -> Image.Image:
    """One side of the border between training and held out."""
    width, height = photograph.size
    border = max(width, height) - round(HELD_OUT * min(width, height))
    start, end = (0, border) if split == "train" else (border, max(width, height))
    return photograph.crop((0, start, width, end) if height > width else (start, 0, end, height))


def crop_box(
    size: tuple[int, int], side: float, aspect: float, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of a crop at a random place in a part of `size` (width, height).

    `side` is the crop's longer side, `aspect` its width over its height.
    """
    side = min(side, *size)  # the border is rounded to a pixel
    width, height = side * min(1, aspect), side * min(1, 1 / aspect)
    left, top = rng.uniform(0, size[0] - width), rng.uniform(0, size[1] - height)
    return left, top, left + width, top + height
