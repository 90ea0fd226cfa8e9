"""Where a trained partition puts its regions while a picture forms (paper, "Following the Trained Partition")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti.errors import InputError
from rti.lab.probes import measures
from rti.lab.probes.records import rounded, run_probe, write_data
from rti.lab.probes.trajectory import Moment, RegionsHook, Run, middle
from rti.method.budgets import Budget, resolve_budget

SUMS = ("fine_detail", "fine_patches", "coarse_detail", "coarse_patches")
LEAST_SHARE = 0.01  # of all patches: a detail ratio of fewer is not reported


def probe_routing(run: Run, folder: Path, budgets: Sequence[Budget]) -> dict[str, Any]:
    """Detail ratio of fine to coarse regions, size-detail correlation and size entropy, by budget and watched step.

    Writes routing.jsonl, prompt by prompt, and routing.json, and gives back the latter.
    """
    elastic, backbone = run.pipe.elastic, run.pipe.backbone
    if elastic is None:
        raise InputError("routing follows a trained partition, and this model has no adapter; give --adapter FOLDER")
    wanted = list(dict.fromkeys(resolve_budget(budget, backbone.patches) for budget in budgets))

    def observe(moment: Moment, found: dict[str, list]) -> None:
        if moment.seen is None:
            raise InputError(f"the reduction {elastic.config.name!r} forms no regions, so there is nothing to follow")
        regions = moment.seen[: moment.count]
        detail = measures.detail(moment.estimate, backbone.patch_size)
        values = {"entropy": measures.size_entropy(regions), "size_detail": measures.size_detail(regions, detail)}
        for key, value in (values | measures.fine_and_coarse(regions, detail)).items():
            found.setdefault(key, []).append(value)

    def measure(indices: list[int], advance: Callable[[int], object]) -> list[dict[str, Any]]:
        by_budget = {}
        for budget in wanted:
            found: dict[str, list] = {}
            hook = RegionsHook(elastic.reduction)
            run.follow(elastic, indices, hook, lambda one, found=found: observe(one, found), budget, advance)
            by_budget[budget] = {key: torch.stack(steps, dim=1) for key, steps in found.items()}
        return [
            {"budgets": {str(b): {key: rounded(v[place]) for key, v in some.items()} for b, some in by_budget.items()}}
            for place in range(len(indices))
        ]

    settings = {"probe": "routing", "budgets": wanted, "reduction": elastic.config.to_dict()}
    records = run_probe(run, folder / "routing.jsonl", settings, measure, passes=len(wanted))
    values = settings | run.settings() | {"patches": backbone.patches, "times": run.times, "prompts": len(records)}
    values |= {"middle_time": run.times[middle(run.times)]}
    values |= {"rows": [_row(records, budget, run) for budget in wanted]}
    return write_data(folder / "routing.json", values)


def _row(records: Sequence[dict[str, Any]], budget: int, run: Run) -> dict[str, Any]:
    """One budget: means over prompts, by step, and the correlation mid-trajectory."""
    some = {key: np.array([record["budgets"][str(budget)][key] for record in records]) for key in _keys(records)}
    sums = {key: some[key].sum(axis=0) for key in SUMS}
    steps = range(len(run.times))
    ratios = [measures.ratio_of({key: float(sums[key][place]) for key in SUMS}) for place in steps]
    patches = len(records) * run.pipe.backbone.patches
    shares = {kind: sums[f"{kind}_patches"] / patches for kind in ("fine", "coarse")}
    enough = np.minimum(*shares.values()) >= LEAST_SHARE
    return {
        "budget": budget,
        "detail_ratio": [
            rounded(ratio) if some and ratio else None for ratio, some in zip(ratios, enough, strict=True)
        ],
        "size_detail": rounded(some["size_detail"].mean(axis=0)),
        "size_detail_middle": rounded(some["size_detail"].mean(axis=0)[middle(run.times)]),
        "entropy": rounded(some["entropy"].mean(axis=0)),
        "fine_share": rounded(shares["fine"]),
        "coarse_share": rounded(shares["coarse"]),
    }


def _keys(records: Sequence[dict[str, Any]]) -> list[str]:
    return list(next(iter(records[0]["budgets"].values())))
