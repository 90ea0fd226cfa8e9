"""Comparing runs: the same prompts and seeds, so that what both find hard or easy cancels out.

A row is a model at a budget: a folder of `rti generate`, or a folder of such folders, one for each benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rti.errors import InputError
from rti.lab.intervals import Summary, stratified_summary
from rti.lab.pictures.folder import MANIFEST, PictureFolder, check_pair, images_per_second, manifest_differences
from rti.lab.pictures.scorers.results import METRICS, Score, means_of_groups, prompt_means, score_path, strata

Run = dict[str, Any]  # a row as `rti compare --json` prints it: what it was drawn with, how fast, its scores
_TOLD = ("model", "adapter", "budget", "steps", "guidance", "reduction", "patches")  # of a row's manifest
_OF_THE_BENCHMARK = ("prompts", "images_per_prompt", "seed", "lenient")  # may differ between the folders of a row
_OF_THE_METHOD = ("budget", "text_budget", "reduction", "adapter", "adapter_weights")  # what rows are compared for


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
    """The folders of a row with their scores. They are of one model and budget; a metric is in one of them only."""
    inside = sorted(path.glob(f"*/{MANIFEST}")) if os.path.isdir(path) else []
    manifests = [path / MANIFEST] if os.path.isfile(path / MANIFEST) else inside
    if not manifests:
        raise InputError(f"{path} is no folder of rti generate, nor does it hold any")
    folders = [PictureFolder.open(manifest.parent) for manifest in manifests]
    scored: dict[str, tuple[PictureFolder, Score]] = {}
    several: set[str] = set()
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in _TOLD:
            if name not in folder.manifest or (
                name == "reduction" and not isinstance(folder.manifest[name], dict | None)
            ):
                raise InputError(f"{manifest} is damaged: it has no usable {name}; draw the folder again")
        for name, one, other in _differences(folders[0], folder, _OF_THE_BENCHMARK):
            raise InputError(f"{folders[0].path} and {folder.path} are no single row: {name} {one} and {other}")
        for metric in METRICS:
            if not (file := score_path(folder.path, metric)).is_file():
                continue
            if metric in scored and METRICS[metric].near:  # of each benchmark apart; there is no one figure
                several.add(metric)
            elif metric in scored:
                both = f"{scored[metric][0].path} and {folder.path}"
                raise InputError(f"{both} both have a {metric} score; a row has one of each")
            scored[metric] = folder, Score.read(file)
            if scored[metric][1].digest != folder.digest:
                raise InputError(f"the {metric} score of {folder.path} is of other pictures; score it again")
    return Row(path, folders, {metric: found for metric, found in scored.items() if metric not in several})


def _differences(first: PictureFolder, second: PictureFolder, beside: Sequence[str]) -> list[tuple[str, Any, Any]]:
    found = manifest_differences(first.manifest, second.manifest)
    return [difference for difference in found if difference[0].split(".")[0] not in beside]


def compare_folders(paths: Sequence[str | Path], resamples: int = 2000, seed: int = 0) -> list[Run]:
    """A run per path, each with its `differences` to the first by metric, paired by prompt, with 95 % intervals.

    `also` lists what sets it apart from the first beside its method: not refused, but to be told.
    """
    if len(paths) < 2:
        raise InputError(f"{len(paths)} folder given; give a reference and at least one to compare with it")
    reference, *others = (open_row(Path(path)) for path in paths)
    near = {one.digest for one in reference.folders}
    for row in (reference, *others):  # how near a row is to other pictures says nothing here
        for metric, (_, score) in list(row.scored.items()):
            if METRICS[metric].near and score.scorer["digest"] not in near:
                del row.scored[metric]
    compared = all(any(METRICS[metric].near for metric in row.scored) for row in others)
    for row in others if compared else (reference, *others):
        if not row.scored:
            raise InputError(f"{row.path} was not scored; allowed: rti score fidelity {reference.path} {row.path}, ...")
    runs = [reference.as_run() | {"differences": {}, "also": []}]
    for row in others:
        shared = [metric for metric in row.scored if metric in reference.scored and not METRICS[metric].near]
        differences = {metric: _difference(metric, row, reference, resamples, seed) for metric in shared}
        expected = (*_OF_THE_METHOD, "prompts", "images_per_prompt")
        also = _differences(reference.folders[0], row.folders[0], expected)
        told = [f"{name} {one} / {other}" for name, one, other in also]
        runs.append(row.as_run() | {"differences": differences, "also": told})
    return runs


def _difference(metric: str, row: Row, reference: Row, resamples: int, seed: int) -> dict[str, Any]:
    """Row minus reference; of GenEval also of each task."""
    (folder, score), (base, other) = row.scored[metric], reference.scored[metric]
    check_pair(base, folder)
    for name, one, two in manifest_differences(other.scorer, score.scorer):
        raise InputError(f"{base.path} and {folder.path} were scored by another {metric} {name}: {one} and {two}")
    none = {"groups": {}, "group_intervals": {}}
    if not METRICS[metric].paired:
        return {"value": score.summary["score"] - other.summary["score"], "interval": None} | none
    found = paired_summary(folder, score, other, resamples, seed)
    groups = means_of_groups(found) if metric == "geneval" else none
    return {"value": found.overall, "interval": found.interval} | groups


def paired_summary(
    folder: PictureFolder, score: Score, reference: Score, resamples: int = 2000, seed: int = 0
) -> Summary:
    """Score minus reference, resampled by prompt; GenEval's within each task."""
    change = prompt_means(folder.entries, score.pictures) - prompt_means(folder.entries, reference.pictures)
    return stratified_summary(change, strata(folder.entries, score.metric == "geneval"), resamples, seed)
