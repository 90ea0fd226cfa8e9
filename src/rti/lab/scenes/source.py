"""The procedural world of rti.lab.scenes as a source: as many pictures with captions, or classes, as one likes."""

from __future__ import annotations

import torch

from rti.data.source import KINDS, Example, Size, Source, check_size
from rti.errors import InputError, check_choice, check_whole
from rti.lab.scenes.classes import CLASSES, class_example, class_of
from rti.lab.scenes.layout import CANVAS
from rti.lab.scenes.render import batch
from rti.lab.scenes.world import TASKS, check_kind


class ScenesSource(Source):
    """One fresh picture per index, a function of (seed, index). There is nothing to store and nothing to shuffle.

    Of the kind "text" it has captions, the task of each is drawn from `tasks`. Of the kind "labels" it shows one object
    per picture, labelled with its colour and shape: every 56 examples show each of the `classes` once.
    """

    endless = True

    def __init__(self, size: Size, seed: int = 0, tasks: tuple[str, ...] = TASKS, kind: str = "text") -> None:
        height, width = check_size(size)
        if height != width or (CANVAS % height and height % CANVAS):
            raise InputError(f"scenes are square, with sides that divide {CANVAS} or are a multiple of it, got {size}")
        check_whole("seed of scenes", seed, least=0)
        check_kind("train", tasks)
        check_choice("kind of scenes", kind, KINDS)
        if kind == "labels" and tasks != TASKS:
            raise InputError(f"scenes:{','.join(tasks)} is of captions; with labels scenes go without a task")
        self.size, self.seed, self.tasks = height, seed, tasks
        self.kind, self.classes = kind, list(CLASSES) if kind == "labels" else None

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        if self.kind == "labels":
            image, scene = class_example(self.seed, index, self.size)
            return Example(torch.from_numpy(image), None, class_of(scene))
        [image], [scene] = batch(self.seed, index, 1, size=self.size, tasks=self.tasks)
        return Example(torch.from_numpy(image), scene.caption, None)

    def describe(self) -> str:
        what = "captions" if self.kind == "text" else f"labels of {len(CLASSES)} classes"
        only = "" if self.tasks == TASKS else f", {' and '.join(self.tasks)} only"
        return f"scenes: pictures with {what} drawn from seed {self.seed} at {self.size} x {self.size}{only}"


def open_scenes(task: str, size: Size, flip: bool = False, seed: int = 0, kind: str | None = None) -> ScenesSource:
    """What is written after "scenes:": nothing, or one task; with captions, or labels where a model needs those."""
    if flip:
        raise InputError("scenes cannot be flipped: captions say what is left and right, and a moon has one side")
    return ScenesSource(size, seed, tasks=(task,) if task else TASKS, kind=kind or "text")
