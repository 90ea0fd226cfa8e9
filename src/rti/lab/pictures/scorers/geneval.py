"""GenEval: the detector, which detections of a picture count, and whether it shows what its prompt asks for.

The decision rule is that of the scenes world, rti.lab.judge; here are GenEval's classes and thresholds.
The detector is Mask2Former from transformers, post-processed as mmdet does it for the original, colours are by CLIP.
The library's own instance post-processing assumes masks of 384 pixels, makes them binary before resizing them and
ignores its threshold; so the raw logits are used here. The weights are not mmdet's: scores are comparable within rti.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate, normalize

from rti.errors import InputError
from rti.files import shown
from rti.images import to_tensor
from rti.lab import scenes
from rti.lab.judge import Wanted, problem
from rti.lab.pictures.folder import Entry, PictureFolder
from rti.lab.pictures.scorers.clip import Clip, load_model, normalise
from rti.lab.pictures.scorers.results import Score, score_folder

# COCO's 80 classes in their order; GenEval calls three of them otherwise: mouse, remote and keyboard.
CLASSES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee"),
    *("skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard"),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "computer mouse", "tv remote"),
    *("computer keyboard", "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock"),
    *("vase", "scissors", "teddy bear", "hair drier", "toothbrush"),
)
THRESHOLD, COUNTING_THRESHOLD = 0.3, 0.9  # a detection counts above this
MOST = 16  # detections of a class that count; they may overlap as they like
SHORTEST, LONGEST, MULTIPLE = 800, 1333, 32  # pixels of the edges, and what they must be divisible by
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
TOP = 100  # pairs of query and class that are looked at
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")
BACKGROUND = "#999"
MASK2FORMER = "facebook/mask2former-swin-small-coco-instance"


@dataclass(eq=False)
class Found:
    """An object a detector found: its class, score, box (left, top, right, bottom) and mask (H, W).

    `shape` is what the decision rule calls the class. The colour is looked at only where the rule asks for it.
    """

    shape: str
    score: float
    box: tuple[float, float, float, float]
    mask: np.ndarray | None = None
    look: Callable[[Found], str] | None = None

    @property
    def centre(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    @cached_property
    def colour(self) -> str:
        return self.look(self)


def select(found: Sequence[Found], tag: str) -> list[Found]:
    """The detections that count: above the task's threshold, of each class the best 16; best first."""
    threshold = COUNTING_THRESHOLD if tag == "counting" else THRESHOLD
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: -one.score):
        if one.score > threshold and sum(other.shape == one.shape for other in kept) < MOST:
            kept.append(one)
    return kept


class GenEvalScorer:
    """Verdicts for pictures of prompts with GenEval's metadata: a score of 1 or 0, and why not.

    The detector finds what counts: `detector(picture, tag)`. It knows some `classes`, and tells some `colours`.
    """

    def __init__(self, detector: Any):
        self.detector = detector

    def __call__(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        rows = []
        for picture, wanted in zip(pictures, map(self.wanted, entries), strict=True):
            reason = problem(wanted, self.detector(picture, wanted.tag))
            rows.append({"score": 0.0 if reason else 1.0, "reason": reason})
        return rows

    def wanted(self, entry: Entry) -> Wanted:
        """What a prompt asks for; refused where the detector cannot judge it."""
        if entry.metadata is None:
            allowed = "pictures of rti generate --prompts geneval or scenes"
            raise InputError(f"prompt {entry.index} has no GenEval metadata; allowed: {allowed}")
        wanted = Wanted.from_metadata(entry.metadata, f"the metadata of prompt {entry.index}")
        for one in (*wanted.include, *wanted.exclude):
            for what, known in ((one.shape, self.detector.classes), (one.colour, self.detector.colours)):
                if what is not None and what not in known:
                    told = f"this detector tells {shown(', '.join(known))}"
                    raise InputError(f"prompt {entry.index} asks for {what!r}; {told}")
        return wanted


class SceneDetector:
    """The exact detector of the scenes world, for pictures of its prompts; the detections of `rti eval scenes`."""

    classes, colours = scenes.SHAPES, scenes.COLOURS

    def __call__(self, picture: Image.Image, tag: str) -> Sequence[Any]:
        if picture.width != picture.height:
            raise InputError(f"a picture of {picture.width} x {picture.height} is none of the scenes world's")
        return scenes.detect(to_tensor(picture).numpy())[0]


class GenEvalDetector:
    """Mask2Former for the objects; CLIP, zero-shot, for the colours of those whose colour is asked for."""

    classes, colours = CLASSES, COLOURS

    def __init__(self, model: Any, clip: Clip | None, shortest: int = SHORTEST):
        if model.config.num_labels != len(CLASSES):
            labels = model.config.num_labels
            raise InputError(f"a detector of {labels} classes; GenEval needs the {len(CLASSES)} of COCO")
        self.model, self.clip, self.shortest = model, clip, shortest
        self.colour_vectors = cache(self._colour_vectors)

    @classmethod
    def load(cls, detector: str, clip: str, device: str = "cpu") -> GenEvalDetector:
        model = load_model("Mask2FormerForUniversalSegmentation", detector, device)
        return cls(model, Clip.load(clip, device=device))

    def __call__(self, picture: Image.Image, tag: str) -> list[Found]:
        """The objects that count for a task."""
        found = select(self.objects(picture), tag)
        for one in found:
            one.look = lambda one: self.colour(picture, one)
        return found

    @torch.no_grad()
    def objects(self, picture: Image.Image, threshold: float = THRESHOLD) -> list[Found]:
        """What scores above the threshold, of all classes, best first."""
        picture = picture.convert("RGB")
        resized = picture.resize(self.size(*picture.size), Image.Resampling.BILINEAR)
        result = self.model(pixel_values=normalise(resized, MEAN, STD)[None].to(self.model.device))
        classes, masks = result.class_queries_logits[0].float(), result.masks_queries_logits[0].float()
        return detections(classes, masks, (picture.height, picture.width), threshold)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The shortest edge 800, but no edge above 1333, each rounded up to what the network divides."""
        scale = min(self.shortest / min(width, height), LONGEST / max(width, height))
        wide, high = (-(-round(side * scale) // MULTIPLE) * MULTIPLE for side in (width, height))
        return wide, high

    def colour(self, picture: Image.Image, found: Found) -> str:
        agreement = self.clip.pictures([cut_out(picture, found)]) @ self.colour_vectors(found.shape).T
        return COLOURS[int(agreement.argmax())]

    def _colour_vectors(self, name: str) -> torch.Tensor:
        """(10, D) for a class: of each colour the mean over the templates, again of length one."""
        texts = [[template.format(colour=colour, name=name) for template in TEMPLATES] for colour in COLOURS]
        return torch.stack([normalize(self.clip.texts(some).mean(dim=0), dim=0) for some in texts])


def detections(
    class_logits: torch.Tensor, mask_logits: torch.Tensor, size: tuple[int, int], threshold: float = THRESHOLD
) -> list[Found]:
    """Raw logits to objects: (Q, classes + 1) and (Q, h, w) -> those above the threshold, best first.

    Score = probability of the class x mean probability inside the mask; the mask is where its logit, brought to the
    size of the picture, is positive; the box is the mask's.
    """
    probabilities = class_logits.softmax(dim=-1)[:, :-1]
    best = probabilities.flatten().topk(min(TOP, probabilities.numel()))
    found = []
    for probability, pair in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        query, name = divmod(pair, probabilities.shape[1])
        if probability <= threshold:  # the mask can only lower it
            break
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


def cut_out(picture: Image.Image, found: Found) -> Image.Image:
    """The object on grey, cropped to its box."""
    picture = picture.convert("RGB")
    if found.mask is not None:
        grey = Image.new("RGB", picture.size, BACKGROUND)
        picture = Image.composite(picture, grey, Image.fromarray(found.mask.astype("uint8") * 255))
    return picture.crop(tuple(round(side) for side in found.box))


def score_geneval(folder: Path, batch: int, device: str, detector: str | None, clip: str) -> Score:
    """By a detector and a CLIP, by hub name or folder; or by the exact one, "scenes", of pictures of its prompts."""
    pictures = PictureFolder.open(folder)
    source = (pictures.manifest.get("prompts") or {}).get("source")
    exact = detector == "scenes" or (detector is None and source == "scenes")
    scorer = GenEvalScorer(SceneDetector() if exact else GenEvalDetector)
    for entry in pictures.entries:  # before a model is loaded
        scorer.wanted(entry)
    models = {"detector": "scenes"} if exact else {"detector": detector or MASK2FORMER, "clip": clip}
    if not exact:
        scorer.detector = GenEvalDetector.load(**models, device=device)
    return score_folder(pictures, "geneval", scorer, models, batch, by_group=True)
