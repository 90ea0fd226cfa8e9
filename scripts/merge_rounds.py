"""Whether the rounds of merging are enough: the regions after a bounded number of rounds, and those of the whole tree.

    python scripts/merge_rounds.py [--photographs FOLDER] [--random 1000] [--real 200]

Each picture has 1024 patches. Random ones are noise, every other one with shades and noise upon them; real ones are
pixels of crops of the photographs (scripts/photographs.py makes such a folder). A row per kind, size prior and budget:
the share of pictures whose rounds were provably enough, the share with the same regions as the whole tree, and how much
more of the variance the others lose at worst (less than nothing: they lose less).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from rti.backbones.layers import patchify
from rti.data.photographs import PhotographSource
from rti.method.merge import merge_tree, most_rounds
from rti.method.order import order
from rti.method.partition import partition

SIDE, BUDGETS, PRIORS = 32, (512, 256, 128, 64, 32), (0.0, 0.5)


def random_features(count: int) -> Iterator[torch.Tensor]:
    """(1, N, 32) along the walk."""
    walk = order("hilbert", SIDE, SIDE)[0]
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        features = torch.randn(1, 32, SIDE, SIDE, generator=generator)
        if number % 2:
            shades = torch.randn(1, 32, 5, 5, generator=generator)
            features = 0.5 * features + 2 * F.interpolate(shades, (SIDE, SIDE), mode="bicubic")
        yield features.flatten(2).transpose(1, 2)[:, walk]


def real_features(folder: str, count: int) -> Iterator[torch.Tensor]:
    """(1, N, 768) along the walk: what an estimate of 512 x 512 pixels is cut by."""
    walk, source = order("hilbert", SIDE, SIDE)[0], PhotographSource(folder, (512, 512))
    for number in range(count):
        yield patchify(source[number].image[None], 16)[:, walk]


def lost(features: torch.Tensor, regions: torch.Tensor) -> float:
    """The share of the variance within regions: (1, N, d), (1, N)."""
    member = F.one_hot(regions[0]).double()
    points = features[0].double() - features[0].double().mean(dim=0)
    means = (member.T @ points) / member.sum(dim=0)[:, None]
    return float((points - means[regions[0]]).square().sum() / points.square().sum())


def cut(ranked: torch.Tensor, budget: int) -> torch.Tensor:
    starts = torch.zeros(1, SIDE * SIDE, dtype=torch.int64)
    starts[0, ranked[0, : budget - 1] + 1] = 1
    return starts.cumsum(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs")
    parser.add_argument("--random", type=int, default=1000)
    parser.add_argument("--real", type=int, default=200)
    options = parser.parse_args()
    kinds = {"random": random_features(options.random)}
    if options.photographs:
        kinds["real"] = real_features(options.photographs, options.real)
    print(
        "| kind | prior | budget | rounds | enough | same regions | worst loss beyond |\n|---|---|---|---|---|---|---|"
    )
    for kind, pictures in kinds.items():
        found: dict[tuple[float, int], list[tuple[bool, bool, float]]] = {}
        for features in pictures:
            for prior in PRIORS:
                whole = merge_tree(features, prior).ranked()
                for budget in BUDGETS:
                    enough = bool(merge_tree(features, prior, budget).settled(budget))
                    ours, best = partition(features, budget, "merge", prior), cut(whole, budget)
                    same = torch.equal(ours, best)
                    more = 0.0 if same else lost(features, ours) - lost(features, best)
                    found.setdefault((prior, budget), []).append((enough, same, more))
        for (prior, budget), rows in found.items():
            enough, same, more = zip(*rows, strict=True)
            rounds = most_rounds(SIDE * SIDE, budget, prior)
            print(
                f"| {kind} {len(rows)} | {prior} | {budget} | {rounds} | {sum(enough) / len(rows):.1%} "
                f"| {sum(same) / len(rows):.1%} | {max(more, key=abs):+.5f} |"
            )


if __name__ == "__main__":
    main()
