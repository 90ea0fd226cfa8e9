"""Seeing a run: a progress bar, a log, tensorboard or wandb, sheets of samples."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from rti.images import contact_sheet, enlarge, save_image
from rti.pipeline import Pipeline
from rti.training.config import RunConfig

if TYPE_CHECKING:
    from rti.training.tasks import Task
    from rti.training.trainer import Trainer


class Journal:
    """What a run tells while it goes on. Only the main process speaks; the others keep silent."""

    def __init__(self, config: RunConfig, accelerator: Any, step: int):
        from tqdm.auto import tqdm

        self.config, self.folder, self.speaks = config, Path(config.output), accelerator.is_main_process
        self.losses: dict[str, list[float]] = defaultdict(list)
        self.clock, self.pictures = time.perf_counter(), 0
        name, hidden = self.folder.name, not self.speaks
        self.bar = tqdm(total=config.steps, initial=step, desc=name, unit="step", mininterval=1, disable=hidden)
        plain = {
            key: value if isinstance(value, (bool, int, float, str)) else str(value)
            for key, value in asdict(config).items()
        }
        # To wandb a resumed run is the same run.
        run = {"name": self.folder.resolve().name, "resume": "allow"}
        run["id"] = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]
        accelerator.init_trackers("rti" if config.log_with == "wandb" else "logs", plain, {"wandb": run})
        self.trackers = accelerator.trackers

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.close()
        for tracker in self.trackers:
            tracker.finish()

    def step(self, trainer: Trainer, loss: float) -> None:
        """Note a step; every so often, say how it goes."""
        self.bar.update()
        self.pictures += self.config.batch
        if math.isfinite(loss):
            self.losses["loss"].append(loss)
            if trainer.last_label is not None:
                self.losses[f"loss/{trainer.last_label}"].append(loss)
        if not self.speaks or (trainer.step % self.config.log_every and trainer.step != self.config.steps):
            return
        now = time.perf_counter()
        rate = self.pictures / (now - self.clock)
        values = {name: float(np.mean(some)) for name, some in self.losses.items()}
        counts = {"skipped": trainer.skipped, "broken": trainer.broken}
        self.bar.set_postfix(loss=f"{values.get('loss', math.nan):.4f}", images=f"{rate:.1f}/s", **counts)
        values |= {"learning_rate": trainer.learning_rate, "images_per_second": round(rate, 2)} | counts
        entry = json.dumps({"step": trainer.step, "pictures": trainer.step * self.config.batch} | values)
        with suppress(OSError), (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(entry + "\n")  # a full disk does not end the run
        for tracker in self.trackers:
            tracker.log(values, step=trainer.step)
        self.losses.clear()
        self.clock, self.pictures = now, 0

    def picture(self, step: int, picture: Image.Image) -> None:
        """A picture of samples, in the folder and in the trackers."""
        save_image(picture, self.folder / "samples" / f"step-{step:08d}.png")
        for tracker in self.trackers:
            options = {"dataformats": "NHWC"} if tracker.name == "tensorboard" else {}
            tracker.log_images({"samples": np.asarray(picture)[None]}, step=step, **options)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside does not count as training time."""
        started = time.perf_counter()
        yield
        self.clock += time.perf_counter() - started


def draw_sheet(task: Task) -> Image.Image:
    """The stream's first subjects, from fixed noise: a row for the frozen backbone and for each budget."""
    config = task.config
    examples = [task.stream[position][0] for position in range(config.sample_count)]
    kind = "label" if task.encoder is None else "prompt"
    subjects = [example.label if task.encoder is None else example.caption for example in examples]
    pipe, rows = Pipeline(task.model, task.encoder), {}
    for budget in (None, *task.budgets):
        drawn = pipe(
            **{kind: subjects},
            budget=budget,
            dense=budget is None,
            num_inference_steps=config.sample_steps,
            generator=[torch.Generator().manual_seed(number) for number in range(len(examples))],
            progress=False,
        )
        rows["dense" if budget is None else f"R = {budget}"] = [enlarge(picture, 128) for picture in drawn.images]
    return contact_sheet([*rows.values()], [*rows], [str(subject) for subject in subjects])


def tracker_of(config: RunConfig) -> str | None:
    """accelerate's name of the tracker; one whose package is not there is said once, and the log is still written."""
    if config.log_with == "none" or find_spec(config.log_with) is not None:
        return None if config.log_with == "none" else config.log_with
    if os.environ.get("RANK", "0") == "0":  # one process says it for all
        missing = f"{config.log_with} is not installed (pip install {config.log_with})"
        print(f"rti: warning: {missing}; the log is in {config.output}/log.jsonl", file=sys.stderr)
    return None
