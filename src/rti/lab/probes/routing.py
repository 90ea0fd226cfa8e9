"""Where a trained partition puts its regions while a picture forms (paper, "Following the Trained Partition")."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti.lab.probes import measures
from rti.lab.probes.records import Probe, rounded, run_probe
from rti.lab.probes.trajectory import Moment, Run
from rti.method.budgets import Budget, resolve_budget

LEAST_SHARE = 0.01  # of all patches: a detail ratio of fewer is not reported


def probe_routing(run: Run, folder: Path, budgets: Sequence[Budget]) -> dict[str, Any]:
    """Detail ratio of fine to coarse regions, size-detail correlation and size entropy, by budget and watched step."""
    backbone, config = run.pipe.backbone, run.trained.config
    wanted = list(dict.fromkeys(resolve_budget(budget, backbone.patches) for budget in budgets))

    def measure(moment: Moment) -> dict[str, torch.Tensor]:
        regions = moment.seen[: moment.count]
        detail = measures.detail(moment.estimate, backbone.patch_size)
        values = {"entropy": measures.size_entropy(regions), "size_detail": measures.size_detail(regions, detail)}
        return values | measures.fine_and_coarse(regions, detail)

    def row(records: Sequence[dict[str, Any]], budget: int) -> dict[str, Any]:
        """One budget: means over prompts, by step, and the correlation mid-trajectory."""
        found = [record["budgets"][str(budget)] for record in records]
        some = {key: np.array([one[key] for one in found]) for key in found[0]}  # (prompts, watched)
        patches = len(records) * backbone.patches
        fine, coarse = (some[f"{kind}_patches"].sum(axis=0) / patches for kind in ("fine", "coarse"))
        ratios = []
        for step, least in enumerate(np.minimum(fine, coarse)):
            ratio = measures.detail_ratio({key: some[key][:, step] for key in measures.SUMS})
            ratios.append(rounded(ratio) if ratio and least >= LEAST_SHARE else None)
        size_detail = some["size_detail"].mean(axis=0)
        return {
            "budget": budget,
            "detail_ratio": ratios,
            "size_detail": rounded(size_detail),
            "size_detail_middle": rounded(size_detail[run.middle]),
            "entropy": rounded(some["entropy"].mean(axis=0)),
            "fine_share": rounded(fine),
            "coarse_share": rounded(coarse),
        }

    def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"middle_time": run.times[run.middle], "rows": [row(records, budget) for budget in wanted]}

    settings = {"budgets": wanted, "reduction": config.to_dict()}
    return run_probe(run, folder, Probe("routing", settings, measure, summary, budgets=wanted))
