"""Scored runs: rows of `rti compare` as they are written to JSON, with the names of their methods and their speed-ups.

A run tells what a folder of `rti generate` was drawn with, how fast, and its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.files import read_json
from rti.lab.pictures.compare import open_row
from rti.method.reductions import REDUCTIONS, config_from_dict

Run = dict[str, Any]
AGAINST = {  # what scores are drawn against: a speed-up, known in one of three ways, or the budget
    "measured": "measured speed-up",
    "flops": "speed-up by FLOPs of the trunk",
    "tokens": "speed-up by image tokens",
    "budget": "budget R, region tokens in the core",
}
DENSE = "dense (frozen)"
_NEEDED = {"model": str, "budget": (str, int), "steps": int, "scores": dict}
_TIMED = {"model", "budget", "speedup"}
_NOT_TOLD = ("reduction", "core", "lora_rank", "lora_alpha", "text_regions")  # of a reduction, in a method's name


def read_runs(sources: Sequence[str]) -> list[Run]:
    """Runs as typed: FOLDER, or a JSON file of `rti compare --json` or of these figures; or NAME=either of them."""
    runs = []
    for source in sources:
        name, path = _named(source)
        found = _read_json(path) if path.suffix == ".json" else [open_row(path).as_dict()]
        runs += [run | {"name": name} if name else run for run in found]
    _check_alike(runs)
    titles = _titles(runs)
    return [run | {"name": title} for run, title in zip(runs, titles, strict=True)]


def _named(source: str) -> tuple[str, Path]:
    """A name, or none, and a path as typed: NAME=PATH, where that is not itself a path."""
    name, sign, path = source.partition("=")
    return (name, Path(path)) if sign and name and not Path(source).exists() else ("", Path(source))


def _read_json(path: Path) -> list[Run]:
    rows = read_json(path).get("rows")
    if not isinstance(rows, list) or not rows or not all(_is_run(row) for row in rows):
        raise InputError(f"{path} holds no scored runs; allowed: what rti compare --json prints, or a figure of runs")
    return rows


def _is_run(row: Any) -> bool:
    if not isinstance(row, dict) or not all(isinstance(row.get(name), kind) for name, kind in _NEEDED.items()):
        return False
    scores = row["scores"].values()
    return all(isinstance(score, dict) and isinstance(score.get("score"), (int, float)) for score in scores)


def _check_alike(runs: Sequence[Run]) -> None:
    """A score is of as many pictures in every run: a FID of fewer is another FID."""
    first: dict[str, Run] = {}
    for run in runs:
        for metric in run["scores"]:
            other = first.setdefault(metric, run)
            counts = [one["scores"][metric].get("pictures") for one in (other, run)]
            if counts[0] != counts[1]:
                both = f"{other.get('row')} and {run.get('row')}"
                raise InputError(f"{both} have a {metric} score of {counts[0]} and {counts[1]} pictures; score as many")


def is_dense(run: Run) -> bool:
    """Whether the frozen backbone drew it."""
    return run["budget"] == "dense"


def backbone_of(run: Run) -> str:
    return Path(str(run["model"])).name


def _titles(runs: Sequence[Run]) -> list[str]:
    """What each run's method is called: as typed, or by its reduction and the settings in which those of it differ."""
    settings = [(run.get("reduction") or {}) if not is_dense(run) else {} for run in runs]
    titles = []
    for run, mine in zip(runs, settings, strict=True):
        if is_dense(run) or run.get("name"):
            titles.append(DENSE if is_dense(run) else run["name"])
            continue
        kind = mine.get("reduction", "region")
        alike = [other for other in settings if other and other.get("reduction", "region") == kind]
        told = [
            f"{key.replace('_', ' ')} {value}"
            for key, value in mine.items()
            if key not in _NOT_TOLD and any(other.get(key) != value for other in alike)
        ]
        titles.append(", ".join([kind, *told]))
    return titles


def has_budget(run: Run) -> bool:
    """Whether its budget is worth telling; that of a method without one changes nothing."""
    kind = REDUCTIONS.get((run.get("reduction") or {}).get("reduction", "region"))
    return kind is None or kind[1].elastic


def add_speedups(runs: Sequence[Run], how: str = "measured", benches: Sequence[str] = ()) -> list[Run]:
    """Each run with its speed-up over the dense run of its backbone; None where budgets are looked at instead.

    Measured while its pictures were drawn, or by `rti bench --json` in a file ([NAME=]FILE: of that method alone); or
    by arithmetic, where a model was not timed.
    """
    if how not in AGAINST:
        raise InputError(f"against {how!r} is unknown; allowed: {', '.join(AGAINST)}")
    timed = [_read_bench(bench) for bench in benches]
    dense: dict[str, Run] = {}
    for run in runs:
        if is_dense(run) and dense.setdefault(backbone_of(run), run) is not run:
            both = f"{dense[backbone_of(run)].get('row')} and {run.get('row')}"
            raise InputError(f"{both} are both dense runs of {backbone_of(run)}; a row has all of its benchmarks")
    found = []
    for run in runs:
        base = dense.get(backbone_of(run))
        if base is None:
            raise InputError(
                f"no dense run of {backbone_of(run)} among those given; {run.get('row')} is compared to it"
            )
        if base["steps"] != run["steps"]:
            steps = f"{run['steps']} steps, its dense run {base['steps']}"
            raise InputError(f"{run.get('row')} has {steps}; give runs of as many, or see rti figure steps")
        if how == "budget":
            speedup = None
        elif run is base:
            speedup = 1.0
        else:
            speedup = round(_measured(run, base, timed) if how == "measured" else _analytic(run, how), 4)
        found.append(run | {"speedup": speedup})
    return found


def _read_bench(source: str) -> tuple[str, dict[str, Any]]:
    name, path = _named(source)
    values = read_json(path)
    rows = values.get("rows")
    told = isinstance(rows, list) and all(isinstance(row, dict) and row.keys() >= _TIMED for row in rows)
    if "benchmark" not in values or not told:
        raise InputError(f"{path} is not what rti bench --json prints")
    return name, values


def _measured(run: Run, dense: Run, timed: Sequence[tuple[str, dict[str, Any]]]) -> float:
    kind = (run.get("reduction") or {}).get("reduction", "region")
    for name, bench in timed:
        if Path(str(bench["benchmark"])).name != backbone_of(run) or name not in ("", run["name"]):
            continue
        for row in bench["rows"]:
            budgets = row["budget"] == run["budget"] or (row["budget"] != "dense" and not has_budget(run))
            if row["model"] == kind and budgets and row.get("text_budget") is None:
                return row["speedup"]
    speeds = [one.get("images_per_second") for one in (run, dense)]
    if not all(speeds):
        untimed = (run if not speeds[0] else dense).get("row")
        raise InputError(
            f"{untimed} was not timed; give --speeds with what rti bench --json prints, or --against tokens"
        )
    return speeds[0] / speeds[1]


def _analytic(run: Run, how: str) -> float:
    """By what the paper counts: FLOPs of the trunk, or image tokens alone, as in its figure of JiT."""
    import torch

    from rti import cost
    from rti.method.reductions import make_reduction

    backbone = _shape_of(str(run["model"]))
    with torch.device("meta"):
        reduction = make_reduction(config_from_dict(run.get("reduction") or {}), backbone)
    if how == "flops":
        return cost.dense_flops(backbone) / cost.reduced_flops(backbone, reduction, run["budget"])
    return backbone.patches * backbone.depth / sum(cost.tokens_per_block(backbone, reduction, run["budget"]))


@cache
def _shape_of(model: str) -> Backbone:
    """A backbone without weights where it is known by name."""
    from rti.resolve import describe

    return describe(model)[0]
