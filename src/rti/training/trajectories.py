"""What an adapter is distilled on: states of guided trajectories, and what the teacher says there.

Half of the pictures go where the frozen backbone leads them, half where the student does, which will meet its own
states when it samples. The times are quantiles of the training's distribution. A state serves for several examples;
new pictures join all the time. Subject, noise and times of a picture follow from the seed and its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

from rti.backbones.base import Condition
from rti.elastic import ElasticModel
from rti.flow import draw_noise, picture_generator, velocity
from rti.sampling import guidance_applies, guide
from rti.seeds import mix
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig
from rti.training.draws import Dial

STEPS = 12  # of a trajectory
AT_ONCE = 8  # of them
FIRST = 24  # pictures before the first step, of which so many are kept
ROOM = 2**30  # bytes that they may take
ALONE = slice(1, None, 2)  # of those at once, who go where the student leads them
STATE = ("x", "estimate", "times", "places", "scales")  # what a checkpoint keeps


class Conditions:
    """Prompts or labels, as the backbone takes them. Words are encoded once and kept, in the host's memory."""

    def __init__(self, model: ElasticModel, encoder: TextEncoder | None, asked: Sequence[str | int]):
        self.backbone, self.encoder, self.asked = model.backbone, encoder, asked
        self.texts: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # states and mask, up to the last word

    @torch.no_grad()
    def of(self, places: Sequence[int]) -> Condition:
        """Of those at some places."""
        backbone, asked = self.backbone, [self.asked[place] for place in places]
        if self.encoder is None:
            return backbone.condition(labels=asked)
        length = backbone.config.prompt_length
        for prompt in asked:
            if prompt not in self.texts:
                with torch.autocast(backbone.device.type, enabled=False):  # as a pipeline encodes it
                    states, mask = self.encoder([prompt], length)
                words = 1 + int(mask[0].long().cumsum(0).argmax())
                self.texts[prompt] = states[0, :words].cpu(), mask[0, :words].cpu()
        rows = [self.texts[prompt] for prompt in asked]
        states, mask = (torch.stack([_padded(row[part], length) for row in rows]) for part in (0, 1))
        return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))


def _padded(value: torch.Tensor, length: int) -> torch.Tensor:
    """With zeros at the end of its first dimension."""
    return torch.cat([value, value.new_zeros(length - len(value), *value.shape[1:])])


class Lessons(NamedTuple):
    """What the student is shown, and what the teacher says there. The first dimension is that of the examples."""

    x: torch.Tensor  # (B, C, H, W) the state
    t: torch.Tensor  # (B,)
    estimate: torch.Tensor  # (B, C, H, W) the guided clean image of the step before, which the first one has not
    condition: Condition
    scale: torch.Tensor  # (B,) of guidance; 1 where it does not apply
    clean: torch.Tensor  # (B, C, H, W) the teacher's clean image
    after: torch.Tensor  # (B, N, D) its image tokens after the core
    change: torch.Tensor  # () mean square of what its core changes, of all pictures that are kept


class Trajectories:
    """The newest pictures on their way, in the host's memory. Of several processes each draws its own.

    Images are kept in float16 and tokens in bfloat16; the teacher sees each state as it is kept.
    """

    def __init__(self, model: ElasticModel, conditions: Conditions, config: AdaptConfig, followed: bool = True):
        """`followed`: half of them go where the student leads."""
        self.model, self.conditions, self.config, self.followed = model, conditions, config, followed
        self.process, self.processes, self.autocast = 0, 1, nullcontext
        backbone = model.backbone
        self.shape = (backbone.channels, *backbone.image_size)
        size = 2 * STEPS * (4 * math.prod(self.shape) + 2 * backbone.patches * backbone.hidden_size)
        self.room = min(FIRST, max(1, ROOM // size // AT_ONCE) * AT_ONCE)
        self.drawn = 0
        self.kept: dict[str, torch.Tensor] = {}  # pictures first, then their steps

    def draw_until(self, count: int, progress: bool = False) -> None:
        """Draw more, until there have been so many."""
        with tqdm(total=count, initial=self.drawn, desc="pictures", disable=not progress or self.drawn > 0) as bar:
            while self.drawn < count:
                for name, new in self._draw().items():
                    old = self.kept.pop(name, new[:0])
                    self.kept[name] = torch.cat([old[max(0, len(old) + AT_ONCE - self.room) :], new])
                self.drawn += AT_ONCE
                bar.update(AT_ONCE)

    @torch.no_grad()
    def _draw(self) -> dict[str, torch.Tensor]:
        """The next pictures on their way, with all that is kept of them."""
        model, flow, config = self.model, self.model.backbone.flow, self.config
        numbers = [(self.drawn + index) * self.processes + self.process for index in range(AT_ONCE)]
        once = torch.Generator().manual_seed(mix(config.seed, numbers[0]))
        low, high = config.scales or [flow.guidance_scale] * 2
        scales = low * (high / low) ** torch.rand(AT_ONCE, generator=once)  # evenly in their logarithm
        asked = len(self.conditions.asked)  # all in turn, and each time one is led by another
        places = torch.tensor([(number + number // asked) % asked for number in numbers])
        times = torch.stack([self._times(number) for number in numbers])
        condition, taught = self.conditions.of(places.tolist()), self._taught(places)
        generators = [picture_generator(config.seed + 1, number) for number in numbers]
        x, estimate = draw_noise(self.shape, generators, flow.noise_scale, model.backbone.device), None
        steps: list[dict[str, torch.Tensor]] = []
        for place in range(STEPS):
            x, t = x.half().float(), times[:, place].to(x.device)
            scale = self._scales(t, scales)
            answer = self._ask(x, t, taught)
            led = _guided(answer["clean"].float(), scale)
            seen = None if estimate is None else estimate[ALONE]
            step = answer | {"x": x.half(), "estimate": (led if estimate is None else estimate).half()}
            steps.append({name: value.cpu() for name, value in step.items()})
            estimate = led.clone()
            if self.followed:
                budget = config.budgets[int(torch.randint(len(config.budgets), (), generator=once))]
                estimate[ALONE] = self._student(x[ALONE], t[ALONE], condition[ALONE], scale[ALONE], budget, seen)
            forward = times[:, place + 1].to(x.device) - t
            x = x + forward.view(-1, 1, 1, 1) * velocity(estimate, x, t, flow.time_floor)
        news = {name: torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}
        return news | {"times": times[:, :-1], "places": places, "scales": scales}

    def _times(self, number: int) -> torch.Tensor:
        """From 0 to 1: quantiles of the times of training, the inner ones shifted together by chance."""
        shift = torch.rand((), generator=torch.Generator().manual_seed(mix(self.config.seed + 3, number)))
        inner = torch.special.ndtri(((torch.arange(STEPS - 1) + shift) / (STEPS - 1)).clamp(1e-4, 1 - 1e-4))
        times = torch.sigmoid(self.config.time_mean + self.config.time_deviation * inner)
        return torch.cat([times.new_zeros(1), times, times.new_ones(1)])

    def _scales(self, t: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The guidance scale at each time, 1 where guidance does not apply."""
        interval = t.new_tensor(self.model.backbone.flow.guidance_interval)
        return torch.where(guidance_applies(t, interval), scales.to(t.device), 1.0)

    def _taught(self, places: torch.Tensor) -> Condition:
        """Both branches' conditions, as the teacher takes them."""
        with self.model.dense() as frozen, self.autocast():
            condition = frozen.prepare(self.conditions.of(places.tolist()))
            return Condition.cat([condition, frozen.unconditional(condition)])

    def _ask(self, x: torch.Tensor, t: torch.Tensor, taught: Condition) -> dict[str, torch.Tensor]:
        """What the teacher says at some states, in both branches: (B, 2, ...) each."""
        first, last = self.model.config.core
        with self.model.dense() as frozen, self.autocast():
            tokens = frozen.run(frozen.embed(x.repeat(2, 1, 1, 1), t.repeat(2), taught), 0, first)
            left = frozen.run(tokens, first, last + 1)
            clean = frozen.head(frozen.run(left, last + 1, frozen.depth))
        change = (left.image.float() - tokens.image.float()).square().flatten(1).mean(dim=1)
        answer = {"clean": clean.half(), "after": left.image.bfloat16(), "change": change}
        return {name: value.unflatten(0, (2, -1)).transpose(0, 1) for name, value in answer.items()}

    def _student(
        self,
        x: torch.Tensor,
        t: torch.Tensor,
        condition: Condition,
        scale: torch.Tensor,
        budget: int,
        estimate: torch.Tensor | None,
    ) -> torch.Tensor:
        """The student's guided clean image, by one pass if it learns to guide itself."""
        model = self.model
        with self.autocast():
            if self.config.one_pass is not None:
                clean = model(x, t, model.prepare(condition, guidance=scale), budget, estimate)
                if (alone := scale == 1).any():  # where guidance does not apply, a sampler gives no scale
                    plain = model(x, t, model.prepare(condition), budget, estimate)
                    clean = torch.where(alone.view(-1, 1, 1, 1), plain, clean)
                return clean
            both = Condition.cat([condition, model.unconditional(condition)])
            clean = model(x.repeat(2, 1, 1, 1), t.repeat(2), both, budget, estimate)
        return _guided(clean.unflatten(0, (2, -1)).transpose(0, 1), scale)

    def choose(self, step: int, numbers: Sequence[int], dial: Dial) -> Lessons:
        """For some places of a step's batch: of one branch, or `guided`, what guidance makes of both.

        A sampler has no estimate at its first step, and only there; so has a `blind` lesson.
        """
        kept = self.kept
        draws = [torch.Generator().manual_seed(mix(self.config.seed + 2, step, number)) for number in numbers]
        picture = torch.stack([torch.randint(len(kept["x"]), (), generator=draw) for draw in draws])
        allowed = torch.arange(STEPS).expand(len(draws), -1).eq(0) == dial.blind
        if dial.guided:
            applies = self._scales(kept["times"][picture], kept["scales"][picture][:, None]) != 1
            allowed = torch.where((allowed & applies).any(dim=1, keepdim=True), allowed & applies, allowed)
        chances = torch.stack([torch.rand(STEPS, generator=draw) for draw in draws])
        place = torch.where(allowed, chances, -1.0).argmax(dim=1)
        dropped = torch.stack([torch.rand((), generator=draw) for draw in draws]) < self.config.drop
        return self.lessons(picture, place, dial.guided, dropped)

    def lessons(
        self, picture: torch.Tensor, place: torch.Tensor, guided: bool, dropped: torch.Tensor | bool = False
    ) -> Lessons:
        """Of some pictures at some of their steps; `dropped` ones in the branch without a condition."""
        device, kept = self.model.backbone.device, self.kept
        x, estimate, t, clean, after = (
            kept[name][picture, place].float().to(device) for name in ("x", "estimate", "times", "clean", "after")
        )
        change = kept["change"].mean().to(device)
        condition = self.conditions.of(kept["places"][picture].tolist())
        scale = self._scales(t, kept["scales"][picture])
        if guided:
            return Lessons(x, t, estimate, condition, scale, _guided(clean, scale), _guided(after, scale), change)
        dropped = torch.as_tensor(dropped, device=device) & (scale != 1)
        condition = condition.where(~dropped, self.model.unconditional(condition))
        rows, branch = torch.arange(len(t), device=device), dropped.long()
        return Lessons(x, t, estimate, condition, scale, clean[rows, branch], after[rows, branch], change)

    def state(self) -> dict[str, torch.Tensor]:
        """What the rest follows from."""
        return {name: self.kept[name] for name in STATE if name in self.kept} | {"drawn": torch.tensor([self.drawn])}

    @torch.no_grad()
    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from it; the teacher says again what it said."""
        self.drawn = int(state["drawn"])
        self.kept = {name: state[name] for name in STATE if name in state}
        groups = []
        for first in range(0, len(self.kept.get("places", ())), AT_ONCE):
            some = {name: value[first : first + AT_ONCE] for name, value in self.kept.items()}
            taught, device = self._taught(some["places"]), self.model.backbone.device
            answers = [
                self._ask(some["x"][:, place].float().to(device), some["times"][:, place].to(device), taught)
                for place in range(STEPS)
            ]
            groups.append({name: torch.stack([one[name].cpu() for one in answers], dim=1) for name in answers[0]})
        for name in groups[0] if groups else ():
            self.kept[name] = torch.cat([group[name] for group in groups])


def _guided(both: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(B, 2, ...) branches and scales (B,) -> (B, ...)."""
    return guide(both.transpose(0, 1).flatten(0, 1), scale.view(-1, *[1] * (both.ndim - 2)))
