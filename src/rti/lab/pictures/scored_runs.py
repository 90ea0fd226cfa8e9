"""Scored runs, for figures: rows of `rti compare` with the names of their methods and their speed-ups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rti import cost
from rti.errors import InputError, check_choice
from rti.lab.pictures.compare import Run, open_row
from rti.method.reductions import REDUCTIONS, config_from_dict, make_reduction
from rti.resolve import describe

AGAINST = {  # what scores are drawn against: a speed-up, known in one of three ways, the budget, or the time
    "measured": "measured speed-up",
    "flops": "speed-up by FLOPs of the trunk",
    "tokens": "speed-up by image tokens",
    "budget": "budget R, region tokens in the core",
    "seconds": "seconds a picture",
}
DENSE = "dense (frozen)"
_NOT_TOLD = ("reduction", "core", "lora_rank", "lora_alpha", "text_regions")  # of a reduction, in a method's name


def is_dense(run: Run) -> bool:
    """Whether the frozen backbone drew it."""
    return run["budget"] == "dense"


def backbone_of(run: Run) -> str:
    return Path(str(run["model"])).name


def _method(run: Run) -> str:
    return (run["reduction"] or {}).get("reduction", "region")


def has_budget(run: Run) -> bool:
    """Whether its budget is worth telling; that of a method without one changes nothing."""
    return not is_dense(run) and (_method(run) not in REDUCTIONS or REDUCTIONS[_method(run)][1].elastic)


def read_runs(sources: Sequence[str]) -> list[Run]:
    """Runs as typed: FOLDER, or NAME=FOLDER, where that is not itself a folder."""
    runs: list[Run] = []
    for source in sources:
        name, _, path = source.partition("=")
        if not path or Path(source).exists():
            name, path = "", source
        if path.endswith(".json"):
            raise InputError(f"{path} is no folder; figures are of scored folders, the file names them as its rows")
        runs.append(open_row(Path(path)).as_run() | ({"name": name} if name else {}))
    first: dict[str, Run] = {}
    for run in runs:  # a score is of as many pictures in every run: a FID of fewer is another FID
        for metric, score in run["scores"].items():
            other = first.setdefault(metric, run)
            counts = other["scores"][metric].get("pictures"), score.get("pictures")
            if counts[0] != counts[1]:
                both = f"{other['row']} and {run['row']}"
                raise InputError(f"{both} have a {metric} score of {counts[0]} and {counts[1]} pictures; score as many")
    return [run | {"name": _title(run, runs)} for run in runs]


def _title(run: Run, runs: Sequence[Run]) -> str:
    """What its method is called: as typed, or by its reduction and the settings in which others of it differ."""
    if is_dense(run) or run.get("name"):
        return DENSE if is_dense(run) else run["name"]
    alike = [other["reduction"] or {} for other in runs if not is_dense(other) and _method(other) == _method(run)]
    told = [
        f"{key.replace('_', ' ')} {value}"
        for key, value in (run["reduction"] or {}).items()
        if key not in _NOT_TOLD and any(other and other.get(key) != value for other in alike)
    ]
    return ", ".join([_method(run), *told])


def add_speedups(runs: Sequence[Run], how: str = "measured") -> list[Run]:
    """Each run with its speed-up over the dense run of its backbone; None where budgets or times are looked at instead.

    Measured while its pictures were drawn, or by arithmetic, where a model was not timed.
    """
    check_choice("against", how, AGAINST)
    if how == "seconds":
        if len({(backbone_of(run), run["steps"]) for run in runs}) < 2:
            raise InputError(f"all runs have {runs[0]['steps']} steps; give runs of several, by rti generate --steps")
        return [run | {"speedup": None} for run in runs if _speed(run, "draw it again by rti generate, which does")]
    dense: dict[str, Run] = {}
    for run in filter(is_dense, runs):
        if (base := dense.setdefault(backbone_of(run), run)) is not run:
            both = f"{base['row']} and {run['row']}"
            raise InputError(f"{both} are both dense runs of {backbone_of(run)}; a row has all of its benchmarks")
    return [run | {"speedup": _speedup(run, dense.get(backbone_of(run)), how)} for run in runs]


def _speedup(run: Run, dense: Run | None, how: str) -> float | None:
    if dense is None:
        raise InputError(f"no dense run of {backbone_of(run)} among those given; {run['row']} is compared to it")
    if dense["steps"] != run["steps"]:
        steps = f"{run['steps']} steps, its dense run {dense['steps']}"
        raise InputError(f"{run['row']} has {steps}; give runs of as many, or --against seconds")
    if how == "budget" or run is dense:
        return None if how == "budget" else 1.0
    if how == "measured":
        instead = "give --against tokens, or draw it again by rti generate, which does"
        return round(_speed(run, instead) / _speed(dense, instead), 4)
    # By what the paper counts: FLOPs of the trunk, or image tokens alone, as in its figure of JiT.
    backbone = describe(str(run["model"]))[0]
    with torch.device("meta"):
        reduction = make_reduction(config_from_dict(run["reduction"] or {}), backbone)
    if how == "flops":
        return round(cost.dense_flops(backbone) / cost.reduced_flops(backbone, reduction, run["budget"]), 4)
    tokens = sum(cost.tokens_per_block(backbone, reduction, run["budget"]))
    return round(backbone.patches * backbone.depth / tokens, 4)


def _speed(run: Run, instead: str) -> float:
    if not run["images_per_second"]:
        raise InputError(f"{run['row']} was not timed; {instead}")
    return run["images_per_second"]
