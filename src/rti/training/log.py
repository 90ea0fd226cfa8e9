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
from typing import Any

import numpy as np

from rti.images import save_image
from rti.training.config import RunConfig
from rti.training.tasks import Task


class Journal:
    """What a run tells while it goes on. Only the main process speaks; the others keep silent."""

    def __init__(self, config: RunConfig, accelerator: Any, step: int):
        from tqdm.auto import tqdm

        self.config, self.folder, self.speaks = config, Path(config.output), accelerator.is_main_process
        self.losses: dict[str, list[float]] = defaultdict(list)
        self.clock, self.pictures = time.perf_counter(), 0
        self.bar = tqdm(
            total=config.steps, initial=step, desc=self.folder.name, unit="step", mininterval=1, disable=not self.speaks
        )
        if self.speaks:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.trackers = _start_trackers(config, accelerator)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.close()
        for tracker in self.trackers:
            tracker.finish()

    def step(self, step: int, loss: float, label: str | None, learning_rate: float, skipped: int, broken: int) -> None:
        """Note a step; every so often, say how it goes."""
        self.bar.update()
        self.pictures += self.config.batch
        if math.isfinite(loss):
            self.losses["loss"].append(loss)
            if label is not None:
                self.losses[f"loss/{label}"].append(loss)
        if step % self.config.log_every and step != self.config.steps:
            return
        now = time.perf_counter()
        rate = self.pictures / (now - self.clock)
        means = {name: float(np.mean(values)) for name, values in self.losses.items()}
        self.bar.set_postfix(
            loss=f"{means.get('loss', math.nan):.4f}", images=f"{rate:.1f}/s", skipped=skipped, broken=broken
        )
        values = {"learning_rate": learning_rate, "images_per_second": round(rate, 2), "skipped": skipped}
        self._write(step, means | values | {"broken": broken})
        self.losses.clear()
        self.clock, self.pictures = now, 0

    def sheet(self, step: int, task: Task) -> None:
        """A picture of samples, in the folder and in the trackers."""
        picture = task.sheet()
        (self.folder / "samples").mkdir(exist_ok=True)
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

    def _write(self, step: int, values: dict[str, float]) -> None:
        if not self.speaks:
            return
        entry = json.dumps({"step": step, "pictures": step * self.config.batch} | values)
        with suppress(OSError), (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(entry + "\n")  # a full disk does not end the run
        for tracker in self.trackers:
            tracker.log(values, step=step)


def tracker_of(config: RunConfig) -> str | None:
    """accelerate's name of the tracker; one whose package is not there is said once, and the log is still written."""
    if config.log_with == "none":
        return None
    if find_spec(config.log_with) is not None:
        return config.log_with
    if os.environ.get("RANK", "0") != "0":
        return None  # one process says it for all
    print(
        f"rti: warning: {config.log_with} is not installed (pip install {config.log_with}); "
        f"the log is in {config.output}/log.jsonl",
        file=sys.stderr,
    )
    return None


def _start_trackers(config: RunConfig, accelerator: Any) -> list[Any]:
    values = asdict(config)
    settings = {
        key: value if isinstance(value, (bool, int, float, str)) else str(value) for key, value in values.items()
    }
    folder = Path(config.output).resolve()
    # To wandb a resumed run is the same run.
    run = {"name": folder.name, "id": hashlib.sha256(str(folder).encode()).hexdigest()[:16], "resume": "allow"}
    project = "rti" if config.log_with == "wandb" else "logs"
    accelerator.init_trackers(project, settings, {"wandb": run})
    return accelerator.trackers
