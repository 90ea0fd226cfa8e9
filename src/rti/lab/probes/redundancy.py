"""Where a frozen model's tokens are redundant: in space, over sampling, and through the depth (paper, Figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rti.errors import check_choice
from rti.lab.probes import measures
from rti.lab.probes.records import Probe, rounded, run_probe, standard_error
from rti.lab.probes.trajectory import Moment, Run
from rti.method.budgets import Budget, resolve_budget
from rti.method.config import CUT_NAMES, ReductionConfig
from rti.method.order import order
from rti.method.partition import partition

# Cut by content where the core starts, as at inference; anew at each block; evenly spaced; the rest becomes the mean.
KINDS = ("adaptive", "anew", "fixed", "skip")
NEAR_PEAK = 0.96  # a block belongs to the core if it keeps this share of what the best block keeps
SHALLOW = 0.05  # a profile that varies by less says nothing about where the core should be


def probe_redundancy(
    run: Run, folder: Path, core: tuple[int, int], budget: Budget = 0.25, cuts: str = "gaps"
) -> dict[str, Any]:
    """EV of every block at every watched step for each of `KINDS`, and the Lorenz curve of the pictures drawn."""
    check_choice("cuts", cuts, CUT_NAMES)
    backbone = run.pipe.backbone
    regions = resolve_budget(budget, backbone.patches)
    first, last = ReductionConfig(core).core
    ReductionConfig(core).check_fits(backbone.depth)
    walk, position = (one.to(backbone.device) for one in order("hilbert", *backbone.grid))

    def cut(tokens: torch.Tensor, rule: str) -> torch.Tensor:
        return partition(tokens[:, walk], regions, rule)[:, position]

    def measure(moment: Moment) -> dict[str, torch.Tensor]:
        images = [tokens.image[: moment.count].float() for tokens in moment.seen]
        at_start, even = cut(images[first], cuts), cut(images[0], "fixed")
        blocks = []
        for before, after in pairwise(images):
            kept = [measures.explained_variance(after, groups) for groups in (at_start, cut(before, cuts), even)]
            blocks.append(torch.stack([*kept, measures.skip_variance(after, regions)]))
        return dict(zip(KINDS, torch.stack(blocks, dim=2), strict=True))  # (count, depth) each

    def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Means over prompts: by block over all steps, by step at the middle block, and of the Lorenz curves."""
        middle = backbone.depth // 2
        arrays = {kind: np.array([record[kind] for record in records]) for kind in KINDS}  # (prompts, watched, depth)
        by_block = {kind: rounded(array.mean(axis=(0, 1))) for kind, array in arrays.items()}
        proposal = propose_core(by_block["adaptive"])
        curve = np.mean([record["lorenz"] for record in records], axis=0)
        return {
            "middle_block": middle,
            "image_size": list(backbone.image_size),
            "by_block": by_block,
            "by_block_error": {kind: standard_error(array.mean(axis=1)) for kind, array in arrays.items()},
            "by_step": {kind: rounded(array[:, :, middle].mean(axis=0)) for kind, array in arrays.items()},
            "by_step_error": {kind: standard_error(array[:, :, middle]) for kind, array in arrays.items()},
            "lorenz": {
                "share_of_patches": [place / measures.POINTS for place in range(measures.POINTS + 1)],
                "share_of_detail": rounded(curve),
                "in_top_15_percent": round(float(measures.share_in_top(curve, 0.15)), 4),
                "in_top_half": round(float(measures.share_in_top(curve, 0.5)), 4),
                "patches_for_half": round(measures.patches_for(curve, 0.5), 4),
            },
            "proposed_core": list(proposal.span),
            "why": proposal.why,
        }

    def lorenz(drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"lorenz": measures.lorenz_points(measures.detail(drawn, backbone.patch_size))}

    settings = {"budget": regions, "core": [first, last], "cuts": cuts, "order": "hilbert"}
    return run_probe(run, folder, Probe("redundancy", settings, measure, summary, lorenz))


class Core(NamedTuple):
    span: tuple[int, int]
    why: str


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
    for block in sorted(outside, key=lambda block: profile[block] >= least):
        reason = f"keeps {profile[block]:.3f}" if profile[block] < least else "is an end of the trunk"
        why += f"; block {block} {reason}"
    if max(profile) - min(profile) < SHALLOW:
        why += f"; the profile is shallow ({min(profile):.3f} to {max(profile):.3f}), so it leaves the core free"
    return Core((first, last), why)
