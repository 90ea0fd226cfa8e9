"""Write: give every patch its own update from its region's change (paper, Eq. 4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Write(nn.Module):
    """A linear map g of [the patch before the core | the change of its region], added to the patch.

    Identity: with fresh parameters g = [0 | I], so each patch moves as its region does.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.g = nn.Linear(2 * hidden_size, hidden_size)
        with torch.no_grad():
            self.g.weight.zero_()
            self.g.weight[:, hidden_size:].fill_diagonal_(1.0)
            self.g.bias.zero_()

    def forward(self, patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """Scatter the change of each region to its patches (Eq. 4). (B, N, D), (B, R, D), (B, N) -> (B, N, D).

        g is linear, so its region half runs once per region, not once per patch.
        """
        dtype = patches.dtype
        own, shared = self.g.weight.to(dtype).chunk(2, dim=1)
        shared_update = F.linear(change, shared)
        index = regions[:, :, None].expand(-1, -1, shared_update.shape[-1])
        return patches + F.linear(patches, own, self.g.bias.to(dtype)) + shared_update.gather(1, index)


class Broadcast(nn.Module):
    """Every patch moves as its region does, with nothing to learn."""

    def forward(self, patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """(B, N, D), (B, R, D), (B, N) -> (B, N, D)."""
        return patches + change.gather(1, regions[:, :, None].expand(-1, -1, change.shape[-1]))
