"""A world of photographs: a class is one photograph, an example a crop of random place, scale and mirror image.

The end of every photograph's longer side is held out: no training crop touches it, and held-out crops lie within it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from rti.data.folder import walk
from rti.data.source import ENDINGS, Example, Source, check_size
from rti.errors import InputError
from rti.images import open_image, to_tensor

SPLITS = ("train", "held-out")
# All as shares of the photograph's shorter side: how much of its longer side is held out, and how large crops are.
HELD_OUT = 0.4
CROPS = {"train": (0.3, 0.6), "held-out": (0.3, 0.4)}
_TRAINING, _HELD_OUT = 7, 9  # each a random stream of crops, and the next number one of orders


class PhotographSource(Source):
    """As many crops as one likes of the photographs in a folder, each a function of (seed, index).

    A photograph's label is the rank of its file's name; as many examples as there are photographs show each once.
    """

    kind = "labels"
    endless = True

    def __init__(
        self, folder: str | Path, size: int | tuple[int, int], seed: int = 0, split: str = "train", length: int = 1 << 40
    ) -> None:
        if split not in SPLITS:
            raise InputError(f"photographs have no split {split!r}; allowed: {', '.join(SPLITS)}")
        if seed < 0:
            raise InputError(f"photographs need a seed of at least 0, got {seed}")
        self.folder, self.size, self.seed, self.split, self.length = Path(folder), check_size(size), seed, split, length
        names = [path for path in walk(folder) if path.lower().endswith(ENDINGS)]
        if not names:
            raise InputError(f"{folder} holds no photographs ({', '.join(ENDINGS)}); scripts/photographs.py makes some")
        self.classes = [Path(name).stem for name in names]
        self.photographs = [np.asarray(open_image(self.folder / name)) for name in names]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        stream = _TRAINING if self.split == "train" else _HELD_OUT
        turn, place = divmod(index, len(self.classes))
        label = _shuffled(stream + 1, self.seed, turn, len(self.classes))[place]
        rng = np.random.default_rng([stream, self.seed, index])
        photograph = Image.fromarray(self.photographs[label])
        height, width = self.size
        box = crop_box(photograph.size, width / height, self.split, rng)
        crop = photograph.resize((width, height), Image.Resampling.BICUBIC, box=box)
        image = to_tensor(crop)[0]
        return Example(image.flip(-1).contiguous() if rng.random() < 0.5 else image.contiguous(), None, label)

    def describe(self) -> str:
        height, width = self.size
        return f"photographs: {self.split} crops of {len(self.classes)} photographs at {height} x {width}"


def crop_box(
    size: tuple[int, int], aspect: float, split: str, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of a random crop within the split's part of a photograph of `size` (width, height).

    `aspect` is the crop's width over its height; its longer side is the drawn one.
    """
    shorter = min(size)
    side = shorter * rng.uniform(*CROPS[split])
    crop = (side * min(1, aspect), side * min(1, 1 / aspect))  # width, height
    longer = int(size[1] > size[0])  # the axis that is divided: 0 is the width
    corner = [rng.uniform(0, size[axis] - crop[axis]) for axis in (0, 1)]
    border = size[longer] - HELD_OUT * shorter
    start, end = (0.0, border) if split == "train" else (border, float(size[longer]))
    corner[longer] = rng.uniform(start, end - crop[longer])
    return corner[0], corner[1], corner[0] + crop[0], corner[1] + crop[1]


@lru_cache(maxsize=16)
def _shuffled(stream: int, seed: int, turn: int, count: int) -> tuple[int, ...]:
    """All labels in the order of a turn."""
    return tuple(np.random.default_rng([stream, seed, turn]).permutation(count).tolist())
