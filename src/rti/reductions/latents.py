"""Latent array, after Perceiver-IO and RIN: learned latents read the patches and write them back by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from rti.backbones.base import Backbone, Tokens
from rti.backbones.layers import RMSNorm
from rti.config import ReductionConfig
from rti.reductions.base import Reduction, Span

SHARPNESS = 3.0  # of queries and keys at the start: a latent then reads a few patches, not all of them alike
OWN_SHARE = 0.7  # of a latent's length, beside what it read


@dataclass(frozen=True)
class LatentConfig(ReductionConfig):
    """No partition and no position: R latents, of which the first R of one learned array serve a budget of R."""

    name: ClassVar[str] = "latent-array"


class CrossAttention(nn.Module):
    """One sequence asks another: (B, Q, D), (B, K, D) -> (B, Q, D)."""

    def __init__(self, hidden_size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_query, self.norm_source = RMSNorm(hidden_size), RMSNorm(hidden_size)
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, asking: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        q, k = self._queries_and_keys(asking, source)
        v = self._split(self.value(source))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(mixed)

    def weights(self, asking: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """How much each one asking looks at each of the source, mean over the heads: (B, Q, K), rows sum to one."""
        q, k = self._queries_and_keys(asking, source)
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(dim=-1).mean(dim=1)

    def _queries_and_keys(self, asking: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._split(self.query(self.norm_query(asking))), self._split(self.key(self.norm_source(source)))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class LatentReduction(Reduction):
    """The core runs on latents that carry no rotary position.

    It starts where its kind can. A latent asks for patches that resemble it and is their weighted mean, in the range
    the core knows, plus a direction of its own, by which it can be told from the others. The patches ask back for the
    latents that resemble them; what is written starts at nothing, so at first the patches pass the core by.
    """

    def __init__(self, config: LatentConfig, backbone: Backbone):
        super().__init__(config)
        hidden, heads = backbone.hidden_size, backbone.config.num_heads
        self.patches, self.hidden_size = backbone.patches, hidden
        self.latents = nn.Parameter(torch.randn(backbone.patches, hidden))
        self.read, self.write = CrossAttention(hidden, heads), CrossAttention(hidden, heads)
        with torch.no_grad():
            for one in (self.read, self.write):
                for matrix in (one.query.weight, one.key.weight):
                    matrix.copy_(SHARPNESS * torch.eye(hidden))  # alike, so that like asks for like
                for matrix in (one.value.weight, one.out.weight):
                    nn.init.eye_(matrix)
            self.write.out.weight.zero_()
        none = torch.cat([torch.ones(backbone.config.head_dim // 2), torch.zeros(backbone.config.head_dim // 2)])
        self.register_buffer("no_position", none[None, None], persistent=False)

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        dtype, batch = tokens.image.dtype, len(tokens.image)
        own = self.latents[:budget].to(dtype).expand(batch, -1, -1)
        read = self.read(own, tokens.image)
        latents = read + OWN_SHARE * read.square().mean(dim=-1, keepdim=True).sqrt() * own
        nowhere = self.no_position.float().expand(batch, budget, -1)
        after = core(tokens._replace(image=latents, phasors=nowhere))
        image = tokens.image + self.write(tokens.image, after.image)
        return after._replace(image=image, phasors=tokens.phasors)

    def weights(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """How much each latent reads of each patch: (B, R, N), rows sum to one."""
        own = self.latents[:budget].to(tokens.image.dtype).expand(len(tokens.image), -1, -1)
        return self.read.weights(own, tokens.image)

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """The latent that reads most of each patch."""
        return self.weights(tokens, budget).argmax(dim=1)

    def core_tokens(self, budget: int) -> list[int]:
        first, last = self.config.core
        return [budget] * (last - first + 1)

    def flops(self, budget: int) -> float:
        patches, hidden = self.patches, self.hidden_size
        projections = 2 * (2 * budget + 2 * patches) * hidden * hidden
        pairs = 2 * 2 * budget * patches * hidden
        return 2 * (projections + pairs)
