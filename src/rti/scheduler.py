"""A flow scheduler of diffusers as a solver: sigma = 1 - t, and the model predicts the clean image.

Only the object is used, diffusers itself need not be there for anything else.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rti.errors import InputError
from rti.flow import time_grid

NEEDED = ("set_timesteps", "step", "config")


class OwnSolver:
    """What `pipe.scheduler` is until another one is set: its config is what diffusers' `from_config` takes."""

    config = {"num_train_timesteps": 1000, "use_flow_sigmas": True, "prediction_type": "flow_prediction"}


def check_scheduler(scheduler: Any) -> None:
    """Refuse what is no scheduler, or one of another process than this flow."""
    kind = type(scheduler).__name__
    if isinstance(scheduler, type) or not all(hasattr(scheduler, name) for name in NEEDED):
        raise InputError(
            f"solver {scheduler!r} is unknown; allowed: euler, heun, multistep, or a scheduler of diffusers"
        )
    if _prediction(scheduler) and not scheduler.config.get("use_flow_sigmas", False):
        made = f"{kind}.from_config(pipe.scheduler.config)"
        raise InputError(f"this {kind} is for another kind of noise; allowed: use_flow_sigmas=True, as {made} makes it")
    config = scheduler.config
    if str(config.get("algorithm_type")).startswith("sde") or config.get("stochastic_sampling"):
        raise InputError(
            f"this {kind} draws noise of its own, so a seed would not give one picture; allowed: one that does not"
        )
    if config.get("use_dynamic_shifting"):
        raise InputError(f"this {kind} shifts its steps by the picture's size; allowed: use_dynamic_shifting=False")
    if _prediction(scheduler) not in (None, "flow_prediction"):
        raise InputError(f"this {kind} asks for {_prediction(scheduler)}; allowed: prediction_type='flow_prediction'")


def _prediction(scheduler: Any) -> str | None:
    """What it asks the model for; None for one that integrates the velocity. (A config keeps what was another's.)"""
    own = inspect.signature(type(scheduler)).parameters
    return scheduler.config["prediction_type"] if "prediction_type" in own else None


def follow(
    given: Any,
    guided: Any,
    x: torch.Tensor,
    times: torch.Tensor,
    callback: Callable[[int, torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Sample by a scheduler, a copy of it, so that nothing of one run is left to the next.

    It goes by our times where it takes sigmas, else by its own spacing of as many steps. One that integrates the
    velocity gets the family's, others get the clean image in the form that they ask for.
    """
    scheduler, count = copy.deepcopy(given), len(times) - 1
    prediction = _prediction(scheduler)
    if "sigmas" in inspect.signature(scheduler.set_timesteps).parameters:
        scheduler.set_timesteps(sigmas=(1 - times[:-1]).numpy(), device=x.device)
    elif torch.equal(times, time_grid(count)):
        scheduler.set_timesteps(count, device=x.device)
    else:
        kind = type(scheduler).__name__
        raise InputError(f"{kind} has steps of its own, for whole pictures; leave out times, shift and the start image")
    sigmas = scheduler.sigmas.tolist()
    evaluations = len(scheduler.timesteps)
    for number, timestep in enumerate(scheduler.timesteps):
        sigma = sigmas[number]
        t = float(np.float32(1 - sigma))
        step = number * count // evaluations  # of ours: some ask more than once a step
        output = -guided(x, t, step) if prediction is None else (x - guided.clean(x, t, step)) / sigma
        x = scheduler.step(output, timestep, x, return_dict=False)[0]
        if callback is not None and (number + 1) * count // evaluations > step:
            x = callback(step, x)
    return x
