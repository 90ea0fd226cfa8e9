"""Write: give every patch its own update from its region's change (paper, Eq. 4)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Write(nn.Module):
    """A linear map g of [the patch before the core | the change of its region], added to the patch.

    With `patches`, how many there are, the map depends on the region's size s (ours, beyond the paper):
    g + log_N(s) h, so a patch that is alone needs no correction and one of a large region may have a large one.
    Identity: with fresh parameters g = [0 | I] and h = 0, so each patch moves as its region does.
    """

    def __init__(self, hidden_size: int, patches: int | None = None):
        super().__init__()
        self.patches = patches
        self.g = nn.Linear(2 * hidden_size, hidden_size)
        self.h = None
        if patches is not None:
            self.h = nn.Linear(2 * hidden_size, hidden_size)
            nn.init.zeros_(self.h.weight)
            nn.init.zeros_(self.h.bias)
        with torch.no_grad():
            self.g.weight.zero_()
            self.g.weight[:, hidden_size:].fill_diagonal_(1.0)
            self.g.bias.zero_()

    def forward(self, patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """Scatter the change of each region to its patches (Eq. 4). (B, N, D), (B, R, D), (B, N) -> (B, N, D)."""
        own, shared = _halves(self.g, patches, change, regions)
        written = patches + own + shared
        if self.h is None:
            return written
        own, shared = _halves(self.h, patches, change, regions)
        return written + self.levels(regions, change.shape[1]).to(patches.dtype)[..., None] * (own + shared)

    def features(self, patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """What the update is linear in: (B, N, D), (B, R, D), (B, N) -> (B, N, F)."""
        index = regions[:, :, None].expand(-1, -1, change.shape[-1])
        features = torch.cat([patches, change.gather(1, index), torch.ones_like(patches[..., :1])], dim=-1)
        if self.h is None:
            return features
        return torch.cat([features, self.levels(regions, change.shape[1])[..., None] * features], dim=-1)

    @torch.no_grad()
    def correct(self, solution: torch.Tensor) -> None:
        """Add a map of `features` to the one there is: (F, D)."""
        maps = [self.g] if self.h is None else [self.g, self.h]
        for linear, rows in zip(maps, solution.split(self.g.in_features + 1), strict=True):
            linear.weight += rows[:-1].T.to(linear.weight)
            linear.bias += rows[-1].to(linear.bias)

    def levels(self, regions: torch.Tensor, budget: int) -> torch.Tensor:
        """How large each patch's region is, from 0 for one patch to 1 for all of them: (B, N) -> (B, N) float32."""
        ones = torch.ones_like(regions, dtype=torch.float32)
        sizes = ones.new_zeros(len(regions), budget).scatter_add(1, regions, ones)
        return sizes.log().gather(1, regions) / math.log(self.patches)


def _halves(
    linear: nn.Linear, patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """A linear map of [patch | change of its region], the part of each half; the regions' runs once for each."""
    dtype = patches.dtype
    own, shared = linear.weight.to(dtype).chunk(2, dim=1)
    index = regions[:, :, None].expand(-1, -1, patches.shape[-1])
    return F.linear(patches, own, linear.bias.to(dtype)), F.linear(change, shared).gather(1, index)


class Broadcast(nn.Module):
    """Every patch moves as its region does, with nothing to learn."""

    def forward(self, patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """(B, N, D), (B, R, D), (B, N) -> (B, N, D)."""
        return patches + change.gather(1, regions[:, :, None].expand(-1, -1, change.shape[-1]))
