"""Where the time and the memory of a forward pass go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from rti.backbones.base import Backbone
from rti.elastic import ElasticModel


def clock(device: torch.device) -> float:
    """The time, once the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


@contextmanager
def timed(owner: Any, method: str, seconds: dict[str, float], name: str | Callable[..., str], device: Any) -> Iterator:
    """Add the time of every call of a method to `seconds`; its name there may depend on how it is called."""
    inner = getattr(owner, method)

    def call(*inputs: Any, **options: Any) -> Any:
        started = clock(device)
        result = inner(*inputs, **options)
        seconds[name if isinstance(name, str) else name(*inputs)] += clock(device) - started
        return result

    with patch.object(owner, method, call):
        yield


@contextmanager
def parts_of(model: ElasticModel | Backbone) -> Iterator[dict[str, float]]:
    """The seconds in each part of a model while this is open: embed, prelude, core, coda, head, and the interface's.

    "interface" is all that a reduction adds around the core; its own modules and the partition are listed beside it. A
    part inside another counts in both.
    """
    backbone: Backbone = getattr(model, "backbone", model)
    parts: list[tuple[Any, str, Any]] = [(backbone, "embed", "embed"), (backbone, "head", "head")]
    if backbone is model:
        parts.append((backbone, "run", "trunk"))
    else:
        first, last = model.config.core
        parts.append(
            (backbone, "run", lambda _, start, stop: "prelude" if stop <= first else "coda" if start > last else "core")
        )
        parts += [(model.reduction, "forward", "interface"), (model.reduction, "regions", "partition")]
        parts += [(child, "forward", name) for name, child in model.reduction.named_children()]
    seconds: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        for owner, method, name in parts:
            stack.enter_context(timed(owner, method, seconds, name, backbone.device))
        yield seconds
    if "interface" in seconds:
        seconds["interface"] -= seconds["core"]


def peak_memory(work: Callable[[], Any], device: torch.device) -> float | None:
    """The most memory of a GPU held while work is done, in gigabytes; None elsewhere."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 3)
