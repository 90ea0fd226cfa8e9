"""GenEval's colours: CLIP zero-shot on the object alone, cut out of its picture."""

from __future__ import annotations

from functools import lru_cache

import torch
from PIL import Image
from torch.nn.functional import normalize

from rti.lab.pictures.scorers.clip import Clip
from rti.lab.pictures.scorers.geneval import Found

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")
BACKGROUND = "#999"


class ColourNames:
    """Names the colour of an object, given the name of its class."""

    def __init__(self, clip: Clip):
        self.clip = clip
        self.weights = lru_cache(maxsize=None)(self._weights)

    def __call__(self, picture: Image.Image, found: Found) -> str:
        agreement = self.clip.pictures([cut_out(picture, found)]) @ self.weights(found.shape).T
        return COLOURS[int(agreement.argmax())]

    def _weights(self, name: str) -> torch.Tensor:
        """(10, D): of each colour the mean over the templates, again of length one."""
        rows = []
        for colour in COLOURS:
            texts = [template.format(colour=colour, name=name) for template in TEMPLATES]
            rows.append(normalize(self.clip.texts(texts).mean(dim=0), dim=0))
        return torch.stack(rows)


def cut_out(picture: Image.Image, found: Found) -> Image.Image:
    """The object on grey, cropped to its box."""
    picture = picture.convert("RGB")
    if found.mask is not None:
        grey = Image.new("RGB", picture.size, BACKGROUND)
        picture = Image.composite(picture, grey, Image.fromarray(found.mask.astype("uint8") * 255))
    return picture.crop(tuple(round(side) for side in found.box))
