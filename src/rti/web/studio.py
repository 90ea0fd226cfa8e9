"""Dense and region pictures from the same noise, shown while they form, timed, and stopped when nobody looks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import torch
from PIL import Image

from rti import cost
from rti.errors import InputError, check_whole
from rti.images import draw_regions, enlarge, to_pil
from rti.lab.bench.stopwatch import clock
from rti.lab.probes.trajectory import Hook
from rti.pipeline import Pipeline

LONGEST_PROMPT = 1000  # characters
LARGEST_SEED = 2**53  # the largest whole number of a browser
MOST_STEPS = 200
STEPS = 25
SHOWN = 512  # small pictures are enlarged to this
PROMPTS = (  # to begin with; those of `make demo`
    "a red star left of a blue circle",
    "two plain green triangles",
    "a plain yellow ring above a plain purple square",
    "a striped orange cross",
    "a cyan moon and a pink circle",
)
PREVIEW_SECONDS = 0.15  # between two previews: more often than that nobody sees


class Frame(NamedTuple):
    """What there is to see so far; `overlay` is the region picture with its regions, at the end."""

    dense: Image.Image | None
    region: Image.Image | None
    overlay: Image.Image | None
    message: str


class Studio:
    """One model for all visitors, one run at a time."""

    def __init__(self, pipe: Pipeline):
        if pipe.elastic is None:
            raise InputError("the page compares a budget with dense, and this model has no adapter; give --adapter")
        self.pipe, self.backbone, self.elastic = pipe, pipe.backbone, pipe.elastic
        self.by_label = self.backbone.conditioned_on != "text"
        self.examples = [0] if self.by_label else list(PROMPTS)
        text = self.elastic.reduction.text  # None where the number of text tokens cannot be turned down
        self.text_tokens = None if text is None else self.backbone.config.prompt_length
        self.turn = threading.Lock()  # a run that was stopped may still be in its step when the next one begins

    def draw(
        self,
        subject: Any,
        budget: int,
        seed: int = 0,
        guidance: float | None = None,
        steps: int = STEPS,
        text_budget: int | None = None,
    ) -> Iterator[Frame]:
        """Frames while the dense and then the region picture form; the last has both, the regions and the times.

        `subject` is a prompt or a label. Close the iterator, and the run ends after the step it is in.
        """
        check_whole("the budget", budget, self.backbone.patches)
        check_whole("the seed", seed, LARGEST_SEED, least=0)
        check_whole("the number of steps", steps, MOST_STEPS)
        if self.by_label:
            check_whole("the label", subject, self.backbone.config.num_classes - 1, least=0)
        elif not 0 < (length := len((subject or "").strip())) <= LONGEST_PROMPT:
            raise InputError(f"the prompt must have from 1 to {LONGEST_PROMPT:,} characters, got {length:,}")
        asked = dict(prompt=subject, num_inference_steps=steps, guidance_scale=guidance)
        budgets = dict(budget=budget, text_budget=None if text_budget == self.text_tokens else text_budget)
        frames: queue.Queue[Frame | Exception | None] = queue.Queue()
        stop = threading.Event()

        def show(frame: Frame) -> None:
            if stop.is_set():
                raise CancelledError
            frames.put(frame)

        def work() -> None:  # in a thread: the pipeline calls back after a step, and a page wants an iterator
            try:
                with self.turn:
                    dense, took = self._one(asked, seed, show)
                    last, seconds = self._one(asked | budgets, seed, show, dense)
                frames.put(last._replace(message=self._summary(budget, took, seconds)))
            except Exception as error:  # told to the visitor, whatever it is
                frames.put(error)
            frames.put(None)

        threading.Thread(target=work, daemon=True).start()
        try:
            for frame in iter(frames.get, None):
                if isinstance(frame, Exception):
                    raise frame
                yield frame
        finally:
            stop.set()

    def _one(
        self, asked: dict[str, Any], seed: int, show: Callable[[Frame], None], dense: Frame | None = None
    ) -> tuple[Frame, float]:
        """One picture, beside the dense one if that is done, and the seconds its steps took."""
        device, seconds, shown = self.backbone.device, 0.0, 0.0
        what, steps = "dense" if dense is None else f"{asked['budget']} regions", asked["num_inference_steps"]

        def frame(picture: Image.Image, message: str = "") -> Frame:
            large = enlarge(picture, SHOWN)
            if dense is None:
                return Frame(large, None, None, message)
            early = message or hook.seen is None  # regions come at the end: to show more would slow what is timed
            overlay = None if early else draw_regions(picture, hook.seen[0], self.backbone.grid)
            return Frame(dense.dense, large, overlay, message)

        def after_step(pipe: Pipeline, step: int, when: float, values: dict[str, torch.Tensor]) -> None:
            nonlocal seconds, shown, started
            now = clock(device)
            seconds += now - started
            if now - shown >= PREVIEW_SECONDS:
                shown = now
                show(frame(to_pil(values["estimate"])[0], f"Drawing {what}: step {step + 1} of {steps}."))
            hook.armed = True  # the regions of the next step take the place of these
            started = clock(device)

        hook = Hook(self.elastic.reduction, "regions")
        hook.armed, noise = True, torch.Generator().manual_seed(seed)
        with self.pipe.drawing(dense=dense is None) as pipe, hook:
            started = clock(device)
            drawn = pipe(**asked, generator=noise, callback_on_step_end=after_step, progress=False)
        return frame(drawn.images[0]), seconds

    def _summary(self, budget: int, dense: float, region: float) -> str:
        """Times, speed-up and tokens."""
        (first, last), depth = self.elastic.config.core, self.backbone.depth
        tokens = cost.tokens_per_block(self.backbone, self.elastic.reduction, budget)
        core = " or ".join(str(count) for count in sorted(set(tokens[first : last + 1])))
        return (
            f"Done, with {budget} regions: dense {dense:.2f} s, regions {region:.2f} s, "
            f"**{dense / region:.2f} times as fast**, measured on this machine. Image tokens in each block: "
            f"{self.backbone.patches}, and {core} in the core, blocks {first} to {last} of {depth}."
        )

    def warm_up(self) -> None:
        """Draw one step of each, so that the first visitor's times are like the second's."""
        list(self.draw(self.examples[0], max(1, self.backbone.patches // 4), steps=1))
