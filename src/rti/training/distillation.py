"""Self-distillation: an adapter learns from the frozen backbone what it would have said with all of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from rti.adapter import save
from rti.backbones.base import Condition
from rti.elastic import ElasticModel
from rti.method.budgets import Budgets
from rti.sampling import GuidedVelocity
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig
from rti.training.draws import Dial
from rti.training.states import State, States
from rti.training.tasks import Task, adapter_optimisers, velocity_losses

if TYPE_CHECKING:
    from accelerate import Accelerator


class DistillationObjective(nn.Module):
    """What a step computes; the part that a distributed wrapper goes around.

    The student's clean image is to be the teacher's, and so are its features after the core, with the weight
    `features`, in units of what the teacher's core changes.
    """

    def __init__(self, model: ElasticModel, features: float):
        super().__init__()
        self.model, self.features = model, features
        # accelerate shards a model by the classes it names here.
        self._no_split_modules = [kind.__name__ for kind in model.backbone.block_types]

    def forward(self, state: State, condition: Condition, dial: Dial) -> torch.Tensor:
        """The loss of each state: (B,)."""
        x, t, estimate, _ = state
        before, after, target = self.teacher(x, t, condition)
        cut_from = estimate if self.model.reduction.uses_estimate and not dial.blind else None
        tokens = self.model.core(self.model.prelude(x, t, condition, dial.text_budget), dial.budget, cut_from)
        losses = velocity_losses(self.model.coda(tokens), target, t, self.model.backbone.flow.time_floor)
        if self.features:
            error = (tokens.image.float() - after).square().flatten(1).mean(dim=1)
            losses = losses + self.features * error / (after - before).square().mean()
        return losses

    @torch.no_grad()
    def teacher(self, x: torch.Tensor, t: torch.Tensor, condition: Condition) -> tuple[torch.Tensor, ...]:
        """The frozen backbone's image tokens entering and leaving the core, in float32, and its clean image."""
        first, last = self.model.config.core
        with self.model.dense() as frozen:
            tokens = frozen.run(frozen.embed(x, t, frozen.prepare(condition)), 0, first)
            left = frozen.run(tokens, first, last + 1)
            return tokens.image.float(), left.image.float(), frozen.head(frozen.run(left, last + 1, frozen.depth))


class Distillation(Task):
    """Read, Write and LoRA of an attached model, on trajectories of prompts or labels alone."""

    config: AdaptConfig

    def __init__(
        self,
        config: AdaptConfig,
        model: ElasticModel,
        subjects: Sequence[str | int],
        encoder: TextEncoder | None = None,
    ):
        super().__init__(config, model, encoder)
        self.asked = subjects
        self.budgets = tuple(sorted(config.budgets, reverse=True))
        self.module = DistillationObjective(model, config.features)
        self.states = States(model.backbone, encoder, subjects, config, self.lead)
        if config.compile:
            model.backbone.compile_repeated_blocks(dynamic=True)  # or each budget would compile anew

    def start(self, engine: Accelerator) -> None:
        super().start(engine)
        self.states.process, self.states.processes = engine.process_index, engine.num_processes

    @torch.no_grad()
    def lead(
        self, x: torch.Tensor, t: torch.Tensor, condition: Condition, estimate: torch.Tensor | None, own: bool
    ) -> torch.Tensor:
        """The guided clean image of the teacher, or of the student at one of its budgets."""
        flow, model = self.backbone.flow, self.model
        scale = flow.guidance_scale if self.config.guidance is None else self.config.guidance
        budget = self.config.budgets[self.states.moved % len(self.config.budgets)]
        with nullcontext(model) if own else model.dense() as leader:
            budgets = Budgets([budget]) if own else None
            guided = GuidedVelocity(leader, condition, flow, scale, flow.guidance_interval, budgets)
            guided.estimate = estimate
            return guided.clean(x, t, 0)

    def optimisers(self) -> list[torch.optim.Optimizer]:
        return adapter_optimisers(self)

    def draw_once(self, generator: torch.Generator) -> Dial:
        return Dial.draw(self.config, generator)

    def label(self, once: Dial) -> str:
        return f"R={once.budget}"

    def batch(self, step: int, numbers: range, once: Dial) -> tuple[State, Condition, Dial]:
        while not self.states.full:
            self.states.move()
        for _ in range(round(len(numbers) * self.config.renew)):
            self.states.move()
        state, dropped = self.states.draw(step, numbers)
        condition = self.states.conditions(state.subject.tolist())
        return state, condition.where(~dropped, self.backbone.unconditional(condition)), once

    def subjects(self, count: int) -> list[str] | list[int]:
        return [self.asked[number % len(self.asked)] for number in range(count)]

    def state(self) -> dict[str, torch.Tensor]:
        device = self.engine.device
        return {name: self.engine.gather(value.to(device)) for name, value in self.states.state().items()}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """A set of each process one after the other. Where there are more now than then, some share one."""
        sets = len(tensors["counts"])
        mine = self.engine.process_index % sets
        self.states.load_state({name: value.cpu().chunk(sets)[mine] for name, value in tensors.items()})

    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        save(self.model, folder / "adapter", {name.removeprefix("model."): value for name, value in values.items()})
