"""Comparing runs: the same prompts and seeds, so that what both find hard or easy cancels out.

A row is a model at a budget: a folder of `rti generate`, or a folder of such folders, one for each benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rti.errors import InputError
from rti.lab.intervals import Summary, as_list, stratified_summary
from rti.lab.pictures.folder import MANIFEST, PictureFolder, images_per_second, manifest_differences
from rti.lab.pictures.scorers.results import METRICS, Score, prompt_means, score_path, strata

Run = dict[str, Any]  # a row as `rti compare --json` prints it: what it was drawn with, how fast, its scores
_TOLD = ("model", "adapter", "budget", "steps", "guidance", "reduction", "patches")  # of a row's manifest
_OF_THE_BENCHMARK = ("prompts", "images_per_prompt", "seed", "lenient")  # may differ between the folders of a row
_OF_THE_METHOD = ("budget", "guidance_budget", "text_budget", "reduction", "adapter")  # what rows are compared for


class Row(NamedTuple):
    """The folders of a row, and by metric its score and the folder that has it."""

    path: Path
    folders: list[PictureFolder]
    scored: dict[str, tuple[PictureFolder, Score]]

    def as_run(self) -> Run:
        """Ready for JSON."""
        run = {"row": str(self.path), "folders": [str(folder.path) for folder in self.folders]}
        run |= {name: self.folders[0].manifest[name] for name in _TOLD}
        scores = {metric: self.scored[metric][1].summary for metric in METRICS if metric in self.scored}
        return run | {"images_per_second": images_per_second(self.folders[0].path), "scores": scores}


def open_row(path: Path) -> Row:
    """The folders of a row with their scores. A metric may be in one of them only."""
    paths = [path] if os.path.isfile(path / MANIFEST) else []
    if not paths and os.path.isdir(path):
        paths = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
    if not paths:
        raise InputError(f"{path} is no folder of rti generate, nor does it hold any")
    folders = [PictureFolder.open(one) for one in paths]
    scored: dict[str, tuple[PictureFolder, Score]] = {}
    for folder in folders:
        _check_manifest(folder, folders[0])
        for metric in METRICS:
            file = score_path(folder.path, metric)
            if not file.is_file():
                continue
            score = Score.read(file)
            if score.digest != folder.digest:
                raise InputError(f"the {metric} score of {folder.path} is of other pictures; score it again")
            if metric in scored:
                both = f"{scored[metric][0].path} and {folder.path}"
                raise InputError(f"{both} both have a {metric} score; a row has one of each")
            scored[metric] = folder, score
    if not scored:
        raise InputError(f"{path} was not scored; allowed: rti score {'|'.join(METRICS)} FOLDER")
    return Row(path, folders, scored)


def _check_manifest(folder: PictureFolder, first: PictureFolder) -> None:
    """Refuse a manifest without what a row tells, or of another model or budget than the first of its row."""
    found = folder.manifest
    missing = [name for name in _TOLD if name not in found]
    if missing or not isinstance(found["reduction"], (dict, type(None))):
        what = f"lacks {missing[0]}" if missing else f"has the reduction {found['reduction']!r}"
        raise InputError(f"{folder.path / MANIFEST} is damaged: it {what}; draw the folder again")
    for name, one, other in _differences(first, folder, _OF_THE_BENCHMARK):
        raise InputError(f"{first.path} and {folder.path} are no single row: {name} {one} and {other}")


def _differences(first: PictureFolder, second: PictureFolder, beside: Sequence[str]) -> list[tuple[str, Any, Any]]:
    found = manifest_differences(first.manifest, second.manifest)
    return [difference for difference in found if difference[0].split(".")[0] not in beside]


def compare_folders(paths: Sequence[str | Path], resamples: int = 2000, seed: int = 0) -> list[Run]:
    """A run per path, each with its `differences` to the first by metric, paired by prompt, with 95 % intervals.

    `also` lists what sets it apart from the first beside its method: not refused, but to be told.
    """
    if len(paths) < 2:
        raise InputError(f"{len(paths)} folder given; give a reference and at least one to compare with it")
    rows = [open_row(Path(path)) for path in paths]
    runs = [rows[0].as_run() | {"differences": {}, "also": []}]
    for row in rows[1:]:
        shared = [metric for metric in row.scored if metric in rows[0].scored]
        differences = {metric: _difference(metric, row, rows[0], resamples, seed) for metric in shared}
        expected = (*_OF_THE_METHOD, "prompts", "images_per_prompt")
        also = [
            f"{name} {one} / {other}" for name, one, other in _differences(rows[0].folders[0], row.folders[0], expected)
        ]
        runs.append(row.as_run() | {"differences": differences, "also": also})
    return runs


def _difference(metric: str, row: Row, reference: Row, resamples: int, seed: int) -> dict[str, Any]:
    """Row minus reference; of GenEval also of each task."""
    (folder, score), (base, other) = row.scored[metric], reference.scored[metric]
    check_pair(base, folder)
    for name, one, two in manifest_differences(other.scorer, score.scorer):
        raise InputError(f"{base.path} and {folder.path} were scored by another {metric} {name}: {one} and {two}")
    if not METRICS[metric].paired:
        value = score.summary["score"] - other.summary["score"]
        return {"value": value, "interval": None, "groups": {}, "group_intervals": {}}
    found = paired_summary(folder, score, other, resamples, seed)
    groups = found.means if metric == "geneval" else {}
    intervals = {name: as_list(found.intervals[name]) for name in groups}
    return {
        "value": found.overall,
        "interval": as_list(found.interval),
        "groups": groups,
        "group_intervals": intervals,
    }


def paired_summary(
    folder: PictureFolder, score: Score, reference: Score, resamples: int = 2000, seed: int = 0
) -> Summary:
    """Score minus reference, resampled by prompt; GenEval's within each task."""
    change = prompt_means(folder.entries, score.pictures) - prompt_means(folder.entries, reference.pictures)
    return stratified_summary(change, strata(folder.entries, score.metric == "geneval"), resamples, seed)


def check_pair(first: PictureFolder, second: PictureFolder) -> None:
    """Refuse folders whose prompts or seeds differ, and say which."""
    both = f"{first.path} and {second.path} cannot be compared"
    if len(first.entries) != len(second.entries):
        raise InputError(f"{both}: they have {len(first.entries)} and {len(second.entries)} prompts")
    for one, other in zip(first.entries, second.entries, strict=True):
        if (one.index, one.prompt, one.group) != (other.index, other.prompt, other.group):
            shown = [f"{entry.prompt!r} (number {entry.index})" for entry in (one, other)]
            raise InputError(f"{both}: prompts differ, the first are {shown[0]} and {shown[1]}")
        if len(one.seeds) != len(other.seeds):
            raise InputError(f"{both}: they have {len(one.seeds)} and {len(other.seeds)} pictures of a prompt")
        if one.seeds != other.seeds:
            seeds = " and ".join(str(folder.manifest.get("seed")) for folder in (first, second))
            raise InputError(f"{both}: seeds differ from prompt {one.index} on; the runs have seed {seeds}")
