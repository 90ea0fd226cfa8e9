"""Merge: a tree over the walk by Ward's criterion, built in a few rounds of fixed shape, one tree for every budget.

Joining two neighbouring runs of n1 and n2 patches with means m1 and m2 loses the variance

    |m1 - m2|^2 / (1 / n1 + 1 / n2),

and costs that times (n1 + n2)^size_prior. In each round every boundary that is the cheapest of both its runs vanishes,
in all images at once. Along a walk a join may make the next one cheaper (the joined run may be closer to a third), so a
boundary's height is at least that of the boundaries inside the two runs it parted: heights rise from the leaves to the
root, the later round decides between equal ones, every cut of the ranking is a cut of the tree, and one tree serves
every budget.

No shape depends on the features and nothing is read back, so a GPU is never waited for: after a number of rounds that
is known beforehand, whatever boundaries are left are ranked by what they would cost. On a CPU, where looking costs
nothing, the means of runs that are gone are dropped; that changes no result.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from rti.errors import InputError, check_finite
from rti.method.budgets import resolve_budget

LIMIT = 1e15  # of a feature: squared distances stay finite, also of features that are not
WALL = 2**62  # ranks behind any cost, so a boundary that has it never vanishes
COSTS = 2**31  # ranks are a cost's bits times this, and below it what decides between equal costs


class MergeTree(NamedTuple):
    """What became of each boundary; index j lies between the positions j and j + 1 of the walk."""

    heights: torch.Tensor  # (B, N - 1) the cost at which it vanished, or would vanish
    variance: torch.Tensor  # (B, N - 1) the squared error that its join added
    rounds: torch.Tensor  # (B, N - 1) in which round it vanished, from 0
    left: torch.Tensor  # (B, N - 1) whether it was left when the rounds were over

    def ranked(self) -> torch.Tensor:
        """Boundaries from the one to keep longest to the first to go, (B, N - 1). The first R - 1 cut R regions."""
        by_level = tie_order(self.heights.shape[1] + 1, self.heights.device)
        rank = torch.add(self.rounds, _bits(self.heights), alpha=COSTS)
        return by_level[rank[:, by_level].sort(dim=1, descending=True, stable=True).indices]

    def variance_lost(self) -> torch.Tensor:
        """Squared error of R regions for R = 1 to N, (B, N). Needs a tree built to the end."""
        lost = self.variance.gather(1, self.ranked()).flip(1).cumsum(dim=1).flip(1)
        return torch.cat([lost, lost.new_zeros(len(lost), 1)], dim=1)

    def settled(self, budget: int) -> torch.Tensor:
        """Whether more rounds would not change the regions of a budget, (B,). A statistic, for tests and reports.

        No boundary that is left can vanish below the cheapest of them: its own cost changes only after a join beside
        it, whose height it inherits.
        """
        left = self.heights.masked_fill(~self.left, torch.inf)
        cheapest = F.pad(left, (0, 1), value=torch.inf).amin(dim=1, keepdim=True)
        return (self.heights >= cheapest).sum(dim=1) < budget


def merge_tree(features: torch.Tensor, size_prior: float = 0.0, budget: int | None = None) -> MergeTree:
    """Join the patches of each image along the walk: (B, N, d) features -> the tree, in float32.

    Regions of a smaller budget are unions of those of a larger one. With a `budget` the tree is only built as far as
    that budget needs, which a GPU does without being waited for; a whole tree may take any number of rounds.
    """
    if not isinstance(features, torch.Tensor) or features.ndim != 3 or 0 in features.shape[:2]:
        given = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise InputError(f"features of shape {given}; allowed: a tensor (batch, patches, channels)")
    check_finite("size_prior", size_prior)
    batch, patches, _ = features.shape
    rounds = patches - 1 if budget is None else most_rounds(patches, resolve_budget(budget, patches), size_prior)
    looks = budget is None or _may_look(features.device)

    # The runs of the whole batch, one after the other; an empty run before and after each image is never joined. A run
    # is known by where it ends, and one that is gone ends behind all others.
    mean = F.pad(features.detach().float(), (0, 0, 1, 1)).flatten(0, 1).clamp_(-LIMIT, LIMIT).nan_to_num_(nan=LIMIT)
    end = torch.arange(1, batch * patches + 1, device=mean.device).view(batch, patches)
    end = torch.cat([end[:, :1] - 1, end, end[:, -1:]], dim=1).flatten()
    gone = (batch + 1) * patches
    tie = F.pad(_finest_first(patches, mean.device), (1, 0), value=WALL).repeat(batch + 2)
    growth = _powers(2 * patches, float(size_prior), mean.device) if size_prior else None
    one, zero = mean.new_ones(1), mean.new_zeros(1)
    distance = mean.new_zeros(len(end) - 2)
    rank = torch.full((len(end) + 2,), WALL, device=mean.device)
    ends, costs, losses = [], [], []

    for number in range(rounds + 1):
        # What each boundary would cost now. Beside an empty run, and among those that are gone, it is nothing.
        gap = mean[2:] - mean[1:-1]
        torch.linalg.vector_norm(gap, dim=-1, out=distance[: len(gap)])
        inverse = one / end.diff()
        both = inverse[:-1] + inverse[1:]
        lost = cost = distance.square() / both
        if growth is not None:
            cost = lost * growth.index_select(0, end[2:] - end[:-2])
        ends.append(end[1:-1]), costs.append(cost), losses.append(lost)
        if number == rounds or len(mean) == 3 * batch:
            break

        # Those cheaper than both beside them vanish: the left run goes, and the right one has the mean of both.
        torch.add(tie.index_select(0, ends[-1]), _bits(cost), alpha=COSTS, out=rank[2:-2])
        rises = rank[:-1] < rank[1:]
        joins = rises[1:] > rises[:-1]
        share = torch.where(joins[1:-1], inverse[1:] / both, zero)
        mean[2:].addcmul_(gap, share[: len(gap), None], value=-1)
        live = len(mean) - int(joins.sum()) if looks else len(mean)
        end, order = end.masked_fill(joins, gone).sort(stable=True)
        mean = mean.index_select(0, order[:live])
    return _tree(batch, patches, torch.stack(ends), torch.stack([*costs, *losses]))


def most_rounds(patches: int, budget: int, size_prior: float = 0.0) -> int:
    """After how many rounds merging ends for a budget: nearly always more than enough (see scripts/merge_rounds.py).

    A round joins about a quarter of the runs, and some lag behind; fewer where a size prior keeps them even.
    """
    lag = math.log2(patches) - (3 if size_prior >= 0.5 else 1)
    return max(0, min(patches - 1, math.ceil(lag + 2.5 * math.log2(patches / budget))))


def _may_look(device: torch.device) -> bool:
    """Whether a number can be read there without waiting."""
    return device.type == "cpu"


def _tree(batch: int, patches: int, ends: torch.Tensor, values: torch.Tensor) -> MergeTree:
    """Heights from what each boundary cost in each round: (K, n) where each run ended, (2 K, n) its cost and loss."""
    count = batch * patches
    record = values.new_full((2, len(ends), count + patches + 1), -1.0)
    record.scatter_(2, ends.expand(2, -1, -1), values.view(2, *ends.shape))
    record = record[:, :, 1 : count + 1]  # the last boundary of an image is its end, which is always there
    there = record[0] >= 0  # (K, B N)
    rounds = there[1:].sum(dim=0, keepdim=True)
    cost, lost = record.gather(1, rounds.expand(2, -1, -1)).unbind()
    # Before a boundary's last round, the boundaries inside the two runs beside it have vanished.
    right = there.cumsum(dim=1)
    inside = cost.new_zeros(len(ends), count + 1)
    inside.scatter_reduce_(1, right, cost.expand(len(ends), -1).masked_fill(there, 0.0), "amax")
    beside = torch.maximum(inside, inside.roll(1, dims=1))
    columns = torch.maximum(cost, beside[rounds, right.gather(0, rounds)]), lost, rounds, there[-1]
    return MergeTree(*(column.view(batch, patches)[:, :-1] for column in columns))


def _bits(costs: torch.Tensor) -> torch.Tensor:
    """Whole numbers in the order of the costs, which are not negative."""
    return costs.contiguous().view(torch.int32)


def _powers(most: int, exponent: float, device: torch.device) -> torch.Tensor:
    """k^exponent for k = 0 to `most`: a table, since a vectorised power rounds by where in the batch a run stands."""
    exponent = min(exponent, 120 / math.log2(most))  # all are finite
    return torch.arange(most + 1, dtype=torch.float32, device=device).pow_(exponent)


def _finest_first(patches: int, device: torch.device) -> torch.Tensor:
    """What decides between equal costs, (N - 1,): falling in `tie_order`."""
    position = torch.arange(1, patches, device=device)
    return (position & -position) * patches - position


def tie_order(patches: int, device: torch.device | None = None) -> torch.Tensor:
    """Boundaries from coarse to fine dyadic level, (N - 1,): where features say nothing, cut where a quadtree would."""
    position = torch.arange(1, patches, device=device)
    level = position & -position  # the largest power of two that divides the position
    return level.sort(descending=True, stable=True).indices
