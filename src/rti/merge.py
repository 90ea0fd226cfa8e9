"""Merge: a tree over the walk by Ward's criterion, built in a few vectorised rounds, one tree for every budget.

Joining two neighbouring runs of n1 and n2 patches with means m1 and m2 loses the variance

    n1 n2 / (n1 + n2) |m1 - m2|^2,

and costs that times (n1 + n2)^size_prior. In each round every pair that is cheaper than both of its neighbouring pairs
joins, in all images at once; about 20 rounds join 1024 patches. Along a walk a join may make the next one cheaper (the
joined run may be closer to a third), so a boundary's height is at least a hair above the joins it needed: heights rise
from the leaves to the root, every cut of the ranking is a cut of the tree, and one tree serves every budget.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

LIMIT = 1e38  # no join costs more, not even one of features that are not finite: the tree is always built to its end


class MergeTree(NamedTuple):
    """What became of each boundary; index j lies between the positions j and j + 1 of the walk."""

    heights: torch.Tensor  # (B, N - 1) the cost at which it vanished, infinity where it was not reached
    variance: torch.Tensor  # (B, N - 1) the squared error that its join added

    def ranked(self) -> torch.Tensor:
        """Boundaries from the one to keep longest to the first to go, (B, N - 1). The first R - 1 cut R regions."""
        by_level = tie_order(self.heights.shape[1] + 1, self.heights.device)
        return by_level[self.heights[:, by_level].sort(dim=1, descending=True, stable=True).indices]

    def variance_lost(self) -> torch.Tensor:
        """Squared error of R regions for R = 1 to N, (B, N). Needs a tree built to the end."""
        lost = self.variance.gather(1, self.ranked()).flip(1).cumsum(dim=1).flip(1)
        return torch.cat([lost, lost.new_zeros(len(lost), 1)], dim=1)


def merge_tree(features: torch.Tensor, size_prior: float = 0.0, budget: int | None = None) -> MergeTree:
    """Join the patches of each image along the walk: (B, N, d) features -> the tree, in float32.

    Regions of a smaller budget are unions of those of a larger one. With a `budget` the tree is only built as far as
    that budget needs.
    """
    batch, patches, _ = features.shape
    device = features.device
    heights = torch.full((batch, patches - 1), torch.inf, device=device)
    variance = torch.zeros_like(heights)

    # The runs of the whole batch, one after the other.
    mean = features.float().flatten(0, 1).clone()
    size = torch.ones(batch * patches, device=device)
    above = torch.zeros(batch * patches, device=device)  # just above the highest join inside each run
    image = torch.arange(batch, device=device).repeat_interleave(patches)
    boundary = torch.arange(patches, device=device)  # the one at each run's end
    boundary = boundary.masked_fill(boundary == patches - 1, -1).repeat(batch)
    finest_first = -torch.argsort(tie_order(patches, device))  # decides between equal costs
    finest_first = torch.cat([finest_first, finest_first.new_zeros(1)])
    # A table, since a vectorised power rounds by where in the batch a run stands.
    growth = torch.arange(2 * patches + 1, dtype=torch.float64).pow(size_prior).float().to(device)

    while len(size) > batch:
        both = size[:-1] + size[1:]
        lost = size[:-1] * size[1:] / both * (mean[1:] - mean[:-1]).square().sum(dim=-1)
        cost = (lost * growth[both.long()]).nan_to_num(nan=LIMIT).clamp(max=LIMIT)
        cost = cost.masked_fill(boundary[:-1] < 0, torch.inf)
        if budget is not None and _settled(heights, cost, image[:-1], budget):
            break

        tie = finest_first[boundary[:-1]]
        cheaper = (cost[:-1] < cost[1:]) | ((cost[:-1] == cost[1:]) & (tie[:-1] < tie[1:]))
        edge = cheaper.new_ones(1)
        joins = cost.isfinite() & torch.cat([edge, ~cheaper]) & torch.cat([cheaper, edge])
        left = joins.nonzero()[:, 0]
        right = left + 1
        height = torch.stack([cost[left], above[left], above[right]]).amax(dim=0)
        heights[image[left], boundary[left]] = height
        variance[image[left], boundary[left]] = lost[left]
        mean[left] = torch.lerp(mean[left], mean[right], (size[right] / both[left])[:, None])
        size[left], boundary[left] = both[left], boundary[right]
        above[left] = height.nextafter(height.new_tensor(torch.inf))
        stays = torch.ones_like(image, dtype=torch.bool)
        stays[right] = False
        mean, size, above, image, boundary = (run[stays] for run in (mean, size, above, image, boundary))
    return MergeTree(heights, variance)


def _settled(heights: torch.Tensor, cost: torch.Tensor, image: torch.Tensor, budget: int) -> bool:
    """Whether the budget - 1 highest boundaries of every image are known.

    No boundary that is left can vanish below the cheapest join of today: its own cost changes only after a join beside
    it, whose height it inherits. Once those that are left and those that vanished above that are few enough to be cut
    all, the rest of the tree cannot change the choice.
    """
    cheapest = cost.new_full((len(heights),), torch.inf).scatter_reduce(0, image, cost, "amin")
    return bool(((heights >= cheapest[:, None]).sum(dim=1) < budget).all())


def tie_order(patches: int, device: torch.device | None = None) -> torch.Tensor:
    """Boundaries from coarse to fine dyadic level, (N - 1,): where features say nothing, cut where a quadtree would."""
    position = torch.arange(1, patches, device=device)
    level = position & -position  # the largest power of two that divides the position
    return level.sort(descending=True, stable=True).indices
