"""Your own token reduction beside ours: python examples/own_reduction.py

This one gives every patch to the nearest of R places, whatever the picture shows.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rti.method.config import ReductionConfig
from rti.method.order import order
from rti.method.reductions.grouped import GroupedReduction


@dataclass(frozen=True)
class CellsConfig(ReductionConfig):
    name: ClassVar[str] = "cells"

    order: str = "hilbert"  # fields become options: rti train --reduction cells --order morton


class CellsReduction(GroupedReduction):
    """Every patch joins the nearest of R places, evenly spaced along an order."""

    def __init__(self, config: CellsConfig, backbone):
        super().__init__(config, backbone)
        walk, _ = order(config.order, *backbone.grid)
        rows, columns = walk // backbone.grid[1], walk % backbone.grid[1]
        self.register_buffer("along", torch.stack([rows, columns], dim=-1).float(), persistent=False)
        self.register_buffer("walk", walk, persistent=False)

    def regions(self, tokens, budget, estimate=None):
        """The group of each patch, (B, N), patches row by row. No group may be empty."""
        chosen = (2 * torch.arange(budget, device=self.walk.device) + 1) * self.patches // (2 * budget)
        nearest = torch.cdist(self.along, self.along[chosen]).argmin(dim=-1)
        groups = torch.empty_like(nearest)
        groups[self.walk] = nearest
        return groups.expand(len(tokens.image), -1)


REDUCTION = (CellsConfig, CellsReduction)


if __name__ == "__main__":
    import rti
    from rti.method.reductions import register

    register(*REDUCTION)  # an installed package says so by an entry point instead, see docs/reductions.md
    backbone = rti.load_backbone("scenes-jit")
    model = rti.attach(backbone, CellsConfig(core=(3, 7)))
    condition = model.condition(labels=torch.tensor([0, 9]))
    noise = backbone.flow.noise_scale * torch.randn(2, 3, *backbone.image_size)
    images = rti.sample(model, noise, condition, steps=2, budget=64)
    print(f"{len(images)} pictures of {tuple(images.shape[1:])} by {model.config.name}, untrained")
