"""What an adapter is distilled on: a small set of states of guided trajectories, drawn for prompts or labels alone.

A few trajectories are always on their way from noise to picture, led by the teacher or by the student itself, so that
the states are those a sampler will meet. Each state that one passes takes the place of the oldest in the set. Subject,
noise, times and leader of a trajectory follow from the seed and its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

from rti.backbones.base import Backbone, Condition
from rti.flow import draw_noise, time_grid, velocity
from rti.seeds import mix
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig

STEPS = (8, 24)  # the fewest and the most steps of a trajectory
MOST, ROOM = 256, 2**29  # states, unless somebody says how many: so many, in at most so many bytes
LIVE = 8  # trajectories on their way
CANDIDATES = 48  # states that the one nearest to a drawn time is chosen from


@torch.no_grad()
def condition_on(backbone: Backbone, encoder: TextEncoder | None, subjects: Sequence[str | int]) -> Condition:
    """Prompts or labels as the backbone takes them."""
    if encoder is None:
        return backbone.condition(labels=list(subjects))
    states, mask = encoder(list(subjects), backbone.config.prompt_length)
    return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))


def _padded(value: torch.Tensor, length: int) -> torch.Tensor:
    """With zeros at the end of its first dimension."""
    return torch.cat([value, value.new_zeros(length - len(value), *value.shape[1:])])


class State(NamedTuple):
    """Where some trajectories are. `estimate` is the guided clean image of the step before, which regions come from."""

    x: torch.Tensor  # (B, C, H, W)
    t: torch.Tensor  # (B,)
    estimate: torch.Tensor  # (B, C, H, W)
    subject: torch.Tensor  # (B,) int64, its place among the subjects
    scale: torch.Tensor  # (B,) of its guidance


@dataclass
class Trajectory:
    """One on its way; `estimate` is that of the step before, if there was one."""

    number: int
    times: torch.Tensor  # (steps + 1,)
    own: bool  # whether the student leads it, not the teacher
    scale: float  # of its guidance
    budget: int  # of the student, where it leads
    x: torch.Tensor  # (1, C, H, W)
    estimate: torch.Tensor | None = None
    step: int = 0


Leader = Callable[[Trajectory, Condition], torch.Tensor]  # to the guided clean image (1, C, H, W) of its next step


class States:
    """The set, and the trajectories that renew it. Of several processes each has its own."""

    def __init__(
        self,
        backbone: Backbone,
        encoder: TextEncoder | None,
        subjects: Sequence[str | int],
        config: AdaptConfig,
        lead: Leader,
    ):
        self.backbone, self.encoder, self.subjects, self.config, self.lead = backbone, encoder, subjects, config, lead
        self.process, self.processes = 0, 1
        self.texts: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # states and mask of a prompt's words
        self.live: list[Trajectory] = []
        self.begun = self.added = self.moved = 0
        one = (backbone.channels, *backbone.image_size)
        self.size = min(MOST, ROOM // (8 * math.prod(one))) if config.states is None else config.states
        shape, numbers = (self.size, *one), torch.zeros(self.size)
        x, estimate = torch.zeros(shape), torch.zeros(shape)
        self.kept = State(x, numbers, estimate, numbers.long(), numbers.clone())  # in the host's memory

    @torch.no_grad()
    def conditions(self, subjects: Sequence[int]) -> Condition:
        """Those of some subjects. Their words are encoded once and kept, in the host's memory."""
        backbone, asked = self.backbone, [self.subjects[subject] for subject in subjects]
        if self.encoder is None:
            return condition_on(backbone, None, asked)
        length = backbone.config.prompt_length
        for prompt in asked:
            if prompt not in self.texts:
                states, mask = self.encoder([prompt], length)
                words = 1 + int(mask[0].long().cumsum(0).argmax())  # up to the last
                self.texts[prompt] = states[0, :words].cpu(), mask[0, :words].cpu()
        rows = [self.texts[prompt] for prompt in asked]
        states, mask = (torch.stack([_padded(row[part], length) for row in rows]) for part in (0, 1))
        return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))

    def begin(self, number: int) -> Trajectory:
        """A trajectory at its start."""
        backbone = self.backbone
        generator = torch.Generator().manual_seed(mix(self.config.seed, number))
        shape = (backbone.channels, *backbone.image_size)
        noise = draw_noise(shape, [generator], backbone.flow.noise_scale, backbone.device)
        length, own, guided, dial = torch.rand(4, generator=generator).tolist()
        steps = STEPS[0] + int(length * (STEPS[1] - STEPS[0] + 1))
        low, high = self.config.scales or [backbone.flow.guidance_scale] * 2
        scale = low if low == high else low * (high / low) ** guided  # evenly in its logarithm
        budget = self.config.budgets[int(dial * len(self.config.budgets))]
        return Trajectory(number, time_grid(steps), own < self.config.own, scale, budget, noise)

    @property
    def full(self) -> bool:
        return self.added >= self.size

    def add(self, state: State) -> None:
        """Put states in the place of the oldest."""
        for row in zip(*state, strict=True):
            for kept, value in zip(self.kept, row, strict=True):
                kept[self.added % self.size] = value
            self.added += 1

    def move(self) -> None:
        """One trajectory goes on by one step; the state it leaves joins the set. What ends begins anew."""
        place = self.moved % LIVE
        self.moved += 1
        if place == len(self.live):  # at first they begin one after the other, each at a time of its own
            self.live.append(self.begin(self._next()))
        one = self.live[place]
        subject, t = one.number % len(self.subjects), one.times[one.step]
        estimate = self.lead(one, self.conditions([subject]))
        before = estimate if one.estimate is None else one.estimate
        self.add(State(one.x, t[None], before, torch.tensor([subject]), torch.tensor([one.scale])))
        one.x = one.x + (one.times[one.step + 1] - t) * velocity(estimate, one.x, t, self.backbone.flow.time_floor)
        one.step, one.estimate = one.step + 1, estimate
        if one.step == len(one.times) - 1:
            self.live[place] = self.begin(self._next())

    def fill(self, progress: bool = False) -> None:
        """Go on until the set is full; once it is, it stays so."""
        if not self.full:
            with tqdm(total=self.size, initial=self.added, desc="first states", disable=not progress) as bar:
                while not self.full:
                    self.move()
                    bar.update()

    def _next(self) -> int:
        """The number of the next trajectory; no two processes share one."""
        self.begun += 1
        return (self.begun - 1) * self.processes + self.process

    def draw(self, step: int, numbers: Sequence[int]) -> State:
        """States for some places of a step's batch, by times as training draws them."""
        config, device, picks = self.config, self.backbone.device, []
        for number in numbers:
            generator = torch.Generator().manual_seed(mix(config.seed + 1, step, number))
            wanted = torch.sigmoid(config.time_mean + config.time_deviation * torch.randn((), generator=generator))
            some = torch.randint(min(self.added, self.size), (CANDIDATES,), generator=generator)
            picks.append(some[(self.kept.t[some] - wanted).abs().argmin()])
        index = torch.stack(picks)
        return State(*(kept[index].to(device) for kept in self.kept))

    def state(self) -> dict[str, torch.Tensor]:
        """All there is to know; of as many live trajectories as there can be, so that it is of one shape everywhere."""
        x = torch.zeros(LIVE, *self.kept.x.shape[1:])
        estimate, numbers = x.clone(), torch.full((LIVE, 2), -1)
        for place, one in enumerate(self.live):
            numbers[place], x[place] = torch.tensor([one.number, one.step]), one.x[0]
            if one.estimate is not None:
                estimate[place] = one.estimate[0]
        counts = torch.tensor([[self.begun, self.added, self.moved]])
        live = {"live.numbers": numbers, "live.x": x, "live.estimate": estimate, "counts": counts}
        return live | {f"kept.{name}": value for name, value in self.kept._asdict().items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from it."""
        self.begun, self.added, self.moved = state["counts"][0].tolist()
        self.kept = State(*(state[f"kept.{name}"].clone() for name in State._fields))
        self.live = []
        for (number, step), x, estimate in zip(
            state["live.numbers"].tolist(), state["live.x"], state["live.estimate"], strict=True
        ):
            if number >= 0:
                one = self.begin(number)
                one.step, one.x = step, x[None].to(one.x)
                one.estimate = estimate[None].to(one.x) if step else None
                self.live.append(one)
