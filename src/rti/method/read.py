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

    def __init__(self, hidden_size: int, patches: int, sizes: bool = True):
        super().__init__()
        self.score = nn.Parameter(torch.zeros(hidden_size))
        self.size_embedding = nn.Parameter(torch.zeros(patches.bit_length(), hidden_size)) if sizes else None

    def forward(self, patches: torch.Tensor, member: torch.Tensor) -> torch.Tensor:
        """Pool patches into region tokens (Eq. 3). (B, N, D), (B, R, N) -> (B, R, D)."""
        dtype = patches.dtype
        scores = patches.float() @ self.score.float()
        weights = scores[:, None, :].masked_fill(~member, -torch.inf).softmax(dim=-1)
        pooled = weights.to(dtype) @ patches
        if self.size_embedding is None:
            return pooled
        return pooled + self.size_embedding.to(dtype)[floor_log2(member.sum(dim=-1), len(self.size_embedding))]


class MeanRead(nn.Module):
    """The mean of each region, with nothing to learn and nothing about its size."""

    def forward(self, patches: torch.Tensor, member: torch.Tensor) -> torch.Tensor:
        """(B, N, D), (B, R, N) -> (B, R, D)."""
        weights = member.float() / member.sum(dim=-1, keepdim=True)
        return weights.to(patches.dtype) @ patches


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


def centre_phasors(phasors: torch.Tensor, member: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """The phasors of the patch nearest to each region's centre, the first of equals. (1, N, P), (B, R, N) -> (B, R, P).

    Every wavelength keeps its full length, as if the region were a single patch.
    """
    rows, columns = (torch.arange(side, device=member.device, dtype=torch.float32) for side in grid)
    places = torch.cartesian_prod(rows, columns)  # (N, 2)
    centre = member.float() @ places / member.sum(dim=-1, keepdim=True)
    distance = torch.cdist(centre, places.expand(len(member), -1, -1), compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distance.masked_fill(~member, torch.inf).argmin(dim=-1, keepdim=True)
    return phasors.expand(len(member), -1, -1).gather(1, nearest.expand(-1, -1, phasors.shape[-1]))
