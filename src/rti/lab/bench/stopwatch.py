"""Where the time and the memory of a forward pass go."""

from __future__ import annotations

import ctypes
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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


class Stopwatch:
    """Adds up the time spent in the parts of a model, called by name; a part inside another counts in both."""

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def around(self, owner: Any, method: str, name: str | Callable[..., str]) -> Iterator[None]:
        """Time every call of a method; `name` may depend on how it is called."""
        inner = getattr(owner, method)

        def timed(*inputs: Any, **options: Any) -> Any:
            started = clock(self.device)
            result = inner(*inputs, **options)
            self.seconds[name if isinstance(name, str) else name(*inputs)] += clock(self.device) - started
            return result

        setattr(owner, method, timed)
        try:
            yield
        finally:
            delattr(owner, method)


@contextmanager
def parts_of(model: ElasticModel | Backbone) -> Iterator[dict[str, float]]:
    """The seconds in each part of a model while this is open: embed, prelude, core, coda, head, and the interface's.

    "interface" is all that a reduction adds around the core; its own modules and the partition are listed beside it.
    """
    backbone: Backbone = getattr(model, "backbone", model)
    watch = Stopwatch(backbone.device)
    with ExitStack() as stack:
        for method in ("embed", "head"):
            stack.enter_context(watch.around(backbone, method, method))
        first, last = model.config.core if backbone is not model else (0, backbone.depth - 1)

        def span(tokens: Any, start: int, stop: int) -> str:
            return "prelude" if stop <= first else "coda" if start > last else "core"

        stack.enter_context(watch.around(backbone, "run", span if backbone is not model else "trunk"))
        if backbone is not model:
            reduction = model.reduction
            stack.enter_context(watch.around(reduction, "forward", "interface"))
            stack.enter_context(watch.around(reduction, "regions", "partition"))
            for name, child in reduction.named_children():
                stack.enter_context(watch.around(child, "forward", name))
        yield watch.seconds
    if "interface" in watch.seconds:
        watch.seconds["interface"] -= watch.seconds["core"]


class PeakMemory:
    """The most memory held while a block runs, in gigabytes: the GPU's, or this process's where the system tells."""

    def __init__(self, device: torch.device):
        self.device, self.gigabytes = device, None

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif sys.platform == "linux":
            _give_back_free_memory()
            try:
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
            except OSError:
                self.device = None
        return self

    def __exit__(self, *exception: object) -> None:
        if self.device is None or exception[0] is not None:
            return
        if self.device.type == "cuda":
            self.gigabytes = round(torch.cuda.max_memory_allocated(self.device) / 1e9, 3)
        elif sys.platform == "linux":
            status = Path("/proc/self/status").read_text()
            kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
            self.gigabytes = round(int(kilobytes) * 1024 / 1e9, 3)


def _give_back_free_memory() -> None:
    """Let the C library return what it holds for later, so that one row's peak is not the next one's floor."""
    with suppress(OSError, AttributeError):  # with another C library the peaks are less sharp
        ctypes.CDLL("libc.so.6").malloc_trim(0)
