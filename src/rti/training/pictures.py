"""What an adapter is distilled on: pictures that the teacher draws, of prompts or labels alone.

A picture costs a whole trajectory; its states at other times and with other noise cost nothing. So the pictures are
kept, each serves for many states, and new ones join all the time. Subject and noise of a picture follow from the seed
and its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tqdm.auto import tqdm

from rti.backbones.base import Condition
from rti.elastic import ElasticModel
from rti.flow import draw_noise, picture_generator
from rti.images import from_bytes, to_bytes
from rti.sampling import sample
from rti.seeds import mix
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig

STEPS = 12  # of a trajectory
AT_ONCE = 8  # of them
FIRST = 32  # pictures before the first step
ROOM = 2**28  # bytes of pictures that are kept


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
                states, mask = self.encoder([prompt], length)
                words = 1 + int(mask[0].long().cumsum(0).argmax())
                self.texts[prompt] = states[0, :words].cpu(), mask[0, :words].cpu()
        rows = [self.texts[prompt] for prompt in asked]
        states, mask = (torch.stack([_padded(row[part], length) for row in rows]) for part in (0, 1))
        return backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))


def _padded(value: torch.Tensor, length: int) -> torch.Tensor:
    """With zeros at the end of its first dimension."""
    return torch.cat([value, value.new_zeros(length - len(value), *value.shape[1:])])


class Pictures:
    """The pictures drawn so far, the newest of them kept. Of several processes each draws its own."""

    def __init__(self, model: ElasticModel, conditions: Conditions, config: AdaptConfig):
        self.model, self.conditions, self.config = model, conditions, config
        self.process, self.processes = 0, 1
        backbone = model.backbone
        self.shape = (backbone.channels, *backbone.image_size)
        self.room = max(AT_ONCE, ROOM // math.prod(self.shape))
        self.drawn = 0
        self.images = torch.zeros(0, *self.shape, dtype=torch.uint8)  # in the host's memory
        self.places, self.scales = torch.zeros(0, dtype=torch.int64), torch.zeros(0)  # of subjects, of guidance

    @torch.no_grad()
    def draw_until(self, count: int, progress: bool = False) -> None:
        """Draw more, until there have been so many."""
        with tqdm(total=count, initial=self.drawn, desc="pictures", disable=not progress or self.drawn > 0) as bar:
            while self.drawn < count:
                self._draw()
                bar.update(AT_ONCE)

    def _draw(self) -> None:
        backbone, first = self.model.backbone, self.drawn
        numbers = [(first + index) * self.processes + self.process for index in range(AT_ONCE)]
        places = [number % len(self.conditions.asked) for number in numbers]
        low, high = self.config.scales or [backbone.flow.guidance_scale] * 2
        share = torch.rand((), generator=torch.Generator().manual_seed(mix(self.config.seed, numbers[0])))
        scale = low if low == high else low * (high / low) ** float(share)  # evenly in its logarithm
        generators = [picture_generator(self.config.seed + 1, number) for number in numbers]
        noise = draw_noise(self.shape, generators, backbone.flow.noise_scale, backbone.device)
        with self.model.dense() as frozen:
            condition = self.conditions.of(places)
            images = sample(frozen, noise, condition, steps=STEPS, guidance_scale=scale, solver="euler")
        scales = torch.full((AT_ONCE,), scale)
        news = (to_bytes(images.cpu()), torch.tensor(places), scales)
        self.images, self.places, self.scales = (
            torch.cat([old, new])[-self.room :]
            for old, new in zip((self.images, self.places, self.scales), news, strict=True)
        )
        self.drawn += AT_ONCE

    def choose(self, step: int, numbers: Sequence[int]) -> tuple[torch.Tensor, Condition, torch.Tensor]:
        """Images, conditions and scales for some places of a step's batch."""
        device = self.model.backbone.device
        seeds = [mix(self.config.seed + 2, step, number) for number in numbers]
        index = torch.tensor([seed % len(self.images) for seed in seeds])
        images = from_bytes(self.images[index]).to(device)
        return images, self.conditions.of(self.places[index].tolist()), self.scales[index].to(device)

    def state(self) -> dict[str, torch.Tensor]:
        """All there is to know."""
        return {
            "images": self.images,
            "places": self.places,
            "scales": self.scales,
            "drawn": torch.tensor([self.drawn]),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from it."""
        self.images, self.places, self.scales = (state[name] for name in ("images", "places", "scales"))
        self.drawn = int(state["drawn"])
