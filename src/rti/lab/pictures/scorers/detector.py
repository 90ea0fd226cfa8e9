"""GenEval's detector: Mask2Former from transformers, post-processed as mmdet does it for the original; colours by CLIP.

The library's own instance post-processing assumes masks of 384 pixels, makes them binary before resizing them and
ignores its threshold; so the raw logits are used here. The weights are not mmdet's: scores are comparable within rti.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import interpolate, normalize

from rti.errors import InputError
from rti.lab.pictures.scorers.clip import Clip
from rti.lab.pictures.scorers.geneval import CLASSES, THRESHOLD, Found, select
from rti.lab.pictures.scorers.loading import load_model, normalise

SHORTEST, LONGEST, MULTIPLE = 800, 1333, 32  # pixels of the edges, and what they must be divisible by
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
TOP = 100  # pairs of query and class that are looked at
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")
BACKGROUND = "#999"


class Mask2Former:
    """Objects of a picture with boxes and masks, all classes, best first."""

    def __init__(self, model: Any, shortest: int = SHORTEST, longest: int = LONGEST):
        if model.config.num_labels != len(CLASSES):
            labels = model.config.num_labels
            raise InputError(f"a detector of {labels} classes; GenEval needs the {len(CLASSES)} of COCO")
        self.model, self.shortest, self.longest = model.eval(), shortest, longest

    @classmethod
    def load(cls, source: str, device: str = "cpu") -> Mask2Former:
        return cls(load_model("Mask2FormerForUniversalSegmentation", source, device))

    @torch.no_grad()
    def __call__(self, picture: Image.Image, threshold: float = THRESHOLD) -> list[Found]:
        """What scores above the threshold."""
        picture = picture.convert("RGB")
        resized = picture.resize(self.size(*picture.size), Image.Resampling.BILINEAR)
        pixels = normalise(resized, MEAN, STD)[None].to(self.model.device)
        result = self.model(pixel_values=pixels)
        classes, masks = result.class_queries_logits[0].float(), result.masks_queries_logits[0].float()
        return detections(classes, masks, (picture.height, picture.width), threshold)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The shortest edge 800, but no edge above 1333, each rounded up to what the network divides."""
        scale = min(self.shortest / min(width, height), self.longest / max(width, height))
        wide, high = (-(-round(side * scale) // MULTIPLE) * MULTIPLE for side in (width, height))
        return wide, high


def detections(
    class_logits: torch.Tensor, mask_logits: torch.Tensor, size: tuple[int, int], threshold: float = THRESHOLD
) -> list[Found]:
    """Raw logits to objects: (Q, classes + 1) and (Q, h, w) -> those above the threshold, best first.

    Score = probability of the class x mean probability inside the mask; the mask is where its logit, brought to the
    size of the picture, is positive; the box is the mask's.
    """
    probabilities = class_logits.softmax(dim=-1)[:, :-1]
    best = probabilities.flatten().topk(min(TOP, probabilities.numel()))
    queries = best.indices // probabilities.shape[1]
    names = best.indices % probabilities.shape[1]
    kept = best.values > threshold  # the mask can only lower it
    found = []
    for probability, query, name in zip(*(some[kept].tolist() for some in (best.values, queries, names)), strict=True):
        logits = interpolate(mask_logits[query][None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
        mask = logits > 0
        if not mask.any():
            continue
        score = probability * float(logits.sigmoid()[mask].mean())
        if score > threshold:
            rows, columns = mask.any(dim=1).nonzero().flatten(), mask.any(dim=0).nonzero().flatten()
            box = (float(columns[0]), float(rows[0]), float(columns[-1]) + 1, float(rows[-1]) + 1)
            found.append(Found(CLASSES[name], score, box, mask.cpu().numpy()))
    return sorted(found, key=lambda one: -one.score)


class ColourNames:
    """Names the colour of an object by CLIP zero-shot, given the name of its class."""

    def __init__(self, clip: Clip):
        self.clip = clip
        self.weights = cache(self._weights)

    def __call__(self, picture: Image.Image, found: Found) -> str:
        agreement = self.clip.pictures([cut_out(picture, found)]) @ self.weights(found.shape).T
        return COLOURS[int(agreement.argmax())]

    def _weights(self, name: str) -> torch.Tensor:
        """(10, D): of each colour the mean over the templates, again of length one."""
        texts = [[template.format(colour=colour, name=name) for template in TEMPLATES] for colour in COLOURS]
        return torch.stack([normalize(self.clip.texts(some).mean(dim=0), dim=0) for some in texts])


def cut_out(picture: Image.Image, found: Found) -> Image.Image:
    """The object on grey, cropped to its box."""
    picture = picture.convert("RGB")
    if found.mask is not None:
        grey = Image.new("RGB", picture.size, BACKGROUND)
        picture = Image.composite(picture, grey, Image.fromarray(found.mask.astype("uint8") * 255))
    return picture.crop(tuple(round(side) for side in found.box))


class GenEvalDetector:
    """Mask2Former for the objects and CLIP for their colours."""

    classes, colours = CLASSES, COLOURS

    def __init__(self, objects: Mask2Former, colour_names: ColourNames):
        self.objects, self.colour_names = objects, colour_names

    @classmethod
    def load(cls, objects: str, clip: str, device: str) -> GenEvalDetector:
        return cls(Mask2Former.load(objects, device), ColourNames(Clip.load(clip, device=device)))

    def __call__(self, picture: Image.Image, tag: str) -> list[Found]:
        found = select(self.objects(picture), tag)
        for one in found:
            one.look = lambda one: self.colour_names(picture, one)
        return found
