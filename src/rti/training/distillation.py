"""Self-distillation: an adapter learns from the frozen backbone what it would have said with all of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rti.adapter import save
from rti.elastic import ElasticModel
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig
from rti.training.draws import Dial
from rti.training.objectives import DistillationObjective
from rti.training.tasks import Task, adapter_optimisers
from rti.training.trajectories import Conditions, Lessons, Trajectories

if TYPE_CHECKING:
    from accelerate import Accelerator


GUIDED = 0.75  # share of steps in which a student that is to guide itself does


class Distillation(Task):
    """Read, Write and LoRA of an attached model, on what the teacher draws of prompts or labels alone."""

    config: AdaptConfig

    def __init__(
        self,
        config: AdaptConfig,
        model: ElasticModel,
        asked: Sequence[str | int],
        encoder: TextEncoder | None = None,
    ):
        super().__init__(config, model, encoder)
        self.budgets = tuple(sorted(config.budgets, reverse=True))
        self.module = DistillationObjective(model, config.features, balanced=True)
        self.pictures = Trajectories(model, Conditions(model, encoder, asked), config)
        if config.compile:
            model.backbone.compile_repeated_blocks(dynamic=True)  # or each budget would compile anew

    def start(self, engine: Accelerator) -> None:
        super().start(engine)
        self.pictures.process, self.pictures.processes = engine.process_index, engine.num_processes
        self.pictures.autocast = engine.autocast

    def optimisers(self) -> list[torch.optim.Optimizer]:
        return adapter_optimisers(self)

    def draw_once(self, generator: torch.Generator) -> Dial:
        dial = Dial.draw(self.config, generator)
        starts = self.model.backbone.flow.guidance_interval[0]  # a sampler does not guide before
        if self.config.one_pass is None or (dial.blind and starts > 0):
            return dial
        return dial._replace(guided=bool(torch.rand((), generator=generator) < GUIDED))

    def label(self, once: Dial) -> str:
        return f"R={once.budget}{' guided' if once.guided else ''}"

    def batch(self, step: int, numbers: range, once: Dial) -> tuple:
        so_far = step * self.config.batch // (self.config.reuse * self.engine.num_processes)
        self.pictures.draw_until(self.pictures.room + so_far, progress=self.engine.is_main_process)
        return self.examples(step, numbers, once)

    def examples(self, step: int, numbers: range, once: Dial) -> tuple[Lessons, Dial]:
        """What the module is given, of the pictures that are there."""
        return self.pictures.choose(step, numbers, once), once

    def subjects(self, count: int) -> list[str] | list[int]:
        asked = self.pictures.conditions.asked
        return [asked[number % len(asked)] for number in range(count)]

    def state(self) -> dict[str, torch.Tensor]:
        device = self.engine.device
        return {name: self.engine.gather(value.to(device)) for name, value in self.pictures.state().items()}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Pictures of each process one after the other. Where there are more now than then, some share."""
        sets = len(tensors["drawn"])
        mine = self.engine.process_index % sets
        self.pictures.load_state({name: value.cpu().chunk(sets)[mine] for name, value in tensors.items()})

    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        save(self.model, folder / "adapter", {name.removeprefix("model."): value for name, value in values.items()})
