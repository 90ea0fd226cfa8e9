"""Latent array, after Perceiver-IO and RIN: learned latents read the patches and write them back by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from rti.backbones.base import Backbone, Tokens
from rti.backbones.layers import RMSNorm
from rti.method.config import ReductionConfig
from rti.method.order import hilbert_order
from rti.method.reductions.base import Reduction, Span

Placed = tuple[torch.Tensor, torch.Tensor]  # tokens (B, L, D) and their places (1 or B, L, P)
SHARPNESS = (32.0, 96.0)  # of the first and the last head at the start: some look around widely, some closely


@dataclass(frozen=True)
class LatentConfig(ReductionConfig):
    """No partition, and no position in the core: R latents, the first R of one learned array for a budget of R."""

    name: ClassVar[str] = "latent-array"


class CrossAttention(nn.Module):
    """One sequence asks another, by content and by place: (B, Q, D), (B, K, D) -> (B, Q, D).

    As in Perceiver-IO, places are Fourier features beside the content, here the rotary phasors of the patches:
    score = q . k / sqrt(head_dim) + sharpness of the head * mean over the frequencies of cos(distance).
    """

    def __init__(self, hidden_size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_query, self.norm_source = RMSNorm(hidden_size), RMSNorm(hidden_size)
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.log_sharpness = nn.Parameter(torch.linspace(*SHARPNESS, heads).log())
        with torch.no_grad():
            for matrix in (self.value.weight, self.out.weight):
                nn.init.eye_(matrix)

    def forward(self, asking: Placed, source: Placed, carried: torch.Tensor | None = None) -> torch.Tensor:
        """What those asking get: of `carried` (B, K, D), or of the source itself."""
        q, k = self._queries_and_keys(asking, source)
        v = self._split(self.value(source[0] if carried is None else carried))
        return self.out(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))

    def weights(self, asking: Placed, source: Placed) -> torch.Tensor:
        """How much each one asking looks at each of the source, mean over the heads: (B, Q, K), rows sum to one."""
        q, k = self._queries_and_keys(asking, source)
        return (q @ k.transpose(-1, -2)).softmax(dim=-1).mean(dim=1)

    def _queries_and_keys(self, asking: Placed, source: Placed) -> tuple[torch.Tensor, torch.Tensor]:
        (asking, asking_places), (source, source_places) = asking, source
        q, k = self._split(self.query(self.norm_query(asking))), self._split(self.key(self.norm_source(source)))
        sharpness = 2 / asking_places.shape[-1] * self.log_sharpness.exp()[:, None, None]
        by_place = (sharpness * asking_places[:, None]).to(q.dtype)
        q = torch.cat([q * q.shape[-1] ** -0.5, by_place.expand(len(q), -1, -1, -1)], dim=-1)
        places = source_places[:, None].to(k.dtype)
        return q, torch.cat([k, places.expand(len(k), self.heads, -1, -1)], dim=-1)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class LatentReduction(Reduction):
    """The core runs on latents that carry no rotary position: position is theirs only to read and write by.

    It starts where its kind can. The latents are spread over the frame; each is a mean of the patches around its place,
    in the range that the core knows, and each patch moves as the latents around it do. Where they look, what they
    carry and what they give back is learned, and nothing keeps a latent from reading the whole frame.
    """

    def __init__(self, config: LatentConfig, backbone: Backbone):
        super().__init__(config)
        hidden, heads = backbone.hidden_size, backbone.config.num_heads
        self.latents = nn.Parameter(0.02 * torch.randn(backbone.patches, hidden))
        table = backbone.patch_phasors()
        self.places = nn.Parameter(table[0, spread_out(*backbone.grid).to(table.device)].clone())
        self.read, self.write = CrossAttention(hidden, heads), CrossAttention(hidden, heads)
        none = torch.cat([torch.ones(backbone.config.head_dim // 2), torch.zeros(backbone.config.head_dim // 2)])
        self.register_buffer("no_position", none[None, None], persistent=False)

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        own, patches = self._latents(tokens, budget), (tokens.image, tokens.phasors)
        latents = own[0] + self.read(own, patches)
        nowhere = self.no_position.float().expand(len(latents), budget, -1)
        after = core(tokens._replace(image=latents, phasors=nowhere))
        image = tokens.image + self.write(patches, (after.image, own[1]), after.image - latents)
        return after._replace(image=image, phasors=tokens.phasors)

    def weights(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """How much each latent reads of each patch: (B, R, N), rows sum to one."""
        return self.read.weights(self._latents(tokens, budget), (tokens.image, tokens.phasors))

    def _latents(self, tokens: Tokens, budget: int) -> Placed:
        own = self.latents[:budget].to(tokens.image.dtype).expand(len(tokens.image), -1, -1)
        return own, self.places[None, :budget]

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """The latent that reads most of each patch."""
        return self.weights(tokens, budget).argmax(dim=1)


def spread_out(height: int, width: int) -> torch.Tensor:
    """All patches, (N,) int64, such that the first R lie spread over the grid for any R: at the start of the Hilbert
    curve, its middle, its quarters, its eighths, ..."""
    patches = height * width
    bits = (patches - 1).bit_length()
    places = [int(f"{number:0{bits}b}"[::-1], 2) * patches >> bits for number in range(2**bits)]
    return torch.from_numpy(hilbert_order(height, width)[list(dict.fromkeys(places))])
