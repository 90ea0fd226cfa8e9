"""Partition: cut the walk of an image into exactly R runs, its regions (paper, Eq. 1-2).

A rule sees the features in the order of the walk, (B, N, d). Each image of a batch gets its own cuts, in float32, and
a tie is always decided by the position, so that a picture does not depend on its batch. No tensor here has the size of
the budget, so that a compiled graph serves every budget.
"""

from __future__ import annotations

import torch

from rti.errors import InputError, check_choice
from rti.method.merge import merge_tree


def partition(features: torch.Tensor, budget: int, cuts: str, size_prior: float = 0.0) -> torch.Tensor:
    """The region of each position of the walk: (B, N, d) features -> (B, N) int64, from 0 to budget - 1, ascending."""
    check_choice("cuts", cuts, RULES)
    if not 1 <= budget <= features.shape[1]:
        raise InputError(f"budget {budget} is not usable; allowed: 1 to {features.shape[1]} regions")
    return RULES[cuts](features, budget, size_prior)


def fixed_regions(batch: int, patches: int, budget: int, device: torch.device) -> torch.Tensor:
    """Evenly spaced cuts, blind to the content: region i starts at position i N / R, rounded down. (B, N) int64."""
    position = torch.arange(1, patches + 1, device=device)
    return ((position * budget - 1) // patches).expand(batch, -1)


def _fixed(features: torch.Tensor, budget: int, size_prior: float) -> torch.Tensor:
    return fixed_regions(features.shape[0], features.shape[1], budget, features.device)


def _gaps(features: torch.Tensor, budget: int, size_prior: float) -> torch.Tensor:
    """The paper's rule: cut at the R - 1 largest distances between neighbours on the walk. O(N d)."""
    features = features.float()
    distance = (features[:, 1:] - features[:, :-1]).norm(dim=-1)  # Eq. 1
    return _cut(distance.sort(dim=1, descending=True, stable=True).indices, budget)


def _merge(features: torch.Tensor, budget: int, size_prior: float) -> torch.Tensor:
    """Ours: keep the R - 1 boundaries that Ward merging along the walk would remove last."""
    return _cut(merge_ranked(features, budget, size_prior), budget)


RULES = {"gaps": _gaps, "merge": _merge, "fixed": _fixed}


@torch.library.custom_op("rti::merge_ranked", mutates_args=())
def merge_ranked(features: torch.Tensor, budget: int, size_prior: float) -> torch.Tensor:
    """Boundaries from the last to the first to be removed, (B, N - 1); only the first R - 1 are decided.

    A compiled graph holds this as one opaque operation: traced, its rounds take minutes to compile.
    """
    return merge_tree(features, size_prior, budget).ranked()


@merge_ranked.register_fake
def _(features: torch.Tensor, budget: int, size_prior: float) -> torch.Tensor:
    return features.new_empty((features.shape[0], features.shape[1] - 1), dtype=torch.int64)


def _cut(ranked: torch.Tensor, budget: int) -> torch.Tensor:
    """Cut at the R - 1 first of the ranked boundaries and number the runs (Eq. 2). (B, N - 1) -> (B, N)."""
    chosen = torch.arange(1, ranked.shape[1] + 1, device=ranked.device) < budget
    starts = torch.zeros(ranked.shape[0], ranked.shape[1] + 1, dtype=torch.bool, device=ranked.device)
    return starts.scatter(1, ranked + 1, chosen.expand_as(ranked)).cumsum(dim=1)
