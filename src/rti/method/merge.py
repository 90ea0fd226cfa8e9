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

from rti.errors import InputError, check_finite
from rti.method.budgets import resolve_budget

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
    if not isinstance(features, torch.Tensor) or features.ndim != 3 or 0 in features.shape[:2]:
        given = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise InputError(f"features of shape {given}; allowed: a tensor (batch, patches, channels)")
    check_finite("size_prior", size_prior)
    batch, patches, _ = features.shape
    budget = None if budget is None else resolve_budget(budget, patches)
    device = features.device
    # By the position at a run's end. The last of an image ends no boundary; it is dropped at the end.
    heights = torch.full((batch * patches,), torch.inf, device=device)
    variance = torch.zeros_like(heights)

    # The runs of the whole batch, one after the other. `index_select` is two to four times as fast as brackets, and on
    # a small image starting the operations of a round is most of its time.
    mean = features.float().flatten(0, 1)
    end = torch.arange(batch * patches, device=device)
    runs = torch.stack([column.flatten() for column in _single_patches(batch, patches, device)])
    # A table, since a vectorised power rounds by where in the batch a run stands.
    growth = torch.arange(2 * patches + 1, dtype=torch.float64).pow(float(size_prior)).float().to(device)

    while len(end) > batch:
        size, above, wall, tie = runs
        both = size[:-1] + size[1:]
        lost = size[:-1] * size[1:] / both * (mean[1:] - mean[:-1]).square_().sum(dim=-1)
        cost = (lost * growth.index_select(0, both.long())).nan_to_num_(nan=LIMIT).clamp_(max=LIMIT) + wall[:-1]
        if budget is not None and _settled(heights.view(batch, patches), cost, end[:-1], budget):
            break

        cheaper = (cost[:-1] < cost[1:]) | ((cost[:-1] == cost[1:]) & (tie[:-2] < tie[1:-1]))
        joins = cost.isfinite()
        joins[1:] &= ~cheaper
        joins[:-1] &= cheaper
        left = joins.nonzero()[:, 0]
        right = left + 1

        vanishes = end.index_select(0, left)
        height = torch.maximum(above.index_select(0, left), above.index_select(0, right))
        height = torch.maximum(height, cost.index_select(0, left))
        heights[vanishes] = height
        variance[vanishes] = lost.index_select(0, left)

        share = (size.index_select(0, right) / both.index_select(0, left))[:, None]
        joined_mean = torch.lerp(mean.index_select(0, left), mean.index_select(0, right), share)
        joined = runs.index_select(1, right)  # what lies after the right one lies after both
        joined[0] = both.index_select(0, left)
        joined[1] = height.nextafter(height.new_tensor(torch.inf))

        # A joined run takes the place of its right one; the left one goes.
        stays = torch.ones_like(end, dtype=torch.bool)
        stays[:-1] = ~joins
        stays = stays.nonzero()[:, 0]
        mean, runs, end = mean.index_select(0, stays), runs.index_select(1, stays), end.index_select(0, stays)
        place = left - torch.arange(len(left), device=device)
        mean[place] = joined_mean
        runs[:, place] = joined
    return MergeTree(*(column.view(batch, patches)[:, :-1] for column in (heights, variance)))


def _single_patches(batch: int, patches: int, device: torch.device) -> list[torch.Tensor]:
    """The runs to start from, (B, N) each: their size, a height just above the highest join inside, infinity if an
    image ends with it, and what decides between equal costs of the boundary after it."""
    size = torch.ones(batch, patches, device=device)
    above, wall, tie = torch.zeros_like(size), torch.zeros_like(size), torch.zeros_like(size)
    wall[:, -1] = torch.inf
    tie[:, :-1] = -torch.argsort(tie_order(patches, device)).float()  # the finest first
    return [size, above, wall, tie]


def _settled(heights: torch.Tensor, cost: torch.Tensor, end: torch.Tensor, budget: int) -> bool:
    """Whether the budget - 1 highest boundaries of every image are known. `heights`: (B, N), the last ends no boundary.

    No boundary that is left can vanish below the cheapest join of today: its own cost changes only after a join beside
    it, whose height it inherits. Once those that are left and those that vanished above that are few enough to be cut
    all, the rest of the tree cannot change the choice.
    """
    batch, patches = heights.shape
    if len(end) >= batch * budget:  # too many are left
        return False
    cheapest = cost.new_full((batch,), torch.inf).scatter_reduce(0, end // patches, cost, "amin")
    return bool(((heights[:, :-1] >= cheapest[:, None]).sum(dim=1) < budget).all())


def tie_order(patches: int, device: torch.device | None = None) -> torch.Tensor:
    """Boundaries from coarse to fine dyadic level, (N - 1,): where features say nothing, cut where a quadtree would."""
    position = torch.arange(1, patches, device=device)
    level = position & -position  # the largest power of two that divides the position
    return level.sort(descending=True, stable=True).indices
