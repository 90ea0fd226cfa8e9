"""Training on data: the stream of examples, read by position, so that it goes on exactly where a run stopped."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from rti.backbones.base import Backbone, Condition
from rti.data import Drawn, Shuffle, Source, Tolerant
from rti.elastic import ElasticModel
from rti.errors import InputError
from rti.text.encoder import TextEncoder
from rti.training.config import DataConfig
from rti.training.draws import DrawSettings, draw
from rti.training.tasks import Task


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
    stream: Stream, config: DataConfig, process: int, processes: int, step: int, workers: int
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


@torch.no_grad()
def condition_of(backbone: Backbone, batch: MicroBatch, encoder: TextEncoder | None) -> Condition:
    """What the examples of a batch show, by their captions or labels, for the backbone."""
    if encoder is None:
        return backbone.condition(labels=batch.labels)
    states, mask = encoder(batch.captions, backbone.config.prompt_length)
    return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))


class DataTask(Task):
    """A task whose examples are those of a stream."""

    config: DataConfig

    def __init__(
        self, config: DataConfig, model: ElasticModel | Backbone, stream: Stream, encoder: TextEncoder | None = None
    ):
        super().__init__(config, model, encoder)
        self.stream = stream
        self.draw_settings = DrawSettings(config.time_mean, config.time_deviation, config.drop)
        self._batches: Iterator[MicroBatch] | None = None

    def batch(self, step: int, numbers: range, once: Any) -> tuple[Any, ...]:
        device, workers = self.engine.device, self.config.workers
        if self._batches is None:
            workers = (0 if device.type == "cpu" else 4) if workers is None else workers
            place = self.engine.process_index, self.engine.num_processes
            self._batches = micro_batches(self.stream, self.config, *place, step, workers)
        examples = next(self._batches)
        self.broken += examples.broken
        draws = draw(examples.images.shape[1:], self.config.seed, step, numbers, self.draw_settings)
        return examples.images.to(device), self.inputs(examples), draws.to(device), once

    def inputs(self, batch: MicroBatch) -> Any:
        """What the module is given beside the images."""
        return condition_of(self.backbone, batch, self.encoder)

    def subjects(self, count: int) -> list[str] | list[int]:
        examples = [self.stream[position].example for position in range(count)]
        return [example.label if self.encoder is None else example.caption for example in examples]

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
