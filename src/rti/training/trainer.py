"""Elastic fine-tuning: the loop. The engine is accelerate's; what is ours is that every step can be repeated exactly.

Which examples a step sees, their noise, their times and its budget follow from the seed, the step and the example's
number alone, whatever the number of processes. To resume, run the same command again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rti.backbones.base import Condition
from rti.core import ElasticModel
from rti.errors import InputError
from rti.training.average import MovingAverage
from rti.training.config import TrainConfig
from rti.training.elastic import DrawSettings, ElasticObjective, draw, draw_dial
from rti.training.signals import on_stop_signal
from rti.training.state import load_checkpoint, save_checkpoint

PATIENCE = 5  # losses in a row that are not finite

# (positions in the stream of training examples) -> clean images (B, C, H, W) and their conditions
Fetch = Callable[[Sequence[int]], tuple[torch.Tensor, Condition]]


class Trainer:
    """A run in its folder. `fetch` gives the examples at some positions of the endless stream of training data."""

    def __init__(self, config: TrainConfig, model: ElasticModel, fetch: Fetch):
        from accelerate import Accelerator, DistributedDataParallelKwargs

        self.config, self.fetch, self.folder = config, fetch, Path(config.output)
        # The text stream of a last block leads to no output, so its LoRA gets no gradient.
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)
        on_cpu = model.backbone.device.type == "cpu"
        self.accelerator = Accelerator(mixed_precision=config.mixed_precision, cpu=on_cpu, kwargs_handlers=[unused])
        self.accumulation = config.accumulation(self.accelerator.num_processes)
        self.model = model.train()
        parameters = model.trainable_parameters()
        for parameter in parameters.values():
            parameter.data = parameter.data.float()  # what trains is float32, whatever the frozen weights are
        self.average = MovingAverage(parameters, config.ema)
        optimiser = torch.optim.AdamW(
            list(parameters.values()), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
        )
        self.parameters = parameters
        self.objective, self.optimiser = self.accelerator.prepare(ElasticObjective(model), optimiser)
        self.dial_generator = torch.Generator().manual_seed(config.seed)
        self.draw_settings = DrawSettings(config.time_mean, config.time_deviation, config.drop)
        self.estimate_budget = config.estimate_budget or min(config.budgets)
        self.step, self.skipped, self.bad_in_a_row = 0, 0, 0
        self._resume()

    def train_step(self) -> float:
        """One step of the global batch; gives back its loss. One that is not finite changes nothing and is counted."""
        config, accelerator = self.config, self.accelerator
        dial = draw_dial(config.budgets, config.blind, self.dial_generator)
        shape = (self.model.backbone.channels, *self.model.backbone.image_size)
        factor = min(1.0, (self.step + 1) / config.warmup) if config.warmup else 1.0
        for group in self.optimiser.param_groups:
            group["lr"] = config.learning_rate * factor
        self.optimiser.zero_grad()
        total = torch.zeros((), device=accelerator.device)
        for micro in range(self.accumulation):
            # Micro-batches go round the processes, so the examples of a step do not depend on their number.
            first = (micro * accelerator.num_processes + accelerator.process_index) * config.batch_per_device
            numbers = range(first, first + config.batch_per_device)
            images, condition = self.fetch([self.step * config.batch + number for number in numbers])
            draws = draw(shape, config.seed, self.step, numbers, self.draw_settings)
            draws = type(draws)(*(value.to(accelerator.device) for value in draws))
            with self._synchronised(micro == self.accumulation - 1):
                losses = self.objective(images, condition, draws, dial, self.estimate_budget)
                loss = losses.mean() / self.accumulation
                accelerator.backward(loss)
            total += loss.detach()
        value = accelerator.reduce(total, reduction="mean").item()
        if math.isfinite(value):
            self.bad_in_a_row = 0
            accelerator.clip_grad_norm_(list(self.parameters.values()), config.clip)
            self.optimiser.step()
            self.average.update()
        else:
            self.skipped += 1
            self.bad_in_a_row += 1
            if self.bad_in_a_row >= PATIENCE:
                raise InputError(
                    f"the loss was not finite {PATIENCE} steps in a row, at step {self.step}; lower the learning rate"
                )
        self.step += 1
        return value

    @contextmanager
    def _synchronised(self, now: bool) -> Iterator[None]:
        """Exchange gradients with the other processes only for the last micro-batch of a step."""
        if now:
            yield
        else:
            with self.accelerator.no_sync(self.objective):
                yield

    def run(self, on_step: Callable[[int, float], None] | None = None) -> None:
        """Train to the last step, saving on the way; SIGTERM and Ctrl-C save and stop."""
        self.stopping = False
        started, first = time.perf_counter(), self.step
        from tqdm.auto import tqdm

        bar = tqdm(
            total=self.config.steps,
            initial=self.step,
            desc=self.folder.name,
            unit="step",
            disable=not self.accelerator.is_local_main_process,
        )
        try:
            with on_stop_signal(self._stop):
                while self.step < self.config.steps and not self.stopping:
                    loss = self.train_step()
                    rate = (self.step - first) * self.config.batch / (time.perf_counter() - started)
                    bar.update()
                    bar.set_postfix(loss=f"{loss:.4f}", images=f"{rate:.1f}/s", skipped=self.skipped)
                    if on_step is not None:
                        on_step(self.step, loss)
                    if self.step % self.config.save_every == 0:
                        self.save()
                self.save()
        finally:
            bar.close()

    def _stop(self, *_: Any) -> None:
        self.stopping = True

    # Saving and resuming.

    def save(self) -> None:
        """A checkpoint to go on from, and the averaged adapter for use."""
        if not self.accelerator.is_main_process:
            return
        tensors = {f"trained.{name}": parameter for name, parameter in self.parameters.items()}
        tensors |= {f"average.{name}": value for name, value in self.average.values.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{name}.{key}"] = torch.as_tensor(value)
        tensors["dial"] = self.dial_generator.get_state()
        values = {"skipped": self.skipped, "bad_in_a_row": self.bad_in_a_row, "updates": self.average.updates}
        save_checkpoint(self.folder, self.step, tensors, values, self.config.keep)
        with self.average.applied():
            self.model.save_pretrained(self.folder / "adapter")

    @torch.no_grad()
    def _resume(self) -> None:
        loaded = load_checkpoint(self.folder)
        if loaded is None:
            return
        tensors, values = loaded
        self.step, self.skipped, self.bad_in_a_row = values["step"], values["skipped"], values["bad_in_a_row"]
        self.average.updates = values["updates"]
        self.dial_generator.set_state(tensors.pop("dial"))
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors.pop(f"trained.{name}"))
            self.average.values[name].copy_(tensors.pop(f"average.{name}"))
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"optimiser.{name}.{key}" in tensors]
            if keys:
                self.optimiser.state[parameter] = {key: tensors.pop(f"optimiser.{name}.{key}") for key in keys}


def frozen_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What must not change."""
    return {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
