"""The contract of a token reduction: called once, for the span of core blocks.

Training, sampling, evaluation, benchmark and probes see only this. What a method does is its own file's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from rti.backbones.base import Backbone, Tokens
from rti.errors import InputError
from rti.method.config import ReductionConfig
from rti.method.guidance import GuidanceToken
from rti.method.text_regions import TextRegions


@dataclass(frozen=True)
class Span:
    """A run of blocks. Call it to run them all, or iterate over them one by one."""

    backbone: Backbone
    start: int
    stop: int

    def __call__(self, tokens: Tokens) -> Tokens:
        return self.backbone.run(tokens, self.start, self.stop)

    def __iter__(self) -> Iterator[Span]:
        return (Span(self.backbone, block, block + 1) for block in range(self.start, self.stop))

    def __len__(self) -> int:
        return self.stop - self.start


class Reduction(nn.Module):
    """Runs the core on fewer image tokens and gives back one token per patch."""

    elastic = True  # whether the budget changes anything

    def __init__(self, config: ReductionConfig):
        super().__init__()
        self.config = config
        # Where the config asks for them: what shortens the text beside the image, and what tells the guidance scale.
        self.text: TextRegions | None = None
        self.guidance: GuidanceToken | None = None

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        """Tokens entering the core -> tokens leaving it, both with all patches."""
        raise NotImplementedError

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """The group of each patch, (B, N) int64, patches row by row."""
        raise NotImplementedError

    def linear(
        self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the image tokens that leave are linear in, (B, N, F), beside the tokens themselves, (B, N, D)."""
        raise InputError(f"this {self.config.name} reduction has no closed form; leave it out (--stage distil)")

    def correct(self, solution: torch.Tensor) -> None:
        """Add a map (F, D) of what `linear` gives to the tokens that leave."""
        raise NotImplementedError

    def weights(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor | None:
        """How much each token reads of each patch, (B, R, N), where groups are soft; None where they are not."""
        return None

    def core_blocks(self) -> list[int]:
        """The blocks of the core in the order they run; a method may run some again."""
        first, last = self.config.core
        return list(range(first, last + 1))

    def core_tokens(self, budget: int) -> list[int]:
        """How many image tokens each of `core_blocks` runs on, at a budget."""
        return [budget] * len(self.core_blocks())

    @property
    def uses_estimate(self) -> bool:
        """Whether an estimate of the clean image changes anything."""
        return False
