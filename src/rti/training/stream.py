"""The stream of training examples: read by position, so that it goes on exactly where a run stopped."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from rti.data import Drawn, Shuffle, Source, Tolerant
from rti.errors import InputError
from rti.training.config import RunConfig


class MicroBatch(NamedTuple):
    """Examples that a process takes at once."""

    images: torch.Tensor  # (B, C, H, W) in [-1, 1]
    captions: list[str] | None
    labels: torch.Tensor | None  # (B,) int64
    broken: int  # how many unreadable ones were passed over


class Stream(Dataset):
    """A source as an endless stream of examples, in the order of training."""

    def __init__(self, source: Source, seed: int):
        self.source, self.shuffle = Tolerant(source), Shuffle.of(source, seed)

    def __getitem__(self, position: int) -> Drawn:
        return self.source[self.shuffle.index(position)]


def micro_batches(
    stream: Stream, config: RunConfig, process: int, processes: int, step: int, workers: int
) -> Iterator[MicroBatch]:
    """The micro-batches of one process from a step on, read ahead by some workers; endless.

    Position p of step s is number p - s * batch of that step's global batch.
    """
    shares = config.shares(process, processes)
    positions = (
        [step * config.batch + number for number in numbers] for step in itertools.count(step) for numbers in shares
    )
    options = {"num_workers": workers, "worker_init_fn": _leave_signals_to_the_main_process}
    batches = iter(DataLoader(stream, batch_sampler=positions, collate_fn=collate, **options))
    try:
        yield from batches
    except InputError as error:  # found by a worker, it comes in a traceback of torch
        _, wrapped, traceback = str(error.args[0]).partition("Original Traceback")
        raise InputError(traceback.strip().splitlines()[-1].partition(": ")[2]) if wrapped else error from None
    finally:
        if workers:
            batches._shutdown_workers()  # or torch would take those that are killed for a failure, and say so
            for worker in batches._workers:
                worker.kill()  # they are deaf to SIGTERM


def collate(drawn: list[Drawn]) -> MicroBatch:
    examples = [one.example for one in drawn]
    captions = None if examples[0].caption is None else [example.caption for example in examples]
    labels = None if examples[0].label is None else torch.tensor([example.label for example in examples])
    images = torch.stack([example.image for example in examples])
    return MicroBatch(images, captions, labels, sum(one.skipped for one in drawn))


def _leave_signals_to_the_main_process(worker: int) -> None:
    """A terminal's Ctrl-C and a scheduler's SIGTERM reach every process, while the run still has a step to finish."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
