"""The loop of every run. The engine is accelerate's; what is ours is that every step can be repeated exactly.

Which examples a step sees, their noise, their times and its budget follow from the seed, the step and the example's
number alone, whatever the number of processes. To resume, run the same command again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rti.errors import InputError
from rti.training.average import MovingAverage
from rti.training.config import RunConfig
from rti.training.draws import DrawSettings, draw
from rti.training.journal import Journal, tracker_of
from rti.training.signals import on_stop_signal
from rti.training.state import CannotSave, load_checkpoint, put, save_checkpoint, sweep, whole
from rti.training.stream import MicroBatch, error_of_worker, micro_batches
from rti.training.tasks import Task

PATIENCE = 5  # losses in a row that are not finite


class Trainer:
    """A run in its folder."""

    def __init__(self, config: RunConfig, task: Task):
        from accelerate import Accelerator, DistributedDataParallelKwargs

        self.config, self.task, self.folder = config, task, Path(config.output)
        # The text stream of a last block leads to no output, so its LoRA gets no gradient.
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)
        # Without this, several processes on a machine with no GPU would not know of each other.
        on_cpu = not torch.accelerator.is_available()
        options = {"mixed_precision": config.mixed_precision, "cpu": on_cpu or None, "kwargs_handlers": [unused]}
        self.accelerator = Accelerator(**options, log_with=tracker_of(config), project_dir=self.folder)
        self._check_sharding()
        self.accumulation = config.accumulation(self.accelerator.num_processes)
        if config.gradient_checkpointing:
            task.backbone.gradient_checkpointing = True
        optimisers = task.optimisers()
        self.objective, *self.optimisers = self.accelerator.prepare(task.module.train(), *optimisers)
        task.to(self.accelerator.device)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["highest_lr"] = group["lr"]
        # Named only now: a wrapper that shards the parameters puts its own in their place.
        module = self.accelerator.unwrap_model(self.objective)
        self.parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self.average = MovingAverage(self.parameters, config.ema)
        self.generator = torch.Generator().manual_seed(config.seed)  # of what a step draws once
        self.draw_settings = DrawSettings(config.time_mean, config.time_deviation, config.drop)
        self.step, self.skipped, self.bad_in_a_row, self.broken = 0, 0, 0, 0
        self.stopping = False
        if self.accelerator.is_main_process:
            sweep(self.folder)
        self.accelerator.wait_for_everyone()
        self._resume()
        self._batches: Iterator | None = None

    def _check_sharding(self) -> None:
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and plugin.fsdp_version != 2:
            raise InputError(f"FSDP version {plugin.fsdp_version} is not supported; allowed: 2 (--fsdp_version 2)")

    # One step.

    def train_step(self) -> float:
        """One step of the global batch; gives back its loss. One that is not finite changes nothing and is counted."""
        config, accelerator = self.config, self.accelerator
        once = self.task.draw_once(self.generator)
        shape = (self.task.backbone.channels, *self.task.backbone.image_size)
        factor = config.learning_rate_factor(self.step)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = group["highest_lr"] * factor
        total = torch.zeros((), device=accelerator.device)
        for micro in range(self.accumulation):
            batch = self._next_batch()
            self.broken += batch.broken
            draws = draw(shape, config.seed, self.step, batch.numbers, self.draw_settings).to(accelerator.device)
            with self._synchronised(micro == self.accumulation - 1):
                losses = self.objective(batch.images.to(accelerator.device), self.task.inputs(batch), draws, once)
                loss = losses.mean() / self.accumulation
                accelerator.backward(loss)
            total += loss.detach()
        # A stop that one process was asked for is the stop of all: they leave at the same step.
        together = accelerator.reduce(torch.stack([total, total.new_tensor(self.stopping)]), reduction="mean")
        value, self.stopping = together[0].item(), bool(together[1] > 0)
        self._update(value)
        self.step += 1
        self.last_label = self.task.label(once)
        return value

    def _update(self, loss: float) -> None:
        accelerator = self.accelerator
        norm = math.nan
        if math.isfinite(loss):
            norm = float(whole(accelerator.clip_grad_norm_(list(self.parameters.values()), self.config.clip)))
        # With fp16 it is the scaler's affair: it looks for infinite gradients itself, and then scales less.
        if math.isfinite(norm) or (math.isfinite(loss) and accelerator.scaler is not None):
            self.bad_in_a_row = 0
            for optimiser in self.optimisers:
                optimiser.step()
            self.average.update()
            return
        self.skipped += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= PATIENCE:
            raise InputError(
                f"the loss or its gradient was not finite {PATIENCE} steps in a row, at step {self.step}; "
                "lower the learning rate, or look at the data"
            )

    def _next_batch(self) -> MicroBatch:
        if self._batches is None:
            accelerator, workers = self.accelerator, self.config.workers
            if workers is None:
                workers = 0 if accelerator.device.type == "cpu" else 4
            self._batches = micro_batches(
                self.task.stream, self.config, accelerator.process_index, accelerator.num_processes, self.step, workers
            )
        try:
            return next(self._batches)
        except InputError as error:
            raise error_of_worker(error) from None

    @contextmanager
    def _synchronised(self, now: bool) -> Iterator[None]:
        """Exchange gradients with the other processes only for the last micro-batch of a step."""
        if now:
            yield
        else:
            with self.accelerator.no_sync(self.objective):
                yield

    # The run.

    def run(self, on_step: Callable[[int, float], None] | None = None) -> None:
        """Train to the last step, saving on the way; SIGTERM and Ctrl-C save and stop."""
        config = self.config
        with Journal(config, self.accelerator, self.step) as journal, on_stop_signal(self._stop):
            while self.step < config.steps and not self.stopping:
                loss = self.train_step()
                journal.step(self.step, loss, self.last_label, self._learning_rate(), self.skipped, self.broken)
                if on_step is not None:
                    on_step(self.step, loss)
                self._look(journal)
                last = self.step == config.steps or self.stopping
                if last or self.step % config.save_every == 0:
                    self._save_or_go_on(last)
        self._batches = None  # its workers end here

    def _stop(self, *_: Any) -> None:
        self.stopping = True

    def _learning_rate(self) -> float:
        return self.optimisers[0].param_groups[0]["lr"]

    def _look(self, journal: Journal) -> None:
        """Samples and scores of the averaged weights, every so often and at the end."""
        config = self.config

        def due(every: int) -> bool:
            return bool(every) and (self.step % every == 0 or self.step == config.steps)

        if self.stopping or not self.accelerator.is_main_process or self._sharded:
            return
        for every, look in ((config.sample_every, journal.sheet), (config.evaluate_every, journal.scores)):
            if due(every):
                # Eager: other batch sizes than those of training would compile anew.
                with journal.paused(), self.average.applied(), torch.compiler.set_stance("force_eager"):
                    self.task.module.eval()
                    look(self.step, self.task)
                    self.task.module.train()

    @property
    def _sharded(self) -> bool:
        return any(hasattr(parameter, "full_tensor") for parameter in self.parameters.values())

    # Saving and resuming.

    def _save_or_go_on(self, last: bool) -> None:
        """A disk that is full in the middle of a run may have room again; at the end it is an error."""
        try:
            self.save()
        except CannotSave as error:
            if last:
                raise InputError(
                    f"step {self.step} could not be saved: {error}; the checkpoint before is kept"
                ) from None
            if self.accelerator.is_main_process:
                print(f"rti: warning: step {self.step} could not be saved: {error}; going on", file=sys.stderr)

    def save(self) -> None:
        """A checkpoint to go on from, and what is for use with the averaged values. The same on any wrapper."""
        tensors = {f"trained.{name}": whole(parameter) for name, parameter in self.parameters.items()}
        averaged = {name: whole(value) for name, value in self.average.values.items()}
        for name, parameter in self.parameters.items():
            for key, value in self._optimiser_state(parameter).items():
                tensors[f"optimiser.{name}.{key}"] = whole(torch.as_tensor(value))
        if not self.accelerator.is_main_process:
            return
        tensors |= {f"average.{name}": value for name, value in averaged.items()}
        tensors["generator"] = self.generator.get_state()
        values = {"skipped": self.skipped, "bad_in_a_row": self.bad_in_a_row, "broken": self.broken}
        values["updates"] = self.average.updates
        if self.accelerator.scaler is not None:
            values["scaler"] = self.accelerator.scaler.state_dict()
        save_checkpoint(self.folder, self.step, tensors, values, self.config.keep)
        self.task.save(self.folder, averaged)

    def _optimiser_state(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        return next((one.state[parameter] for one in self.optimisers if parameter in one.state), {})

    @torch.no_grad()
    def _resume(self) -> None:
        loaded = load_checkpoint(self.folder)
        if loaded is None:
            return
        tensors, values = loaded
        self.step, self.skipped, self.bad_in_a_row = values["step"], values["skipped"], values["bad_in_a_row"]
        self.average.updates, self.broken = values["updates"], values["broken"]
        self.generator.set_state(tensors.pop("generator"))
        if self.accelerator.scaler is not None and "scaler" in values:
            self.accelerator.scaler.load_state_dict(values["scaler"])
        owners = {
            parameter: optimiser
            for optimiser in self.optimisers
            for group in optimiser.param_groups
            for parameter in group["params"]
        }
        for name, parameter in self.parameters.items():
            put(parameter, tensors[f"trained.{name}"])
            put(self.average.values[name], tensors[f"average.{name}"])
            prefix = f"optimiser.{name}."
            state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            if state:
                owners[parameter].state[parameter] = {
                    key: value if value.ndim == 0 else put(torch.zeros_like(parameter), value)
                    for key, value in state.items()
                }


def frozen_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """What must not change."""
    return {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
