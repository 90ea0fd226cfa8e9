"""Token skip, after Mixture-of-Depths: every other block of the core sees only the tokens a router admits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from rti.backbones.base import Backbone, Tokens
from rti.backbones.layers import RMSNorm
from rti.config import ReductionConfig
from rti.errors import InputError
from rti.reductions.base import Reduction, Span


@dataclass(frozen=True)
class SkipConfig(ReductionConfig):
    """No budget: blocks alternate between all image tokens and the share `capacity` of them."""

    name: ClassVar[str] = "token-skip"

    capacity: float = 0.125

    def __post_init__(self):
        super().__post_init__()
        number = isinstance(self.capacity, (int, float)) and not isinstance(self.capacity, bool)
        if not number or not 0 < self.capacity <= 1:
            raise InputError(f"capacity must be a share in (0, 1], got {self.capacity!r}")


class SkipReduction(Reduction):
    """A sparse block runs on the tokens with the highest scores; the rest stay on the residual stream.

    What a block changes is multiplied by a gate of the score, which is how the router learns. The gate starts near one.
    Identity: with a capacity of one and the routers at zero, the core runs as if nothing were here.
    """

    elastic = False

    def __init__(self, config: SkipConfig, backbone: Backbone):
        super().__init__(config)
        self.patches, self.hidden_size = backbone.patches, backbone.hidden_size
        self.admitted = max(1, round(config.capacity * backbone.patches))
        sparse = (config.core[1] - config.core[0] + 1) // 2  # the first block is dense
        self.norms = nn.ModuleList(RMSNorm(backbone.hidden_size) for _ in range(sparse))
        self.routers = nn.ParameterList(torch.randn(backbone.hidden_size) * self._spread() for _ in range(sparse))

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        for number, block in enumerate(core):
            tokens = block(tokens) if number % 2 == 0 else self._sparse(number // 2, tokens, block)
        return tokens

    def _sparse(self, number: int, tokens: Tokens, block: Span) -> Tokens:
        image, phasors = tokens.image, tokens.phasors
        scores = self.norms[number](image).float() @ self.routers[number].float()
        chosen = scores.topk(self.admitted, dim=1).indices.sort(dim=1).values
        index = chosen[:, :, None]
        some = image.gather(1, index.expand(-1, -1, image.shape[-1]))
        where = phasors.expand(len(image), -1, -1).gather(1, index.expand(-1, -1, phasors.shape[-1]))
        after = block(tokens._replace(image=some, phasors=where))
        gate = 2 * scores.gather(1, chosen).sigmoid()[:, :, None]
        moved = some + (gate * (after.image - some)).to(image.dtype)
        image = image.scatter(1, index.expand(-1, -1, image.shape[-1]), moved)
        return after._replace(image=image, phasors=phasors)

    def _spread(self) -> float:
        """Scores of about a tenth: enough to choose by, little enough for gates near one."""
        return 0.1 * self.hidden_size**-0.5

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        raise InputError("token-skip has no regions: its tokens are kept or passed over, never grouped")

    def core_tokens(self, budget: int) -> list[int]:
        first, last = self.config.core
        return [self.patches if number % 2 == 0 else self.admitted for number in range(last - first + 1)]

    def flops(self, budget: int) -> float:
        return 2 * len(self.routers) * self.patches * self.hidden_size
