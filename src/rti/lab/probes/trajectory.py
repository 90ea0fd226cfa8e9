"""One guided sampling run, watched: what enters and leaves every block at some of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from rti.backbones.base import Backbone, Condition, Tokens
from rti.checkpoint import weights_digest
from rti.elastic import ElasticModel
from rti.errors import InputError, check_whole
from rti.flow import draw_noise, picture_generator
from rti.pipeline import Pipeline
from rti.sampling import sample


class Moment(NamedTuple):
    """One step of a batch of pictures. Guidance doubles what the hook sees: the first `count` rows are conditional."""

    place: int  # which of the watched steps it is, from 0
    seen: Any  # what the hook recorded
    before: torch.Tensor | None  # the clean image predicted one step earlier, (count, C, H, W)
    estimate: torch.Tensor  # the clean image predicted at this step
    count: int


class Hook:
    """Records the first call of a method after it was armed; a solver's further evaluations of the same step pass by.

    On the `regions` of a reduction: those that an attached model makes for itself, (B, N); None where it forms none.
    """

    def __init__(self, owner: nn.Module, method: str):
        self.owner, self.method = owner, method
        self.armed, self.seen = False, None

    def __enter__(self) -> Hook:
        self.inner = getattr(self.owner, self.method)
        setattr(self.owner, self.method, self._call)
        return self

    def __exit__(self, *exception: object) -> None:
        delattr(self.owner, self.method)

    def _call(self, *inputs: Any, **options: Any) -> Any:
        call = self.record if self.armed else self.inner
        self.armed = False
        return call(*inputs, **options)

    def record(self, *inputs: Any, **options: Any) -> Any:
        """Call the method, and keep what is of interest in `seen`: what it gives."""
        self.seen = self.inner(*inputs, **options)
        return self.seen


class TrunkHook(Hook):
    """The tokens entering each block of a backbone, and last those leaving the trunk: depth + 1 of them.

    It sits on the protocol's `run` and takes the blocks one by one, so every family has it.
    """

    def __init__(self, backbone: Backbone):
        super().__init__(backbone, "run")

    def record(self, tokens: Tokens, start: int, stop: int) -> Tokens:
        self.seen = [tokens]
        for block in range(start, stop):
            self.seen.append(self.inner(self.seen[-1], block, block + 1))
        return self.seen[-1]


@dataclass(frozen=True)
class Run:
    """What all probes share: the model, what it draws, and how."""

    pipe: Pipeline
    subjects: Sequence[str] | Sequence[int]
    seed: int = 7
    steps: int = 30
    guidance: float | None = None
    watched: int = 8  # how many of the steps
    batch: int = 8
    progress: bool = True

    def __post_init__(self):
        for name in ("steps", "watched", "batch"):
            check_whole(name, getattr(self, name))
        check_whole("seed", self.seed, least=0)
        if not self.subjects:
            raise InputError("nothing to probe with; give at least one prompt or label")

    @property
    def at(self) -> list[int]:
        return spread_steps(self.steps, self.watched)

    @property
    def times(self) -> list[float]:
        return [round(step / self.steps, 4) for step in self.at]

    @property
    def middle(self) -> int:
        """The place of the watched time nearest to the middle of the trajectory; of two, the later."""
        return min(range(len(self.at)), key=lambda place: (abs(self.times[place] - 0.5), -self.times[place]))

    @property
    def trained(self) -> ElasticModel:
        if self.pipe.elastic is None:
            raise InputError("this follows the regions of an adapter, and the model has none; give --adapter FOLDER")
        return self.pipe.elastic

    def settings(self) -> dict[str, Any]:
        """What a result depends on, ready for JSON. The batch is not among it, and neither is the number of prompts."""
        flow = self.pipe.backbone.flow
        return {
            "weights": weights_digest(self.pipe.backbone),
            "seed": self.seed,
            "steps": self.steps,
            "solver": flow.sampler,
            "guidance": flow.guidance_scale if self.guidance is None else self.guidance,
            "watched": self.at,
        }

    def inputs(self, indices: Sequence[int]) -> tuple[torch.Tensor, Condition]:
        """Noise and condition of some of the pictures, each from its own generator."""
        backbone = self.pipe.backbone
        some = [self.subjects[index] for index in indices]
        condition = self.pipe._condition(*((some, None) if backbone.conditioned_on == "text" else (None, some)), 1)
        generators = [picture_generator(self.seed, index) for index in indices]
        shape = (backbone.channels, *backbone.image_size)
        return draw_noise(shape, generators, backbone.flow.noise_scale, backbone.device), condition

    @torch.no_grad()
    def follow(
        self,
        indices: Sequence[int],
        observe: Callable[[Moment], object],
        budget: int | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> torch.Tensor:
        """Sample some of the pictures and show `observe` each watched step. The pictures, (B, C, H, W) in [-1, 1].

        Without a budget it is the frozen model, and what is seen are its tokens at every block; with one it is the
        model with its adapter, and its regions.
        """
        at, before, count = self.at, None, len(indices)
        if budget is None:
            model, hook, options = self.pipe.backbone, TrunkHook(self.pipe.backbone), {}
            frozen = nullcontext() if self.pipe.elastic is None else self.pipe.elastic.dense()
        else:
            model, options, frozen = self.trained, {"budget": budget}, nullcontext()
            hook = Hook(model.reduction, "regions")

        def after_step(step: int, state: torch.Tensor, estimate: torch.Tensor) -> None:
            nonlocal before
            if step in at:
                if hook.seen is None:
                    raise InputError(f"the reduction {self.trained.config.name!r} forms no regions to follow")
                observe(Moment(at.index(step), hook.seen, before, estimate, count))
            before, hook.armed = estimate, step + 1 in at
            advance(count)

        with frozen, hook:
            noise, condition = self.inputs(indices)  # in here: a LoRA changes how the text is read
            hook.armed = 0 in at
            drawn = sample(model, noise, condition, self.steps, self.guidance, callback=after_step, **options)
        return drawn.clamp(-1, 1)


def spread_steps(steps: int, count: int) -> list[int]:
    """Steps spread along a trajectory, from the second to the last but one: 30 and 8 -> 1, 5, 9, 13, 16, 20, 24, 28."""
    first, last = min(1, steps - 1), max(steps - 2, min(1, steps - 1))
    if count == 1:
        return [(first + last) // 2]
    return sorted({round(first + (last - first) * place / (count - 1)) for place in range(count)})
