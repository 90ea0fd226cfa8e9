"""The stream of training examples: read by position, so that it goes on exactly where a run stopped.

Position p of step s is number p - s * batch of that step's global batch. Micro-batches go round the processes, so which
examples a step sees does not depend on how many processes there are.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from rti.data import Example, Order, Source, Tolerant
from rti.errors import InputError
from rti.training.config import RunConfig


class MicroBatch(NamedTuple):
    """Examples that a process takes at once."""

    images: torch.Tensor  # (B, C, H, W) in [-1, 1]
    captions: list[str] | None
    labels: torch.Tensor | None  # (B,) int64
    numbers: range  # their numbers in the step's global batch
    broken: int  # how many unreadable ones were passed over


class Stream(Dataset):
    """A source as an endless stream of examples, in the order of training."""

    def __init__(self, source: Source, seed: int):
        self.source, self.order = Tolerant(source), Order.of(source, seed)

    def __getitem__(self, position: int) -> tuple[Example, int, int]:
        drawn = self.source[self.order.index(position)]
        return drawn.example, drawn.skipped, position


class Positions:
    """The positions of each micro-batch of one process, from a step on: an endless batch sampler."""

    def __init__(self, config: RunConfig, process: int, processes: int, step: int):
        self.batch, self.size, self.step = config.batch, config.batch_per_device, step
        self.accumulation, self.process, self.processes = config.accumulation(processes), process, processes

    def __iter__(self) -> Iterator[range]:
        step = self.step
        while True:
            for micro in range(self.accumulation):
                first = step * self.batch + (micro * self.processes + self.process) * self.size
                yield range(first, first + self.size)
            step += 1


def micro_batches(
    stream: Stream, config: RunConfig, process: int, processes: int, step: int, workers: int
) -> Iterator[MicroBatch]:
    """The micro-batches of one process from a step on, read ahead by some workers."""

    return iter(
        DataLoader(
            stream,
            batch_sampler=Positions(config, process, processes, step),
            num_workers=workers,
            collate_fn=functools.partial(collate, batch=config.batch),
            worker_init_fn=_leave_signals_to_the_main_process,
        )
    )


def collate(drawn: list[tuple[Example, int, int]], batch: int) -> MicroBatch:
    examples, skipped, positions = zip(*drawn, strict=True)
    first = positions[0] % batch
    captions = None if examples[0].caption is None else [example.caption for example in examples]
    labels = None if examples[0].label is None else torch.tensor([example.label for example in examples])
    images = torch.stack([example.image for example in examples])
    return MicroBatch(images, captions, labels, range(first, first + len(examples)), sum(skipped))


def _leave_signals_to_the_main_process(worker: int) -> None:
    """A terminal's Ctrl-C and a scheduler's SIGTERM reach every process, while the run still has a step to finish."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def error_of_worker(error: InputError) -> InputError:
    """A user's mistake found by a worker, without the traceback that torch wraps it in."""
    _, wrapped, traceback = str(error.args[0]).partition("Original Traceback")
    return InputError(traceback.strip().splitlines()[-1].partition(": ")[2]) if wrapped else error
