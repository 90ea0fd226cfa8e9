"""What the probes measure, as plain functions (paper, appendix "Token Redundancy and Region Analysis").

A hard grouping is the group of each patch, (B, N) int64, patches row by row. A soft one is a weight of every patch in
every group, (B, R, N), each group's weights summing to one. All is computed in float64, one value per image; distances
are in cells of the patch grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rti.backbones.layers import patchify
from rti.errors import InputError

FINE, COARSE = 1, 16  # a region is fine at one patch, coarse at sixteen or more
SUMS = ("fine_detail", "fine_patches", "coarse_detail", "coarse_patches")
POINTS = 100  # of a Lorenz curve as it is kept, evenly spaced


def group_weights(groups: torch.Tensor) -> torch.Tensor:
    """A grouping, hard or soft, as soft weights: (B, N) or (B, R, N) -> (B, R, N). A group of no patch is all zero."""
    if groups.ndim == 3:
        weights = groups.double()
        if weights.min() < 0:
            raise InputError(f"weights of a soft group must not be negative, got {weights.min().item():.3g}")
    else:
        number = torch.arange(int(groups.max()) + 1, device=groups.device)
        weights = (groups[:, None, :] == number[:, None]).double()
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


def explained_variance(features: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """EV: the share of the variance that survives replacing each token by its group's mean (Eq. 5).

    (B, N, d) features and a grouping -> (B,). One group keeps nothing, N groups keep all; features that do not vary are
    kept by any grouping. A soft group pools with its weights and scatters with the column-normalised transpose.
    """
    features = features.double()
    if groups.ndim == 2:
        restored = _group_means(features, groups)
    else:
        weights = group_weights(groups)
        column = weights.sum(dim=1, keepdim=True)
        scatter = torch.where(column > 0, weights / column, 0.0).transpose(1, 2)
        restored = scatter @ (weights @ features)
        unread = (column == 0).transpose(1, 2)  # a patch that no group reads has no better guess than the mean
        restored = torch.where(unread, features.mean(dim=1, keepdim=True), restored)
    return _kept(features, restored)


def skip_variance(features: torch.Tensor, keep: int) -> torch.Tensor:
    """EV of skipping: the `keep` tokens farthest from the global mean stay, the rest becomes that mean.

    (B, N, d) -> (B,). Not a grouping; keeping none is 0, keeping all is 1.
    """
    features = features.double()
    mean = features.mean(dim=1, keepdim=True)
    return _kept(features, torch.where(kept_by_skipping(features, keep)[..., None], features, mean))


def kept_by_skipping(features: torch.Tensor, keep: int) -> torch.Tensor:
    """The tokens that skipping keeps: (B, N, d) -> (B, N) bool. Equal scores are decided by the position."""
    features = features.double()
    score = (features - features.mean(dim=1, keepdim=True)).square().sum(dim=-1)
    chosen = score.sort(dim=1, descending=True, stable=True).indices[:, :keep]
    return torch.zeros_like(score, dtype=torch.bool).scatter(1, chosen, True)


def spread(groups: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """The mean over groups of a group's spread, sum_j w_j |p_j - p_centre| (Eq. 6). A grouping -> (B,)."""
    weights = group_weights(groups)
    present = (weights.sum(dim=-1) > 0).double()  # a group of no patch counts for nothing
    return (_spreads(weights, grid) * present).sum(dim=1) / present.sum(dim=1)


def spread_per_patch(groups: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """The mean over patches of the distance to the centre of the patch's group. A hard grouping, (B, N) -> (B,)."""
    weights = group_weights(groups)
    return (_spreads(weights, grid) * group_sizes(weights)).sum(dim=1) / groups.shape[1]


def group_sizes(weights: torch.Tensor) -> torch.Tensor:
    """Patches in each group, for a soft one its participation ratio 1 / sum w^2. (B, R, N) -> (B, R)."""
    square = weights.square().sum(dim=-1)
    return torch.where(square > 0, 1 / square, 0.0)


def size_detail(groups: torch.Tensor, detail: torch.Tensor) -> torch.Tensor:
    """The correlation over groups of fineness, -log2 of the size, with the mean detail. A grouping, (B, N) -> (B,).

    Groups of one size, or of one detail, are exactly 0: nothing follows anything.
    """
    weights = group_weights(groups)
    inside = (weights @ detail.double()[..., None])[..., 0]
    pairs = zip(group_sizes(weights), inside, strict=True)
    return torch.stack([_correlation(-size[size > 0].log2(), mean[size > 0]) for size, mean in pairs])


def detail(images: torch.Tensor, patch: int) -> torch.Tensor:
    """Gradient energy of each patch: (B, C, H, W) -> (B, N).

    Squared differences of neighbouring pixels to the right and below, summed over channels and averaged over the
    patch; there is none beyond the edge of the image.
    """
    images = images.double()
    energy = torch.zeros_like(images)
    energy[..., :, :-1] += (images[..., :, 1:] - images[..., :, :-1]).square()
    energy[..., :-1, :] += (images[..., 1:, :] - images[..., :-1, :]).square()
    return patchify(energy.sum(dim=1, keepdim=True), patch).mean(dim=-1)


def lorenz(detail: torch.Tensor) -> torch.Tensor:
    """The share of all detail in the most detailed k patches, k = 0 to N: (B, N) -> (B, N + 1), from 0 to 1.

    Detail that is the same everywhere, or nowhere, is the diagonal.
    """
    detail = detail.double()
    total = detail.sum(dim=1, keepdim=True)
    share = torch.where(total > 0, detail / total, 1 / detail.shape[1])
    share = share.sort(dim=1, descending=True).values.cumsum(dim=1)
    return torch.cat([torch.zeros_like(total), share], dim=1).clamp(max=1.0)


def share_in_top(curve: Sequence[float], patches: float | np.ndarray) -> float | np.ndarray:
    """The share of detail in the most detailed `patches`, a share too, read off a Lorenz curve, (N + 1,)."""
    return np.interp(patches, np.linspace(0, 1, len(curve)), curve)


def patches_for(curve: Sequence[float], share: float) -> float:
    """The inverse: the smallest share of patches that holds this share of the detail."""
    held, first = np.unique(curve, return_index=True)
    return float(np.interp(share, held, first / (len(curve) - 1)))


def lorenz_points(detail: torch.Tensor) -> torch.Tensor:
    """Lorenz curves at evenly spaced shares of the patches: (B, N) -> (B, POINTS + 1), as float32."""
    curves = [share_in_top(curve, np.linspace(0, 1, POINTS + 1)) for curve in lorenz(detail).cpu().numpy()]
    return torch.from_numpy(np.stack(curves)).float()


def fine_and_coarse(groups: torch.Tensor, detail: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sum of the detail in fine and in coarse regions, and how many patches they hold: (B, N), (B, N) -> (B,) each."""
    size, sums = patch_sizes(groups), {}
    for name, chosen in (("fine", size <= FINE), ("coarse", size >= COARSE)):
        sums |= {f"{name}_detail": (detail.double() * chosen).sum(dim=1), f"{name}_patches": chosen.sum(dim=1).double()}
    return sums


def detail_ratio(sums: dict[str, torch.Tensor | np.ndarray]) -> float | None:
    """Mean detail in fine regions over that in coarse ones, by the sums of any number of images; None without both."""
    fine, fine_patches, coarse, coarse_patches = (float(sums[name].sum()) for name in SUMS)
    if not fine_patches or not coarse_patches or not coarse:
        return None
    return (fine / fine_patches) / (coarse / coarse_patches)


def size_entropy(groups: torch.Tensor) -> torch.Tensor:
    """Entropy in bits of the size of the region that a patch lies in: (B, N) -> (B,). Regions of one size are 0."""
    size = patch_sizes(groups)
    counts = torch.zeros(len(size), groups.shape[1] + 1, dtype=torch.float64, device=size.device)
    share = counts.scatter_add(1, size, torch.ones_like(size, dtype=torch.float64)) / groups.shape[1]
    return -torch.special.xlogy(share, share).sum(dim=1) / torch.tensor(2.0, dtype=torch.float64).log()


def patch_sizes(groups: torch.Tensor) -> torch.Tensor:
    """The size of the region that each patch lies in: (B, N) -> (B, N) int64."""
    counts = torch.zeros(len(groups), int(groups.max()) + 1, dtype=torch.int64, device=groups.device)
    return counts.scatter_add(1, groups, torch.ones_like(groups)).gather(1, groups)


def _group_means(features: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Each token replaced by its group's mean: (B, N, d), (B, N) -> (B, N, d)."""
    place = groups[..., None].expand_as(features)
    means = features.new_zeros(len(features), int(groups.max()) + 1, features.shape[2])
    return means.scatter_reduce(1, place, features, "mean", include_self=False).gather(1, place)


def _kept(features: torch.Tensor, restored: torch.Tensor) -> torch.Tensor:
    lost = (features - restored).square().sum(dim=(1, 2))
    total = (features - features.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2))
    # Equal features differ from their mean by rounding alone.
    constant = total <= 1e-24 * features.square().sum(dim=(1, 2))
    return torch.where(constant, 1.0, 1 - lost / torch.where(constant, 1.0, total))


def _spreads(weights: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """The spread of each group: (B, R, N) -> (B, R)."""
    rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in grid), indexing="ij")
    position = torch.stack([rows, columns], dim=-1).view(-1, 2).to(weights.device)
    return (weights * torch.cdist(weights @ position, position, compute_mode="donot_use_mm_for_euclid_dist")).sum(-1)


def _correlation(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    first, second = first - first.mean(), second - second.mean()
    if first.abs().max() < 1e-9 or second.abs().max() == 0:
        return first.new_zeros(())
    return (first * second).sum() / (first.norm() * second.norm())
