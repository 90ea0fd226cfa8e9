"""Where a frozen model's tokens are redundant: in space, over sampling, and through the depth (paper, Figure 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rti.backbones.base import Backbone
from rti.lab.probes import measures
from rti.lab.probes.records import rounded, run_probe, write_data
from rti.lab.probes.trajectory import Moment, Run, TrunkHook
from rti.method.budgets import Budget, resolve_budget
from rti.method.config import ReductionConfig
from rti.method.order import order
from rti.method.partition import partition

KINDS = {
    "adaptive": "cut by content where the core starts, as at inference",
    "anew": "cut by content anew at each block",
    "fixed": "evenly spaced cuts",
    "skip": "the tokens farthest from the mean, the rest the mean",
}
POINTS = 100  # of a Lorenz curve, evenly spaced
NEAR_PEAK = 0.96  # a block belongs to the core if it keeps this share of what the best block keeps
SHALLOW = 0.05  # a profile that varies by less says nothing about where the core should be


class Core(NamedTuple):
    span: tuple[int, int]
    why: str


def probe_redundancy(
    run: Run, folder: Path, core: tuple[int, int], budget: Budget = 0.25, cuts: str = "gaps"
) -> dict[str, Any]:
    """EV of every block at every watched step for each of `KINDS`, and the Lorenz curve of the pictures drawn.

    Writes redundancy.jsonl, prompt by prompt, and redundancy.json, and gives back the latter.
    """
    backbone = run.pipe.backbone
    regions = resolve_budget(budget, backbone.patches)
    first, last = ReductionConfig(core).core
    ReductionConfig(core).check_fits(backbone.depth)
    walk, position = (one.to(backbone.device) for one in order("hilbert", *backbone.grid))

    def cut(tokens: torch.Tensor, rule: str) -> torch.Tensor:
        return partition(tokens[:, walk], regions, rule)[:, position]

    def observe(moment: Moment, found: dict[str, list]) -> None:
        images = [tokens.image[: moment.count].float() for tokens in moment.seen]
        at_start, even = cut(images[first], cuts), cut(images[0], "fixed")
        values = {kind: [] for kind in KINDS}
        for before, after in pairwise(images):
            values["adaptive"].append(measures.explained_variance(after, at_start))
            values["anew"].append(measures.explained_variance(after, cut(before, cuts)))
            values["fixed"].append(measures.explained_variance(after, even))
            values["skip"].append(measures.skip_variance(after, regions))
        for kind, blocks in values.items():
            found[kind].append(torch.stack(blocks, dim=1))  # (count, depth)

    def measure(indices: list[int], advance: Callable[[int], object]) -> list[dict[str, Any]]:
        found: dict[str, list] = {kind: [] for kind in KINDS}
        with run.frozen() as model:
            drawn = run.follow(model, indices, TrunkHook(model), lambda one: observe(one, found), advance=advance)
        curves = points_of(measures.lorenz(measures.detail(drawn, backbone.patch_size)))
        by_prompt = {kind: torch.stack(steps, dim=1) for kind, steps in found.items()}  # (count, watched, depth)
        return [
            {kind: rounded(values[place]) for kind, values in by_prompt.items()} | {"lorenz": rounded(curves[place])}
            for place in range(len(indices))
        ]

    settings = {"probe": "redundancy", "budget": regions, "core": [first, last], "cuts": cuts, "order": "hilbert"}
    records = run_probe(run, folder / "redundancy.jsonl", settings, measure)
    values = settings | run.settings() | summary(records, run, backbone)
    return write_data(folder / "redundancy.json", values)


def summary(records: Sequence[dict[str, Any]], run: Run, backbone: Backbone) -> dict[str, Any]:
    """Means over prompts: by block over all steps, by step at the middle block, and of the Lorenz curves."""
    middle = backbone.depth // 2
    arrays = {kind: np.array([record[kind] for record in records]) for kind in KINDS}  # (prompts, watched, depth)
    by_block = {kind: rounded(array.mean(axis=(0, 1))) for kind, array in arrays.items()}
    proposal = propose_core(by_block["adaptive"])
    return {
        "patches": backbone.patches,
        "prompts": len(records),
        "times": run.times,
        "middle_block": middle,
        "image_size": list(backbone.image_size),
        "by_block": by_block,
        "by_block_error": {kind: standard_error(array.mean(axis=1)) for kind, array in arrays.items()},
        "by_step": {kind: rounded(array[:, :, middle].mean(axis=0)) for kind, array in arrays.items()},
        "by_step_error": {kind: standard_error(array[:, :, middle]) for kind, array in arrays.items()},
        "lorenz": lorenz_summary([record["lorenz"] for record in records]),
        "proposed_core": list(proposal.span),
        "why": proposal.why,
    }


def propose_core(profile: Sequence[float]) -> Core:
    """The run of blocks around the best one that keep nearly as much as it does; never the first or the last block.

    On the paper's profile of MiniT2I-B/16 it is the paper's core, blocks 3 to 13.
    """
    inner = range(1, len(profile) - 1) if len(profile) > 2 else range(len(profile))
    peak = max(inner, key=lambda block: profile[block])
    least = NEAR_PEAK * profile[peak]
    first = last = peak
    while first - 1 in inner and profile[first - 1] >= least:
        first -= 1
    while last + 1 in inner and profile[last + 1] >= least:
        last += 1
    why = f"block {peak} keeps most of its variance, {profile[peak]:.3f}; "
    why += f"blocks {first} to {last} keep at least {100 * NEAR_PEAK:.0f} % of that ({least:.3f})"
    outside = [block for block in (first - 1, last + 1) if 0 <= block < len(profile)]
    below = [f"block {block} keeps {profile[block]:.3f}" for block in outside if profile[block] < least]
    ends = [f"block {block} is an end of the trunk" for block in outside if profile[block] >= least]
    why += "".join(f"; {reason}" for reason in (*below, *ends))
    if max(profile) - min(profile) < SHALLOW:
        why += f"; the profile is shallow ({min(profile):.3f} to {max(profile):.3f}), so it leaves the core free"
    return Core((first, last), why)


def points_of(curves: torch.Tensor) -> torch.Tensor:
    """Lorenz curves at evenly spaced shares of the patches: (B, N + 1) -> (B, POINTS + 1)."""
    shares = [place / POINTS for place in range(POINTS + 1)]
    return torch.tensor([[measures.share_in_top(curve, share) for share in shares] for curve in curves]).double()


def lorenz_summary(curves: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The mean of Lorenz curves, and what the paper reads off it."""
    mean = torch.tensor(np.array(curves)).mean(dim=0)
    return {
        "share_of_patches": [place / POINTS for place in range(POINTS + 1)],
        "share_of_detail": rounded(mean),
        "in_top_15_percent": round(measures.share_in_top(mean, 0.15), 4),
        "in_top_half": round(measures.share_in_top(mean, 0.5), 4),
        "patches_for_half": round(measures.patches_for(mean, 0.5), 4),
    }


def standard_error(values: np.ndarray) -> list[float] | None:
    """The standard error of the mean over prompts, the first axis."""
    if len(values) < 2:
        return None
    return rounded(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
