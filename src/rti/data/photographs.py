"""A world of photographs: a class is one photograph, an example a crop of random place, scale and mirror image.

The end of every photograph's longer side is held out: no training crop touches it, and held-out crops lie within it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from rti.data.folder import pictures_in
from rti.data.source import Example, Size, Source, check_size
from rti.errors import InputError
from rti.images import ENDINGS, open_image, to_tensor

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

    def __init__(self, folder: str | Path, size: Size, seed: int = 0, split: str = "train") -> None:
        if split not in CROPS:
            raise InputError(f"photographs have no split {split!r}; allowed: {', '.join(CROPS)}")
        self.size, self.seed, self.split = check_size(size), seed, split
        names = pictures_in(folder)
        if not names:
            raise InputError(f"{folder} holds no photographs ({', '.join(ENDINGS)}); scripts/photographs.py makes some")
        self.classes = [Path(name).stem for name in names]
        photographs = [np.asarray(open_image(Path(folder) / name)) for name in names]
        self.shorter = [min(photograph.shape[:2]) for photograph in photographs]
        self.parts = [part_of(photograph, split) for photograph in photographs]  # the rest is not even kept

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        stream = _TRAINING if self.split == "train" else _HELD_OUT
        turn, place = divmod(index, len(self.classes))
        label = _shuffled(stream + 1, self.seed, turn, len(self.classes))[place]
        rng = np.random.default_rng([stream, self.seed, index])
        part = Image.fromarray(self.parts[label])
        height, width = self.size
        side = self.shorter[label] * rng.uniform(*CROPS[self.split])
        box = crop_box(part.size, side, width / height, rng)
        image = to_tensor(part.resize((width, height), Image.Resampling.BICUBIC, box=box))[0]
        return Example(image.flip(-1).contiguous() if rng.random() < 0.5 else image.contiguous(), None, label)

    def describe(self) -> str:
        height, width = self.size
        return f"photographs: {self.split} crops of {len(self.classes)} photographs at {height} x {width}"


def part_of(photograph: np.ndarray, split: str) -> np.ndarray:
    """One side of the border between training and held out: (H, W, 3) -> a part of it."""
    height, width = photograph.shape[:2]
    along = photograph if height > width else photograph.transpose(1, 0, 2)  # the longer side first
    border = max(height, width) - round(HELD_OUT * min(height, width))
    part = along[:border] if split == "train" else along[border:]
    return np.ascontiguousarray(part if height > width else part.transpose(1, 0, 2))


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


@lru_cache(maxsize=16)
def _shuffled(stream: int, seed: int, turn: int, count: int) -> tuple[int, ...]:
    """All labels in the order of a turn."""
    return tuple(np.random.default_rng([stream, seed, turn]).permutation(count).tolist())


def open_photographs(rest: str, size: Size, flip: bool, seed: int, kind: str | None) -> PhotographSource:
    """What is written after "photographs:": FOLDER, or FOLDER:held-out. Half of the crops are mirrored in any case."""
    folder = rest.removesuffix(":held-out")
    if not Path(folder).is_dir() or not folder:
        raise InputError(f"{folder!r} is no folder of photographs; scripts/photographs.py makes one")
    return PhotographSource(folder, size, seed, "train" if folder == rest else "held-out")
