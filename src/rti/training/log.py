"""Seeing a run: a progress bar, a log, tensorboard or wandb, sheets of samples."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from tqdm.auto import tqdm

from rti.errors import InputError
from rti.images import contact_sheet, enlarge, save_image
from rti.pipeline import Pipeline

if TYPE_CHECKING:
    from rti.training.tasks import Task
    from rti.training.trainer import Trainer


class Journal:
    """What a run tells while it goes on. Only the main process speaks; the others keep silent."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.speaks = trainer, trainer.accelerator.is_main_process
        config, path = trainer.config, trainer.folder.resolve()
        self.losses: dict[str, list[float]] = defaultdict(list)
        self.clock, self.pictures = time.perf_counter(), 0
        options = {"unit": "step", "mininterval": 1, "disable": not self.speaks}
        self.bar = tqdm(total=config.steps, initial=trainer.step, desc=trainer.folder.name, **options)
        plain = (bool, int, float, str)
        settings = {key: of if isinstance(of, plain) else str(of) for key, of in asdict(config).items()}
        # To wandb a resumed run is the same run.
        run = {"name": path.name, "id": hashlib.sha256(str(path).encode()).hexdigest()[:16], "resume": "allow"}
        name = "rti" if config.log_with == "wandb" else "logs"
        trainer.accelerator.init_trackers(name, settings, {"wandb": run})
        self.trackers = trainer.accelerator.trackers
        if config.log_with != "none" and self.speaks and not self.trackers:
            missing = f"{config.log_with} is not installed (pip install {config.log_with})"
            print(f"rti: warning: {missing}; the log is in {config.output}/log.jsonl", file=sys.stderr)

    def close(self) -> None:
        self.bar.close()
        for tracker in self.trackers:
            tracker.finish()

    def step(self, loss: float) -> None:
        """Note a step; every so often, say how it goes."""
        trainer, config = self.trainer, self.trainer.config
        self.bar.total = config.steps  # which a run by the clock may change
        self.bar.update()
        self.pictures += config.batch
        if math.isfinite(loss):
            self.losses["loss"].append(loss)
            if trainer.last_label is not None:
                self.losses[f"loss/{trainer.last_label}"].append(loss)
        if not self.speaks or (trainer.step % config.log_every and trainer.step != config.steps):
            return
        now = time.perf_counter()
        rate = self.pictures / (now - self.clock)
        values = {name: float(np.mean(some)) for name, some in self.losses.items()}
        counts = {"skipped": trainer.skipped, "broken": trainer.broken}
        self.bar.set_postfix(loss=f"{values.get('loss', math.nan):.4f}", images=f"{rate:.1f}/s", **counts)
        values |= {"learning_rate": trainer.optimisers[0].param_groups[0]["lr"], "images_per_second": round(rate, 2)}
        values |= counts
        entry = json.dumps({"step": trainer.step, "pictures": trainer.step * config.batch} | values)
        with suppress(OSError), (trainer.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(entry + "\n")  # a full disk does not end the run
        for tracker in self.trackers:
            tracker.log(values, step=trainer.step)
        self.losses.clear()
        self.clock, self.pictures = now, 0

    def look(self) -> None:
        """Samples of the averaged weights, in the folder and in the trackers; it does not count as training time."""
        trainer, started = self.trainer, time.perf_counter()
        sharded = any(hasattr(parameter, "full_tensor") for parameter in trainer.parameters.values())
        if not self.speaks or sharded:
            return
        # Eager: other batch sizes than those of training would compile anew.
        with trainer.average.applied(), torch.compiler.set_stance("force_eager"):
            trainer.task.module.eval()
            try:
                picture = draw_sheet(trainer.task)
                save_image(picture, trainer.folder / "samples" / f"step-{trainer.step:08d}.png")
                for tracker in self.trackers:
                    options = {"dataformats": "NHWC"} if tracker.name == "tensorboard" else {}
                    tracker.log_images({"samples": np.asarray(picture)[None]}, step=trainer.step, **options)
            except (InputError, OSError) as error:  # what is only for the eye does not end a run
                print(f"rti: warning: step {trainer.step} could not be shown: {error}", file=sys.stderr)
            trainer.task.module.train()
        self.clock += time.perf_counter() - started


def draw_sheet(task: Task) -> Image.Image:
    """The task's first subjects, from fixed noise: a row for the frozen backbone and for each budget."""
    config, labels = task.config, task.encoder is None
    subjects = task.subjects(config.sample_count)
    pipe, rows = Pipeline(task.model, task.encoder), {}
    for budget in (None, *task.budgets):
        drawn = pipe(
            **{"label" if labels else "prompt": subjects},
            budget=budget,
            dense=budget is None,
            num_inference_steps=config.sample_steps,
            generator=[torch.Generator().manual_seed(number) for number in range(len(subjects))],
            progress=False,
        )
        rows["dense" if budget is None else f"R = {budget}"] = [enlarge(picture, 128) for picture in drawn.images]
    return contact_sheet([*rows.values()], [*rows], [str(subject) for subject in subjects])
