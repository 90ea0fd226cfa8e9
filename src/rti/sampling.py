"""Sampling: guidance, and the loop that hands each step's estimate to the next. The solvers are in `rti.solvers`.

The state, the velocity and the solver are float32 whatever the weights are. Times are numbers on the host, and between
the first and the last step nothing is copied to the device or read from it, so that a GPU is never waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from rti.backbones.base import Condition, FlowSettings
from rti.errors import (
    InputError,
    UnsupportedModelError,
    check_choice,
    check_finite,
    check_switch,
    check_whole,
    is_finite,
)
from rti.flow import choose_times, velocity
from rti.method.budgets import Budget, Budgets, Schedule
from rti.scheduler import check_scheduler, follow
from rti.solvers import BY_CLEAN_IMAGE, BY_VELOCITY, SOLVERS

FINISHES = ("estimate", "state")


def guidance_applies(t: Any, interval: Any) -> Any:
    """Whether it does at time t: inside the open interval, or from the very start if that begins at 0.

    Of one time, a number, or of many, a tensor.
    """
    low, high = interval
    return (t < high) & ((low == 0) | (t > low))


def guide(both: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Classifier-free guidance of [conditional ; unconditional] clean images: (2 B, C, H, W) -> (B, C, H, W)."""
    conditional, unconditional = both.chunk(2)
    return scale * conditional - (scale - 1) * unconditional  # linear, so the same on velocities


def guides_itself(model: nn.Module, scale: float) -> bool:
    """Whether one pass of a model gives the guided clean image; a backbone alone always needs two."""
    return hasattr(model, "guides_itself") and model.guides_itself(scale)


class GuidedVelocity:
    """The velocity of one sampling run, with classifier-free guidance; lives as long as the run.

    It keeps the last clean estimate, which a reduction may cut from at the next evaluation. One estimate serves both
    branches, so both see the same regions. A model that has learned to guide itself is asked once, not for both.
    """

    def __init__(
        self,
        model: nn.Module,
        condition: Condition,
        flow: FlowSettings,
        scale: float,
        interval: tuple[float, float],
        budgets: Budgets | None = None,
    ):
        """`budgets` as `Budgets.resolve` gives them; None for a backbone, which has none."""
        self.model, self.flow, self.budgets = model, flow, budgets
        self.scale, self.interval = scale, tuple(float(np.float32(end)) for end in interval)  # as the times are rounded
        text = {"text_budget": budgets.text} if budgets is not None and budgets.text is not None else {}
        prepared = model.prepare(condition)
        self.condition = model.prepare(prepared, **text)
        self.passes = (budgets and budgets.passes) or (1 if guides_itself(model, scale) else 2)
        if scale != 1.0 and self.passes == 1:
            scales = torch.full((len(condition),), scale, device=model.backbone.device)
            self.guided = model.prepare(self.condition, guidance=scales)
        elif scale != 1.0:
            self.guided = Condition.cat([self.condition, model.prepare(model.unconditional(prepared), **text)])
        self.estimate: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, t: float, step: int) -> torch.Tensor:
        return velocity(self.clean(x, t, step), x, t, self.flow.time_floor)

    def clean(self, x: torch.Tensor, t: float, step: int) -> torch.Tensor:
        """The clean image predicted at time t, guided where guidance applies. It is the next one's estimate."""
        self.estimate = self._clean(x, t, step)
        return self.estimate

    def _clean(self, x: torch.Tensor, t: float, step: int) -> torch.Tensor:
        budget = None if self.budgets is None else self.budgets.image[step]
        time = torch.full((), t, dtype=torch.float32, device=x.device)  # made there: a copy would wait for the device
        if not self.guides(t):
            return self.model(x, time, self.condition, budget=budget, estimate=self.estimate)
        if self.passes == 1:
            return self.model(x, time, self.guided, budget=budget, estimate=self.estimate)
        both = self.model(torch.cat([x, x]), time, self.guided, budget=budget, estimate=self.estimate)
        return guide(both, self.scale)

    def guides(self, t: float) -> bool:
        """Whether guidance is needed at time t."""
        return self.scale != 1.0 and guidance_applies(t, self.interval)


@torch.no_grad()
def sample(
    model: nn.Module,
    noise: torch.Tensor,
    condition: Condition,
    steps: int | None = None,
    guidance_scale: float | None = None,
    guidance_interval: tuple[float, float] | None = None,
    budget: Schedule | Budgets = None,
    guidance_budget: None = None,
    text_budget: Budget = None,
    solver: str | Any = None,
    start: int = 0,
    callback: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor | None] | None = None,
    progress: bool = False,
    guidance_passes: int | None = None,
    shift: float | None = None,
    times: Sequence[float] | None = None,
    finish: str | None = None,
) -> torch.Tensor:
    """Sample images from noise of the family's scale: (B, C, H, W) -> (B, C, H, W) float32, not clamped.

    `model` is a backbone, or an attached model, which takes a `budget`: a number, a share, a list with one for each
    step, a function of the step, or all `Budgets` as one value, with that of the text. `guidance_budget` is gone.
    What is not given is as the family's authors sample. `start` skips the first steps, for image-to-image; `noise` is
    then the state at that step. `callback(step, state, estimate)` is called after each step; it may give back another
    state to go on with, or raise to stop. `guidance_passes` is 1 or 2 a guided evaluation: by default one where the
    adapter was made for it and for this scale.

    `solver` is "euler", "heun", "multistep", or a flow scheduler of diffusers. The steps are even in time; a `shift`
    above 1 spends more of them on noise, as in SD3; or give the `times` themselves, from 0 to 1. The picture is the
    last clean estimate; finish="state" gives the solver's last state, as the release does, which keeps some noise where
    a step is shorter than a twentieth.
    """
    backbone = getattr(model, "backbone", model)
    flow = getattr(backbone, "flow", None)
    if not isinstance(flow, FlowSettings):
        raise UnsupportedModelError(
            f"cannot sample from a {type(model).__name__}; allowed: a backbone, or one attached"
        )
    backbone.check(noise, 0.0, condition)
    check_switch("progress", progress)
    check_callback("callback", callback)
    solver = flow.sampler if solver is None else solver
    if isinstance(solver, str):
        check_choice("solver", solver, SOLVERS)
    else:
        check_scheduler(solver)
    finish = "estimate" if finish is None else finish
    check_choice("finish", finish, FINISHES)
    times = choose_times(flow.steps if steps is None and times is None else steps, shift, times)
    count = len(times) - 1
    check_whole("start", start, count - 1, least=0)
    budgets = Budgets.of(budget, text_budget, guidance_budget, guidance_passes)
    if backbone is not model:
        budgets = budgets.resolve(count, backbone.patches, start)
    elif budgets.given():
        raise InputError("a backbone alone has no budget; attach a reduction first: rti.attach(backbone, config)")
    scale = flow.guidance_scale if guidance_scale is None else guidance_scale
    interval = flow.guidance_interval if guidance_interval is None else guidance_interval
    check_finite("guidance scale", scale)
    check_interval(interval)
    if budgets.passes == 1 and scale != 1.0:
        _check_guides_itself(model, float(scale))
    guided = GuidedVelocity(model, condition, flow, float(scale), interval, None if backbone is model else budgets)

    with tqdm(total=count - start, desc="sampling", unit="step", disable=not progress) as bar:

        def after_step(step: int, x: torch.Tensor) -> torch.Tensor:
            bar.update()
            if finish == "estimate" and start + step == count - 1:
                x = guided.estimate
            changed = None if callback is None else callback(start + step, x, guided.estimate)
            return x if changed is None else _same_kind(changed, x)

        if not isinstance(solver, str):
            return follow(solver, guided, noise.float(), times[start:], after_step)
        if solver in BY_CLEAN_IMAGE:
            return BY_CLEAN_IMAGE[solver](guided.clean, noise.float(), times[start:], after_step)
        return BY_VELOCITY[solver](guided, noise.float(), times[start:], after_step)


def _same_kind(state: Any, before: torch.Tensor) -> torch.Tensor:
    """A state that a callback gave back, as the sampler goes on with it."""
    if not isinstance(state, torch.Tensor) or state.shape != before.shape:
        given = f"of shape {tuple(state.shape)}" if isinstance(state, torch.Tensor) else repr(state)
        raise InputError(f"the callback gave back a state {given}; allowed: a tensor of shape {tuple(before.shape)}")
    return state.to(before.device, before.dtype)


def check_callback(name: str, callback: Any) -> None:
    if callback is not None and not callable(callback):
        raise InputError(f"{name} {callback!r} cannot be called; give a function")


def _check_guides_itself(model: nn.Module, scale: float) -> None:
    if not guides_itself(model, scale):
        scales = getattr(model.config, "one_pass", None)
        can = "it has learned none" if scales is None else "it has learned {:g} to {:g}".format(*scales)
        raise InputError(f"guidance_passes 1, but this model does not guide itself at {scale:g}: {can}; allowed: 2")


def check_interval(interval: Any) -> None:
    two = isinstance(interval, (tuple, list)) and len(interval) == 2
    if not two or not all(is_finite(end) or end == math.inf for end in interval) or not 0 <= interval[0] < interval[1]:
        raise InputError(f"guidance interval {interval!r} is not usable; allowed: (from, to) with 0 <= from < to")
