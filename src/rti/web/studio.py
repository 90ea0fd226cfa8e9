"""Dense and region pictures from the same noise, shown while they form, timed, and stopped when asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from rti import cost
from rti.errors import InputError, check_finite, check_whole
from rti.images import draw_regions, enlarge, to_pil
from rti.lab.bench.stopwatch import clock
from rti.lab.probes.trajectory import RegionsHook
from rti.pipeline import Pipeline

LONGEST_PROMPT = 1000  # characters
MOST_STEPS = 200
SHOWN = 512  # small pictures are enlarged to this
PREVIEW_SECONDS = 0.15  # between two previews: more often than that nobody sees


class Stopped(Exception):
    """Raised inside a run that was asked to stop."""

    def __str__(self) -> str:
        return "Stopped."


@dataclass(frozen=True)
class Request:
    """What a visitor asks for."""

    subject: Any  # a prompt or a label
    seed: int = 0
    steps: int = 25
    guidance: float = 1.0
    budget: int = 64
    text_budget: int | None = None


@dataclass(frozen=True)
class Frame:
    """What there is to see so far. `overlay` is the region picture with its regions, at the end."""

    message: str
    dense: Image.Image | None = None
    region: Image.Image | None = None
    overlay: Image.Image | None = None
    dense_seconds: float | None = None
    region_seconds: float | None = None

    @property
    def speedup(self) -> float | None:
        return self.dense_seconds / self.region_seconds if self.dense_seconds and self.region_seconds else None


class Studio:
    """One model for all visitors, one run at a time."""

    def __init__(self, pipe: Pipeline):
        if pipe.elastic is None:
            raise InputError("the page compares a budget with dense, and this model has no adapter; give --adapter")
        self.pipe, self.backbone, self.elastic = pipe, pipe.backbone, pipe.elastic
        self.by_label = self.backbone.conditioned_on != "text"
        self.turn = threading.Lock()  # a run that was stopped may still be in its step when the next one begins

    @property
    def text_tokens(self) -> int | None:
        """How many text tokens there are, where their number can be turned down."""
        return None if self.elastic.reduction.text is None else self.backbone.config.prompt_length

    def check(self, request: Request) -> None:
        """Refuse in one sentence what cannot be drawn."""
        subject, limits = request.subject, {"seed": (0, 2**63 - 1), "steps": (1, MOST_STEPS)}
        limits["budget"] = 1, self.backbone.patches
        if self.by_label:
            check_whole("the label", subject, self.backbone.config.num_classes - 1, 0)
        elif not isinstance(subject, str) or not subject.strip():
            raise InputError("Please write a prompt first.")
        elif len(subject) > LONGEST_PROMPT:
            raise InputError(f"The prompt has {len(subject):,} characters, at most {LONGEST_PROMPT:,} are allowed.")
        for name, (least, most) in limits.items():
            check_whole(f"the {name}", getattr(request, name), most, least)
        check_finite("the guidance", request.guidance, 0, 100)

    def draw(self, request: Request, stop: threading.Event) -> Iterator[Frame]:
        """Frames while the dense and then the region picture form; the last has both, the regions and the times.

        Set `stop`, or close the iterator, and the run ends after the step it is in.
        """
        self.check(request)
        frames: queue.Queue[Frame | Exception | None] = queue.Queue()
        worker = threading.Thread(target=self._work, args=(request, stop, frames), daemon=True)
        worker.start()
        try:
            while (frame := frames.get()) is not None:
                if isinstance(frame, Exception):
                    raise frame
                yield frame
        finally:
            stop.set()
            worker.join()

    def _work(self, request: Request, stop: threading.Event, frames: queue.Queue) -> None:
        try:
            with self.turn:
                self.elastic.unfuse()  # before the clock starts: dense has no LoRA
                dense, _, dense_seconds = self._one(request, None, stop, frames, None)
                self.elastic.fuse()
                region, regions, seconds = self._one(request, request.budget, stop, frames, dense)
            overlay = None if regions is None else draw_regions(region, regions, self.backbone.grid)
            frame = Frame("", _shown(dense), _shown(region), overlay, dense_seconds, seconds)
            frames.put(replace(frame, message=self._summary(request.budget, frame)))
        except Exception as error:  # told to the visitor, whatever it is
            frames.put(error)
        finally:
            frames.put(None)

    def _summary(self, budget: int, frame: Frame) -> str:
        """Times, speed-up and tokens."""
        (first, last), depth = self.elastic.config.core, self.backbone.depth
        tokens = cost.tokens_per_block(self.backbone, self.elastic.reduction, budget)
        core = " or ".join(str(count) for count in sorted(set(tokens[first : last + 1])))
        return (
            f"Done, with {budget} regions: dense {frame.dense_seconds:.2f} s, regions {frame.region_seconds:.2f} s, "
            f"**{frame.speedup:.2f} times as fast**, measured on this machine. Image tokens in each block: "
            f"{self.backbone.patches}, and {core} in the core, blocks {first} to {last} of {depth}."
        )

    def _one(
        self, request: Request, budget: int | None, stop: threading.Event, frames: queue.Queue, dense: Any
    ) -> tuple[Image.Image, torch.Tensor | None, float]:
        """One picture, its regions, and the seconds its steps took."""
        if stop.is_set():
            raise Stopped
        what = "dense" if budget is None else f"{budget} regions"
        hook = RegionsHook(self.elastic.reduction)  # the last step's regions; a reduction without any shows none
        hook.armed = request.steps == 1
        started = shown = clock(self.backbone.device)
        seconds = 0.0

        def after_step(pipe: Pipeline, step: int, when: float, values: dict[str, torch.Tensor]) -> None:
            nonlocal shown, seconds
            if stop.is_set():
                raise Stopped
            now = clock(self.backbone.device)
            seconds = now - started
            hook.armed = step == request.steps - 2
            if now - shown >= PREVIEW_SECONDS or step == 0:
                shown = now
                preview = _shown(to_pil(values["estimate"])[0])
                pair = (preview, None) if budget is None else (_shown(dense), preview)
                frames.put(Frame(f"Drawing {what}: step {step + 1} of {request.steps}.", *pair))

        with hook:
            drawn = self.pipe(
                request.subject,
                num_inference_steps=request.steps,
                guidance_scale=float(request.guidance),
                generator=torch.Generator().manual_seed(request.seed),
                budget=budget,
                dense=budget is None,
                text_budget=None if budget is None else request.text_budget,
                callback_on_step_end=after_step,
                progress=False,
            )
        regions = hook.take()
        return drawn.images[0], None if regions is None else regions[0], seconds

    def warm_up(self, subject: Any) -> None:
        """Draw one step of each, so that the first visitor's times are like the second's."""
        for _ in self.draw(Request(subject, steps=1, budget=max(1, self.backbone.patches // 4)), threading.Event()):
            pass


def _shown(picture: Image.Image | None) -> Image.Image | None:
    return None if picture is None else enlarge(picture, SHOWN)
