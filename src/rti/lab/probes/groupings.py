"""Every reduction on the same frozen features: is it contiguous, does size follow content, what does it retain?

(paper, "Comparing the Groupings" and "Which order?")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti.adapter import Stored
from rti.backbones.base import Backbone, Tokens
from rti.errors import InputError
from rti.lab.probes import measures
from rti.lab.probes.records import rounded, run_probe, write_data
from rti.lab.probes.trajectory import Moment, Run, TrunkHook, fingerprint, middle
from rti.method.budgets import Budget, resolve_budget
from rti.method.reductions import REDUCTIONS, Reduction, make_reduction

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
    from rti.method.config import ORDER_NAMES, RegionConfig

    return [_fresh(name, RegionConfig(core=core, cuts=cuts, order=name), backbone) for name in ORDER_NAMES]


def _fresh(title: str, config: Any, backbone: Backbone) -> Row:
    config.check_fits(backbone.depth)
    with torch.random.fork_rng(devices=[]), torch.device(backbone.device):
        torch.manual_seed(0)  # a reduction with weights of its own starts from the same ones each time
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

    A row without groups keeps the tokens farthest from the mean, and only the last measurement applies to it. Writes
    NAME.jsonl, prompt by prompt, and NAME.json, and gives back the latter.
    """
    backbone = run.pipe.backbone
    regions = resolve_budget(budget, backbone.patches)
    first, last = core

    def observe(moment: Moment, found: dict[str, dict[str, list]]) -> None:
        count, tokens = moment.count, moment.seen[first]
        blocks = [after.image[:count].float() for after in moment.seen[first + 1 : last + 2]]
        detail = measures.detail(moment.estimate, backbone.patch_size)
        for row in rows:
            groups = row.groups(tokens, regions, moment.before)
            if groups is None:
                values = _measure_skip(blocks, regions)
            else:
                values = _measure(groups[:count], blocks, detail, backbone.grid)
            for key, value in values.items():
                found[row.name].setdefault(key, []).append(value)

    def measure(indices: list[int], advance: Callable[[int], object]) -> list[dict[str, Any]]:
        found: dict[str, dict[str, list]] = {row.name: {} for row in rows}
        with run.frozen() as model, torch.no_grad():
            run.follow(model, indices, TrunkHook(model), lambda one: observe(one, found), advance=advance)
        stacked = {name: {key: torch.stack(v, dim=1) for key, v in some.items()} for name, some in found.items()}
        return [
            {"rows": {name: {key: rounded(v[place]) for key, v in some.items()} for name, some in stacked.items()}}
            for place in range(len(indices))
        ]

    configs = {
        row.name: row.reduction.config.to_dict() | {"trained": fingerprint(row.reduction) if row.trained else False}
        for row in rows
    }
    settings = {"probe": name, "budget": regions, "core": [first, last], "reductions": configs}
    records = run_probe(run, folder / f"{name}.jsonl", settings, measure)
    values = settings | run.settings() | {"patches": backbone.patches, "grid": list(backbone.grid)}
    values |= {"times": run.times, "prompts": len(records)} | _summary(records, run)
    return write_data(folder / f"{name}.json", values)


def _measure(
    groups: torch.Tensor, blocks: Sequence[torch.Tensor], detail: torch.Tensor, grid: tuple[int, int]
) -> dict[str, torch.Tensor]:
    retained = torch.stack([measures.explained_variance(block, groups) for block in blocks]).mean(dim=0)
    values = {"spread": measures.spread(groups, grid), "size_detail": measures.size_detail(groups, detail)}
    if groups.ndim == 2:
        values["spread_per_patch"] = measures.spread_per_patch(groups, grid)
    return values | {"retained": retained}


def _measure_skip(blocks: Sequence[torch.Tensor], regions: int) -> dict[str, torch.Tensor]:
    return {"retained": torch.stack([measures.skip_variance(block, regions) for block in blocks]).mean(dim=0)}


def _summary(records: Sequence[dict[str, Any]], run: Run) -> dict[str, Any]:
    """Means over prompts and steps; size and detail are read mid-trajectory."""
    place = middle(run.times)
    rows = []
    for name in records[0]["rows"]:
        row: dict[str, Any] = {"name": name}
        for key in MEASURES:
            if key not in records[0]["rows"][name]:
                row |= {key: None, f"{key}_error": None}
                continue
            values = np.array([record["rows"][name][key] for record in records])  # (prompts, watched)
            by_prompt = values[:, place] if key == "size_detail" else values.mean(axis=1)
            error = by_prompt.std(ddof=1) / len(by_prompt) ** 0.5 if len(by_prompt) > 1 else None
            row |= {key: rounded(by_prompt.mean()), f"{key}_error": None if error is None else rounded(error)}
            row[f"{key}_by_step"] = rounded(values.mean(axis=0))
        rows.append(row)
    return {"middle_time": run.times[place], "rows": rows}
