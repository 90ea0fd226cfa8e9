"""GenEval: which detections of a picture count, and whether it shows what its prompt asks for.

The decision rule is that of the scenes world, rti.lab.judge; here are GenEval's classes, thresholds and metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from rti.errors import InputError
from rti.images import to_tensor
from rti.lab import scenes
from rti.lab.judge import Requirement, judge
from rti.lab.pictures.folder import Entry
from rti.text.vocabulary import RELATIONS

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


class Wanted(NamedTuple):
    """A line of GenEval's metadata: its task, what must be there and what must not."""

    tag: str
    include: tuple[Requirement, ...]
    exclude: tuple[Requirement, ...] = ()

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any], where: str) -> Wanted:
        """Refuse a line that cannot be judged; `where` it stands goes into the message."""
        try:
            include = tuple(_requirement(entry, index) for index, entry in enumerate(metadata["include"]))
            exclude = tuple(_requirement(entry, 0) for entry in metadata.get("exclude", ()))
            if not include or not isinstance(metadata["tag"], str):
                raise ValueError("it needs a tag and something to include")
        except (KeyError, TypeError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{where} is no line of GenEval's metadata: {reason}") from None
        return cls(metadata["tag"], include, exclude)


def _requirement(entry: dict[str, Any], index: int) -> Requirement:
    """An entry of `include` or `exclude`; a position relates to a group before its own."""
    name, count, position = entry["class"], entry["count"], entry.get("position")
    if not isinstance(name, str) or isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name!r} x {count!r} is not a class and a count of at least 1")
    if position is not None:
        relation, target = position
        if relation not in RELATIONS or not isinstance(target, int) or not 0 <= target < index:
            raise ValueError(f"position {position!r} is not a relation to a group before")
        position = (relation, target)
    return Requirement(name, count, entry.get("color"), position)


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

    def check(self, entries: Sequence[Entry]) -> None:
        """Refuse prompts the detector cannot judge, before the first picture."""
        for entry in entries:
            wanted = _wanted(entry)
            for one in (*wanted.include, *wanted.exclude):
                if one.shape not in self.detector.classes:
                    raise InputError(f"prompt {entry.index} asks for a {one.shape}, which this detector does not know")
                if one.colour is not None and one.colour not in self.detector.colours:
                    known = ", ".join(self.detector.colours)
                    raise InputError(f"prompt {entry.index} asks for {one.colour}; this detector tells {known}")

    def __call__(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        rows = []
        for picture, wanted in zip(pictures, map(_wanted, entries), strict=True):
            verdict = judge(wanted, self.detector(picture, wanted.tag))
            rows.append({"score": float(verdict.correct), "reason": verdict.reason})
        return rows


def _wanted(entry: Entry) -> Wanted:
    if entry.metadata is None:
        allowed = "pictures of rti generate --prompts geneval or scenes"
        raise InputError(f"prompt {entry.index} has no GenEval metadata; allowed: {allowed}")
    return Wanted.from_metadata(entry.metadata, f"the metadata of prompt {entry.index}")


class SceneDetector:
    """The exact detector of the scenes world, for pictures of its prompts; the detections of `rti eval scenes`."""

    classes, colours = scenes.SHAPES, scenes.COLOURS

    def __call__(self, picture: Image.Image, tag: str) -> Sequence[Any]:
        if picture.width != picture.height:
            raise InputError(f"a picture of {picture.width} x {picture.height} is none of the scenes world's")
        return scenes.detect(to_tensor(picture).numpy())[0]
