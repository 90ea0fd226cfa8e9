"""Read: pool the patches of each region into one token with a size and a position (paper, Eq. 3)."""

from __future__ import annotations

import torch
from torch import nn


def membership(regions: torch.Tensor, budget: int) -> torch.Tensor:
    """Which patch belongs to which region: (B, N) region of each patch -> (B, R, N) bool."""
    return regions[:, None, :] == torch.arange(budget, device=regions.device)[:, None]


class Read(nn.Module):
    """Softmax pooling within each region, plus an embedding of the region's size.

    Identity: with fresh parameters a region of one patch is that patch, unchanged.
    """

    def __init__(self, hidden_size: int, patches: int):
        super().__init__()
        self.score = nn.Parameter(torch.zeros(hidden_size))
        self.size_embedding = nn.Parameter(torch.zeros(patches.bit_length(), hidden_size))

    def forward(self, patches: torch.Tensor, member: torch.Tensor) -> torch.Tensor:
        """Pool patches into region tokens (Eq. 3). (B, N, D), (B, R, N) -> (B, R, D)."""
        dtype = patches.dtype
        scores = patches.float() @ self.score.float()
        weights = scores[:, None, :].masked_fill(~member, -torch.inf).softmax(dim=-1)
        size = self.size_embedding.to(dtype)[floor_log2(member.sum(dim=-1), len(self.size_embedding))]
        return weights.to(dtype) @ patches + size


def floor_log2(size: torch.Tensor, levels: int) -> torch.Tensor:
    """floor(log2 size) of whole numbers below 2^levels, without the rounding of a logarithm."""
    powers = 2 ** torch.arange(1, levels, device=size.device)
    return (size[..., None] >= powers).sum(dim=-1)


def average_phasors(phasors: torch.Tensor, member: torch.Tensor) -> torch.Tensor:
    """A region's position: the mean of its patches' rotary phasors. (1, N, P), (B, R, N) -> (B, R, P), float32.

    Wavelengths longer than the region keep their phase; shorter ones shrink towards zero.
    """
    weights = member.float()
    return (weights @ phasors) / weights.sum(dim=-1, keepdim=True)
