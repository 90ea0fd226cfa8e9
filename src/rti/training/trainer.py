"""The loop of every run. The engine is accelerate's; what is ours is that a step can be repeated.

Which examples a step sees, their noise, their times and its budget follow from the seed, the step and the example's
number alone, whatever the number of processes. On a CPU the same command then gives the same weights, bit by bit; on a
GPU up to rounding, since gather's backward adds in any order and the libraries choose kernels by shape. To resume, run
the same command again.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from rti.checkpoint import under
from rti.errors import InputError
from rti.files import first_line
from rti.precision import emulated_warning, is_emulated
from rti.training.config import RunConfig
from rti.training.log import Journal
from rti.training.signals import on_stop_signal
from rti.training.state import CannotSave, hold, load_checkpoint, put, save_checkpoint, whole
from rti.training.tasks import Task

if TYPE_CHECKING:
    from accelerate import Accelerator

PATIENCE = 5  # losses in a row that are not finite
COUNTS = ("skipped", "bad_in_a_row", "broken", "updates")  # beside the step, in a checkpoint


class MovingAverage:
    """Exponential moving average of named parameters, in float32; the frozen backbone is never copied.

    Early on the decay is smaller, (1 + n) / (10 + n) after n updates, so that the first steps are soon forgotten.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float):
        self.parameters, self.decay, self.updates = parameters, decay, 0
        self.values = {name: parameter.detach().float().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        current = [parameter.detach().float() for parameter in self.parameters.values()]
        get_ema_multi_avg_fn(decay)(list(self.values.values()), current, self.updates)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the averaged parameters, for sampling; the trained ones come back."""
        trained = {name: parameter.data for name, parameter in self.parameters.items()}
        try:
            for name, parameter in self.parameters.items():
                parameter.data = self.values[name].to(parameter.dtype)
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = trained[name]


class Trainer:
    """A run in its folder."""

    def __init__(self, config: RunConfig, task: Task, engine: Accelerator | None = None):
        self.config, self.task, self.folder = config, task, Path(config.output)
        self.accelerator = engine or make_engine(config)
        self.shares = config.shares(self.accelerator.process_index, self.accelerator.num_processes)
        if config.gradient_checkpointing:
            task.backbone.gradient_checkpointing = True
        optimisers = task.optimisers()
        self.objective, *self.optimisers = self.accelerator.prepare(task.module.train(), *optimisers)
        task.start(self.accelerator)
        self.owners = {}  # the optimiser of each parameter
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["highest_lr"] = group["lr"]
                self.owners |= dict.fromkeys(group["params"], optimiser)
        # Named only now: a wrapper that shards the parameters puts its own in their place.
        module = self.accelerator.unwrap_model(self.objective)
        self.parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self.average = MovingAverage(self.parameters, config.ema)
        self.generator = torch.Generator().manual_seed(config.seed)  # of what a step draws once
        self.step, self.skipped, self.bad_in_a_row, self.broken = 0, 0, 0, 0
        self.asked = False  # this process was asked to stop; the signal handler's alone
        self.stopping = False  # all processes have agreed to
        self.lock = hold(self.folder) if self.accelerator.is_main_process else None  # until the run has ended
        self.accelerator.wait_for_everyone()
        self._resume()

    # One step.

    def train_step(self) -> float:
        """One step of the global batch; gives back its loss. One that is not finite changes nothing and is counted."""
        accelerator, task = self.accelerator, self.task
        once = task.draw_once(self.generator)
        factor = self.config.learning_rate_factor(self.step)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = group["highest_lr"] * factor
        total, broken_before = torch.zeros((), device=accelerator.device), task.broken
        for numbers in self.shares:
            batch = task.batch(self.step, numbers, once)
            # Gradients are exchanged with the other processes only for the last micro-batch of a step.
            with nullcontext() if numbers is self.shares[-1] else accelerator.no_sync(self.objective):
                loss = self.objective(*batch).mean() / len(self.shares)
                accelerator.backward(loss)
            total += loss.detach()
        # A stop that one process was asked for is the stop of all: they leave at the same step.
        mine = torch.stack([total, total.new_tensor(self.asked), total.new_tensor(task.broken - broken_before)])
        value, asked, broken = accelerator.reduce(mine, reduction="mean").tolist()
        self.stopping = asked > 0
        self.broken += round(broken * accelerator.num_processes)
        self._update(value)
        self.step += 1
        self.last_label = task.label(once)
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
            if accelerator.optimizer_step_was_skipped:  # by the scaler
                self.skipped += 1
            else:
                self.average.update()
            return
        self.skipped += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= PATIENCE:
            raise InputError(
                f"the loss or its gradient was not finite {PATIENCE} steps in a row, at step {self.step}; "
                "lower the learning rate, or look at the data"
            )

    # The run.

    def run(self, on_step: Callable[[int, float], None] | None = None) -> None:
        """Train to the last step, saving on the way; SIGTERM and Ctrl-C save and stop.

        `on_step` is told each step and its loss. It may change the config.
        """
        every = self.config.sample_every
        try:
            with closing(Journal(self)) as journal, on_stop_signal(self._stop):
                if self.step:  # killed after a checkpoint, it may not have written what belongs to that step
                    self._save_or_go_on(self.step >= self.config.steps, self._save_for_use)
                while self.step < self.config.steps and not self.stopping:
                    loss = self.train_step()
                    journal.step(loss)
                    if on_step is not None:
                        on_step(self.step, loss)
                    last = self.step == self.config.steps
                    saved = last or self.stopping
                    if saved or self.step % self.config.save_every == 0:
                        self._save_or_go_on(saved)
                    if every and (self.step % every == 0 or last) and not self.stopping:
                        journal.look()
                    if self.stopping and not saved:  # asked while it was saving or drawing samples
                        self._save_or_go_on(last=True)
        finally:
            self.task.close()
            if self.lock is not None:
                self.lock.release(force=True)

    def _stop(self, *_: Any) -> None:
        self.asked = True
        self.stopping = self.accelerator.num_processes == 1  # the others, if any, must agree first

    # Saving and resuming.

    def _save_or_go_on(self, last: bool, save: Callable[[], None] | None = None) -> None:
        """A disk that is full in the middle of a run may have room again; at the end it is an error."""
        try:
            (save or self.save)()
        except CannotSave as error:
            problem = f"step {self.step} could not be saved: {error}"
            if last:
                raise InputError(f"{problem}; the checkpoint before is kept") from None
            if self.accelerator.is_main_process:
                print(f"rti: warning: {problem}; going on", file=sys.stderr)

    def save(self) -> None:
        """A checkpoint to go on from, and what is for use with the averaged values. The same on any wrapper."""
        tensors = {name: whole(value) for name, value in self._weights().items()}
        wrong = next((name for name, value in tensors.items() if not value.isfinite().all()), None)
        if wrong is not None:
            raise InputError(
                f"at step {self.step} the weights are not finite ({wrong}) and are not saved; the checkpoint before is "
                "kept; lower the learning rate"
            )
        for name, parameter in self.parameters.items():
            for key, value in self.owners[parameter].state.get(parameter, {}).items():
                tensors[f"optimiser.{name}.{key}"] = whole(torch.as_tensor(value))
        tensors |= {f"task.{name}": value for name, value in self.task.state().items()}
        if self.accelerator.is_main_process:
            tensors["generator"] = self.generator.get_state()
            counts = (self.skipped, self.bad_in_a_row, self.broken, self.average.updates)
            values: dict[str, Any] = dict(zip(COUNTS, counts, strict=True))
            if self.accelerator.scaler is not None:
                values["scaler"] = self.accelerator.scaler.state_dict()
            save_checkpoint(self.folder, self.step, tensors, values, self.config.keep)
        self._save_for_use()

    def _weights(self) -> dict[str, torch.Tensor]:
        """What trains and its average, by the names that a checkpoint has for them."""
        trained = {f"trained.{name}": parameter for name, parameter in self.parameters.items()}
        return trained | {f"average.{name}": value for name, value in self.average.values.items()}

    def _save_for_use(self) -> None:
        """The adapter, or the model, with the averaged values."""
        values = self.average.values
        if self.task.saves_frozen:
            values = values | frozen_parameters(self.accelerator.unwrap_model(self.objective))
        values = {name: whole(value) for name, value in values.items()}
        try:
            if self.accelerator.is_main_process:
                self.task.save(self.folder, values)
        except (InputError, OSError, SafetensorError) as error:
            raise CannotSave(first_line(error)) from None

    @torch.no_grad()
    def _resume(self) -> None:
        loaded = load_checkpoint(self.folder, self._weights() | {"generator": self.generator.get_state()}, COUNTS)
        if loaded is None:
            return
        tensors, values = loaded
        self.step = values["step"]
        self.skipped, self.bad_in_a_row, self.broken, self.average.updates = (values[name] for name in COUNTS)
        self.generator.set_state(tensors["generator"])
        self.task.load_state(under("task.", tensors))
        if self.accelerator.scaler is not None and "scaler" in values:
            self.accelerator.scaler.load_state_dict(values["scaler"])
        for name, value in self._weights().items():
            put(value, tensors[name])
        for name, parameter in self.parameters.items():
            if state := under(f"optimiser.{name}.", tensors):
                self.owners[parameter].state[parameter] = {
                    key: put(torch.zeros_like(parameter), value) if value.ndim else value
                    for key, value in state.items()
                }


def make_engine(config: RunConfig) -> Accelerator:
    """accelerate, as the launcher and the settings have it; what it cannot do here is refused."""
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs

    # The text stream of a last block leads to no output, so its LoRA gets no gradient.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    patience = InitProcessGroupKwargs(timeout=timedelta(hours=2))  # the others wait while the first one samples
    # Without this, several processes on a machine with no GPU would not know of each other.
    options = {"cpu": not torch.accelerator.is_available() or None, "kwargs_handlers": [unused, patience]}
    options |= {"log_with": None if config.log_with == "none" else config.log_with, "project_dir": config.output}
    try:
        accelerator = Accelerator(mixed_precision=config.mixed_precision, **options)
    except ValueError as error:
        raise InputError(str(error)) from None
    if config.mixed_precision != "no" and not accelerator.native_amp:
        raise InputError(f"mixed_precision {config.mixed_precision!r} is not supported on {accelerator.device}")
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(config.mixed_precision, "float32")
    if accelerator.device.type == "cpu" and accelerator.is_main_process and is_emulated(dtype):
        print(f"rti: warning: {emulated_warning(dtype)}", file=sys.stderr)
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.fsdp_version != 2:
        raise InputError(f"FSDP version {plugin.fsdp_version} is not supported; allowed: 2 (--fsdp_version 2)")
    if plugin is not None and plugin.mixed_precision_policy is not None:
        # Times, noise and clean images stay float32; autocast rounds where it may.
        policy = dataclasses.replace(plugin.mixed_precision_policy, cast_forward_inputs=False)
        plugin.mixed_precision_policy = policy
    return accelerator


def frozen_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """What must not change."""
    return {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
