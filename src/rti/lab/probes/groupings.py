"""Every reduction on the same frozen features: is it contiguous, does size follow content, what does it retain?

(paper, "Comparing the Groupings" and "Which order?")
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti.adapter import Stored
from rti.backbones.base import Backbone, Tokens
from rti.checkpoint import weights_digest
from rti.errors import InputError
from rti.lab.probes import measures
from rti.lab.probes.records import Probe, rounded, run_probe, standard_error
from rti.lab.probes.trajectory import Moment, Run
from rti.method.budgets import Budget, resolve_budget
from rti.method.config import ORDER_NAMES, RegionConfig
from rti.method.reductions import REDUCTIONS, Reduction, make_reduction
from rti.seeds import seeded

MEASURES = ("spread", "spread_per_patch", "size_detail", "retained")

# Settings of a reduction that are worth a row of their own; every other reduction has one row, as it comes.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "region": {
        "gaps of the features (paper)": {"cuts": "gaps"},
        "merge on the features": {"cuts": "merge"},
        "merge on the estimate (ours)": {"cuts": "merge", "cuts_from": "estimate"},
        "fixed boundaries": {"cuts": "fixed"},
    }
}


@dataclass(frozen=True)
class Row:
    """A reduction to measure. `trained`: its weights are those of an adapter, where it has any."""

    name: str
    reduction: Reduction
    trained: bool = False

    def groups(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None) -> torch.Tensor | None:
        """Soft groups where the reduction has them, else hard ones, else None: it forms no groups."""
        weights = self.reduction.weights(tokens, budget, estimate)
        if weights is not None:
            return weights
        try:
            return self.reduction.regions(tokens, budget, estimate)
        except (InputError, NotImplementedError):
            return None


def grouping_rows(backbone: Backbone, core: tuple[int, int], adapters: dict[str, Path] | None = None) -> list[Row]:
    """Every reduction there is, in its variants, fresh; and those of adapters, with their trained weights.

    An adapter called like a row takes that row's place.
    """
    rows = {}
    for name, (config, _) in REDUCTIONS.items():
        for title, settings in VARIANTS.get(name, {" ".join(re.split("[-_]", name)): {}}).items():
            row = _fresh(title, config(core=core, **settings), backbone)
            if min(row.reduction.core_tokens(1)) < backbone.patches:  # what runs on all patches groups nothing
                rows[title] = row
    for title, folder in (adapters or {}).items():
        rows[title] = Row(title, _trained(folder, backbone, core), True)
    return list(rows.values())


def order_rows(backbone: Backbone, core: tuple[int, int], cuts: str = "gaps") -> list[Row]:
    """The region partition on each of the three orders."""
    return [_fresh(name, RegionConfig(core=core, cuts=cuts, order=name), backbone) for name in ORDER_NAMES]


def _fresh(title: str, config: Any, backbone: Backbone) -> Row:
    config.check_fits(backbone.depth)
    with seeded(0), torch.device(backbone.device):  # one with weights of its own starts from the same ones each time
        return Row(title, make_reduction(config, backbone).to(backbone.dtype).eval())


def _trained(folder: Path, backbone: Backbone, core: tuple[int, int]) -> Reduction:
    """The reduction of an adapter with its weights, and without its LoRA: the features are the frozen model's."""
    stored = Stored.open(folder)
    config = stored.config
    if config.core != tuple(core):
        raise InputError(f"{folder} has the core {config.core}, the others {tuple(core)}; give --core to match")
    reduction = make_reduction(config, backbone).to(backbone.device, backbone.dtype)
    stored.put_interface(reduction, stored.weights()[1])
    return reduction.eval()


def probe_groupings(
    run: Run, folder: Path, rows: Sequence[Row], core: tuple[int, int], budget: Budget = 0.25, name: str = "groupings"
) -> dict[str, Any]:
    """Measure every row on the tokens that enter the core, and what it retains of each block of the core.

    A row without groups keeps the tokens farthest from the mean, and only the last measurement applies to it.
    """
    backbone = run.pipe.backbone
    regions = resolve_budget(budget, backbone.patches)
    first, last = core

    def measure(moment: Moment) -> dict[str, Any]:
        tokens, count = moment.seen[first], moment.count
        blocks = [after.image[:count].float() for after in moment.seen[first + 1 : last + 2]]
        detail = measures.detail(moment.estimate, backbone.patch_size)
        found = {}
        for row in rows:
            groups, values = row.groups(tokens, regions, moment.before), {}
            if groups is None:
                retained = [measures.skip_variance(block, regions) for block in blocks]
            else:
                groups = groups[:count]
                retained = [measures.explained_variance(block, groups) for block in blocks]
                values["spread"] = measures.spread(groups, backbone.grid)
                values["size_detail"] = measures.size_detail(groups, detail)
                if groups.ndim == 2:
                    values["spread_per_patch"] = measures.spread_per_patch(groups, backbone.grid)
            found[row.name] = values | {"retained": torch.stack(retained).mean(dim=0)}
        return {"rows": found}

    def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        shown = [_summary(row.name, [record["rows"][row.name] for record in records], run.middle) for row in rows]
        return {"grid": list(backbone.grid), "middle_time": run.times[run.middle], "rows": shown}

    configs = {
        row.name: row.reduction.config.to_dict() | {"trained": weights_digest(row.reduction) if row.trained else False}
        for row in rows
    }
    settings = {"budget": regions, "core": [first, last], "reductions": configs}
    return run_probe(run, folder, Probe(name, settings, measure, summary))


def _summary(name: str, found: Sequence[dict[str, Any]], middle: int) -> dict[str, Any]:
    """Means of one row over prompts and steps; size and detail are read mid-trajectory."""
    row: dict[str, Any] = {"name": name}
    for key in MEASURES:
        if key not in found[0]:
            row |= {key: None, f"{key}_error": None}
            continue
        values = np.array([one[key] for one in found])  # (prompts, watched)
        by_prompt = values[:, middle] if key == "size_detail" else values.mean(axis=1)
        row |= {key: rounded(by_prompt.mean()), f"{key}_error": standard_error(by_prompt)}
        row[f"{key}_by_step"] = rounded(values.mean(axis=0))
    return row
