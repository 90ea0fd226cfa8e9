"""Self-distillation: an adapter learns from the frozen backbone what it would have said with all of its tokens."""

from __future__ import annotations

import math
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
from rti.sampling import GuidedVelocity, guidance_applies, guide
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig
from rti.training.draws import Dial
from rti.training.states import State, States, Trajectory
from rti.training.tasks import Task, adapter_optimisers, velocity_losses

if TYPE_CHECKING:
    from accelerate import Accelerator


GUIDED = 0.75  # share of steps in which a student that is to guide itself does


class DistillationObjective(nn.Module):
    """What a step computes; the part that a distributed wrapper goes around.

    The student's clean images are to be the teacher's, of both branches of guidance and of what guidance makes of them:
    an error that both branches share is not amplified in sampling, one that they do not is. Where a step is guided, one
    pass is to give the guided image itself. Its features after the core are to be the teacher's too, with the weight
    `features`, in units of what the teacher's core changes.
    """

    def __init__(self, model: ElasticModel, features: float):
        super().__init__()
        self.model, self.features, self.flow = model, features, model.backbone.flow
        # accelerate shards a model by the classes it names here.
        self._no_split_modules = [kind.__name__ for kind in model.backbone.block_types]

    def forward(self, state: State, condition: Condition, dial: Dial) -> torch.Tensor:
        """The loss of each state: (B,)."""
        model, t, floor = self.model, state.t, self.flow.time_floor
        scale = torch.where(guidance_applies(t, t.new_tensor(self.flow.guidance_interval)), state.scale, 1.0)
        both = Condition.cat([condition, model.unconditional(condition)])
        teacher = self.teacher(state.x.repeat(2, 1, 1, 1), t.repeat(2), both)
        cut_from = state.estimate if model.reduction.uses_estimate and not dial.blind else None
        if dial.guided:
            before, after, target = (guide(value, _along(scale, value)) for value in teacher)
            prepared = model.prepare(condition, dial.text_budget, scale)
            tokens = model.core(model.prelude(state.x, t, prepared), dial.budget, cut_from)
            losses = velocity_losses(model.coda(tokens), target, t, floor)
            return losses + self.features * _feature_error(tokens.image, before, after)
        before, after, target = teacher
        prelude = model.prelude(state.x.repeat(2, 1, 1, 1), t.repeat(2), both, dial.text_budget)
        tokens = model.core(prelude, dial.budget, cut_from)
        clean = model.coda(tokens)
        alone = velocity_losses(clean, target, t.repeat(2), floor)
        alone = (alone / 2 + self.features * _feature_error(tokens.image, before, after)).unflatten(0, (2, -1))
        together = velocity_losses(*(guide(value, _along(scale, value)) for value in (clean, target)), t, floor)
        return alone.mean(dim=0) + together / (scale.square() + (scale - 1).square())  # as independent errors add up

    @torch.no_grad()
    def teacher(self, x: torch.Tensor, t: torch.Tensor, condition: Condition) -> tuple[torch.Tensor, ...]:
        """The frozen backbone's image tokens entering and leaving the core, in float32, and its clean image."""
        first, last = self.model.config.core
        with self.model.dense() as frozen:
            tokens = frozen.run(frozen.embed(x, t, frozen.prepare(condition)), 0, first)
            left = frozen.run(tokens, first, last + 1)
            return tokens.image.float(), left.image.float(), frozen.head(frozen.run(left, last + 1, frozen.depth))


def _along(scale: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Scales (B,) as they multiply a batch of any shape."""
    return scale.view(-1, *[1] * (value.ndim - 1))


def _feature_error(image: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """How far tokens are from the teacher's, over how far its core moves them: (B, N, D) each -> (B,)."""
    return (image.float() - after).square().flatten(1).mean(dim=1) / (after - before).square().mean()


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
    def lead(self, one: Trajectory, condition: Condition) -> torch.Tensor:
        """The guided clean image of the teacher, or of the student at one of its budgets."""
        flow, model = self.backbone.flow, self.model
        with nullcontext(model) if one.own else model.dense() as leader:
            budgets = Budgets([one.budget]) if one.own else None
            guided = GuidedVelocity(leader, condition, flow, one.scale, flow.guidance_interval, budgets)
            guided.estimate = one.estimate
            return guided.clean(one.x, one.times[one.step], 0)

    def optimisers(self) -> list[torch.optim.Optimizer]:
        return adapter_optimisers(self)

    def draw_once(self, generator: torch.Generator) -> Dial:
        dial = Dial.draw(self.config, generator)
        if self.config.one_pass is None:
            return dial
        return dial._replace(guided=bool(torch.rand((), generator=generator) < GUIDED))

    def label(self, once: Dial) -> str:
        return f"R={once.budget}{' guided' if once.guided else ''}"

    def batch(self, step: int, numbers: range, once: Dial) -> tuple[State, Condition, Dial]:
        a_step = len(numbers) * self.config.renew  # on average
        with self.engine.autocast():
            self.states.fill(progress=self.engine.is_main_process)
            for _ in range(math.floor((step + 1) * a_step) - math.floor(step * a_step)):
                self.states.move()
        if not once.guided:  # each runs in both branches
            numbers = numbers[: -(-len(numbers) // 2)]
        state = self.states.draw(step, numbers)
        return state, self.states.conditions(state.subject.tolist()), once

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
