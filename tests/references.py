"""What the tests of the method hold the package against: its rules as plain loops, best solutions, made-up features.

Nothing here is fast. Unless said otherwise, features are those of one image, (N, d) along the walk, and cuts are the
positions at which a region starts, apart from 0, ascending.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from rti.errors import InputError
from rti.method.order import order

# Every property test runs under this: no time limit per example, no database of failures in the working tree.
PROPERTY = settings(deadline=None, max_examples=60, database=None)


def assert_refused(call: Callable[[], Any], *mentions: str) -> None:
    """The call fails as bad input must: in one line that says what was given and what is allowed."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for mention in mentions:
        assert mention in message


def trained_like(seed: int, height: int = 16, width: int = 16, channels: int = 16) -> torch.Tensor:
    """Features such as a trained model's, along the Hilbert walk: (N, d) float32.

    A background that shades off; at odd seeds also objects, each with a feature of its own; and noise, so much that a
    quarter as many regions as patches keep 0.6 to 0.95 of the variance, as they do on the released models.
    """
    generator = np.random.default_rng(seed)
    rows, columns = np.divmod(np.arange(height * width), width)
    place = np.stack([rows / height, columns / width], axis=1)
    features = 2.0 * place @ generator.normal(size=(2, channels))
    for _ in range(2):
        wave = np.cos(np.pi * (place @ generator.uniform(-2, 2, size=2) + generator.uniform(0, 2)))
        features += wave[:, None] * generator.normal(size=channels)
    if seed % 2:
        sites = generator.uniform(size=(generator.integers(4, 16), 2))
        nearest = ((place[:, None] - sites) ** 2).sum(axis=2).argmin(axis=1)
        features += 2.0 * generator.normal(size=(len(sites), channels))[nearest]
    features += generator.uniform(0.5, 1.1) * generator.normal(size=features.shape)
    walk, _ = order("hilbert", height, width)
    return torch.from_numpy(features).float()[walk]


# Orders.


def morton_walk(height: int, width: int) -> list[int]:
    """Row-major patches sorted by the interleaved bits of row and column, the row's first."""

    def interleaved(patch: int) -> int:
        row, column = divmod(patch, width)
        return int("".join(r + c for r, c in zip(f"{row:016b}", f"{column:016b}", strict=True)), 2)

    return sorted(range(height * width), key=interleaved)


def pieces(patches: set[int], width: int) -> int:
    """How many pieces a set of row-major patches falls into, by flood fill over the four neighbours."""
    left, count = set(patches), 0
    while left:
        count += 1
        front = [left.pop()]
        while front:
            row, column = divmod(front.pop(), width)
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if 0 <= c < width and r * width + c in left:
                    left.remove(r * width + c)
                    front.append(r * width + c)
    return count


# The three rules for the cuts, as documented.


def cuts_of(regions: torch.Tensor) -> list[int]:
    """(N,) region of each position -> the cuts."""
    ids = regions.tolist()
    return [j for j in range(1, len(ids)) if ids[j] != ids[j - 1]]


def gap_cuts(features: torch.Tensor, budget: int) -> list[int]:
    """The largest distances between neighbours; of equal ones the earlier."""
    distance = [math.dist(a, b) for a, b in pairwise(features.double().tolist())]
    ranked = sorted(range(len(distance)), key=lambda j: (-distance[j], j))
    return sorted(j + 1 for j in ranked[: budget - 1])


def fixed_cuts(patches: int, budget: int) -> list[int]:
    """Evenly spaced."""
    return [i * patches // budget for i in range(1, budget)]


class Height(NamedTuple):
    """Where a boundary vanishes: at the cost of its join, or of one inside that cost more, and in which round."""

    cost: float
    round: int


def merge_cuts(heights: list[Height], budget: int) -> list[int]:
    """The highest boundaries; of equal ones the coarser, then the earlier."""
    ranked = sorted(range(1, len(heights) + 1), key=coarse_first)
    ranked.sort(key=lambda cut: heights[cut - 1], reverse=True)  # keeps the order of equal ones
    return sorted(ranked[: budget - 1])


def coarse_first(cut: int) -> tuple[int, int]:
    """Sorts cuts by the power of two that divides them, the largest first, then by position."""
    return -(cut & -cut), cut


def merge_heights(features: torch.Tensor, size_prior: float = 0.0) -> tuple[list[Height], float]:
    """Merging by its definition: the height of each of the N - 1 boundaries, and how close the closest decision was.

    In every round each pair of runs joins that is cheaper than the pairs beside it. What a join costs is taken from the
    patches themselves: how much farther from their mean they are together than apart. Costs are given as distances,
    their square roots; two that are unequal, but closer than the rounding of float32, may be decided otherwise there.
    """
    edges, found, closest, number = list(range(len(features) + 1)), {}, math.inf, -1
    while len(edges) > 2:
        costs, number = [], number + 1
        for start, cut, end in zip(edges, edges[1:], edges[2:], strict=False):
            together, apart = features[start:end], [cut - start]
            added = round(squared_error(together, []) - squared_error(together, apart), 9)  # so that what ties does
            level, position = coarse_first(cut)
            costs.append((math.sqrt(added * (end - start) ** size_prior), -level, -position))  # the finest joins first
        closest = min([closest, *(abs(one[0] - other[0]) for one, other in pairwise(costs) if one[0] != other[0])])
        for k in range(len(costs)):
            if all(costs[k] < costs[beside] for beside in (k - 1, k + 1) if 0 <= beside < len(costs)):
                inside = [found[cut].cost for cut in range(edges[k] + 1, edges[k + 2]) if cut in found]
                found[edges[k + 1]] = Height(max([costs[k][0], *inside]), number)
        edges = [edge for edge in edges if edge not in found]
    heights = [found[cut] for cut in range(1, len(features))]
    ranked = sorted({height.cost for height in heights})
    return heights, min([closest, *(other - one for one, other in pairwise(ranked))])


# What a partition loses, and how little it could lose.


def squared_error(features: torch.Tensor, cuts: list[int]) -> float:
    """The squared distances of all patches to the mean of their region."""
    return sum(((run - run.mean(axis=0)) ** 2).sum() for run in np.split(features.double().numpy(), cuts))


def sequential_cuts(features: torch.Tensor) -> dict[int, list[int]]:
    """Ward merging one pair at a time, always the cheapest of all: the cuts of every budget."""
    runs = [(mean, 1) for mean in features.double().numpy()]

    def cost(i: int) -> float:
        (mean, size), (next_mean, next_size) = runs[i], runs[i + 1]
        return size * next_size / (size + next_size) * ((mean - next_mean) ** 2).sum()

    cuts = list(range(1, len(runs)))
    costs = [cost(i) for i in range(len(cuts))]
    found = {len(runs): list(cuts)}
    while cuts:
        i = costs.index(min(costs))
        (mean, size), (next_mean, next_size) = runs[i], runs[i + 1]
        both = size + next_size
        runs[i : i + 2] = [((size * mean + next_size * next_mean) / both, both)]
        del cuts[i], costs[i]
        for beside in (i - 1, i):
            if 0 <= beside < len(costs):
                costs[beside] = cost(beside)
        found[len(runs)] = list(cuts)
    return found


def smallest_errors(features: torch.Tensor, budget: int) -> list[float]:
    """The least squared error of any 1, 2, ..., budget runs, by dynamic programming."""
    points = features.double().numpy()
    count = len(points)
    sums = np.vstack([np.zeros(points.shape[1]), points.cumsum(axis=0)])
    squares = np.concatenate([[0.0], (points**2).sum(axis=1).cumsum()])
    error = np.full((count + 1, count + 1), np.inf)  # [a, b] of the run of the positions a to b - 1
    for a in range(count):
        size = np.arange(1, count - a + 1)
        error[a, a + 1 :] = squares[a + 1 :] - squares[a] - ((sums[a + 1 :] - sums[a]) ** 2).sum(axis=1) / size
    best = error[0]  # [b] of the positions before b, in as many runs as rounds so far
    found = [best[count]]
    for _ in range(1, budget):
        best = (best[:, None] + error).min(axis=0)
        found.append(best[count])
    return found


# Read and Write, of a batch, in float64.


class Case(NamedTuple):
    """Two images with regions of their own, and a generator for whatever else a test needs."""

    height: int
    width: int
    budget: int
    regions: torch.Tensor  # (2, N)
    generator: torch.Generator

    @property
    def patches(self) -> int:
        return self.height * self.width


@st.composite
def random_regions(draw: st.DrawFn, every_patch: bool = False) -> Case:
    """Any regions of any grid to 12 x 12, none empty, few connected; or every patch a region, in any order."""
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    patches = height * width
    budget = patches if every_patch else draw(st.integers(1, patches))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(2):
        others = torch.randint(0, budget, (patches - budget,), generator=generator)
        ids = torch.cat([torch.arange(budget), others])
        rows.append(ids[torch.randperm(patches, generator=generator)])
    return Case(height, width, budget, torch.stack(rows), generator)


@torch.no_grad()
def read(
    patches: torch.Tensor, regions: torch.Tensor, budget: int, score: torch.Tensor, size_embedding: torch.Tensor
) -> torch.Tensor:
    """Eq. 3: (B, N, D) patches, (B, N) regions -> (B, R, D)."""
    tokens = torch.zeros(len(patches), budget, patches.shape[-1], dtype=torch.float64)
    for b, image in enumerate(patches.double()):
        for c in range(budget):
            members = [image[j] for j in range(len(image)) if regions[b, j] == c]
            scores = [float(score.double() @ member) for member in members]
            weights = [math.exp(s - max(scores)) for s in scores]
            for member, weight in zip(members, weights, strict=True):
                tokens[b, c] += weight / sum(weights) * member
            level = 0
            while 2 ** (level + 1) <= len(members):
                level += 1
            tokens[b, c] += size_embedding[level]
    return tokens


def mean_phasors(phasors: torch.Tensor, regions: torch.Tensor, budget: int) -> torch.Tensor:
    """(N, P) phasors of the patches, (B, N) regions -> (B, R, P)."""
    means = torch.zeros(len(regions), budget, phasors.shape[-1], dtype=torch.float64)
    for b in range(len(regions)):
        for c in range(budget):
            members = [phasors[j].double() for j in range(len(phasors)) if regions[b, j] == c]
            means[b, c] = sum(members) / len(members)
    return means


@torch.no_grad()
def write(
    patches: torch.Tensor, change: torch.Tensor, regions: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Eq. 4: (B, N, D) patches, (B, R, D) change, (B, N) regions -> (B, N, D)."""
    written = patches.double().clone()
    for b in range(patches.shape[0]):
        for j in range(patches.shape[1]):
            both = torch.cat([patches[b, j], change[b, regions[b, j]]]).double()
            written[b, j] += weight.double() @ both + bias.double()
    return written
