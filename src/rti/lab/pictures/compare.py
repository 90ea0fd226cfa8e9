"""Comparing runs: the same prompts and seeds, so that what both find hard or easy cancels out.

A row is a model at a budget: a folder of `rti generate`, or a folder of such folders, one for each benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.lab.intervals import Interval, Summary, stratified_summary
from rti.lab.pictures.folder import MANIFEST, PictureFolder, images_per_second, manifest_differences
from rti.lab.pictures.scorers.results import METRICS, Score, prompt_means, strata

_SHOWN = ("model", "adapter", "budget", "steps", "guidance")  # of a row's manifest
PAIRED = ("geneval", "clip", "pick", "imagereward")  # scored picture by picture; the others only all together


@dataclass(frozen=True)
class Scored:
    """A folder, and what it was scored with."""

    folder: PictureFolder
    scores: dict[str, Score]


@dataclass(frozen=True)
class Difference:
    """Row minus reference, paired by prompt, with its 95 % interval; for GenEval also of each task."""

    value: float
    interval: Interval | None = None
    groups: dict[str, float] = field(default_factory=dict)
    group_intervals: dict[str, Interval | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table: its folders by metric, and the differences to the first row."""

    path: Path
    scored: dict[str, Scored]  # by metric
    folders: tuple[PictureFolder, ...]
    speed: float | None
    differences: dict[str, Difference] = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, Any]:
        return self.folders[0].manifest

    def score(self, metric: str) -> Score | None:
        return self.scored[metric].scores[metric] if metric in self.scored else None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        manifest = self.manifest
        values: dict[str, Any] = {"row": str(self.path), "folders": [str(folder.path) for folder in self.folders]}
        values |= {name: manifest[name] for name in _SHOWN}
        values |= {"images_per_second": self.speed}
        values["scores"] = {metric: self.score(metric).summary for metric in METRICS if metric in self.scored}
        values["differences"] = {metric: vars(change) for metric, change in self.differences.items()}
        values |= {name: manifest.get(name) for name in ("reduction", "patches")}
        return values


def compare_folders(paths: Sequence[str | Path], resamples: int = 2000, seed: int = 0) -> list[Row]:
    """A row per path; each after the first with its paired differences to the first."""
    if len(paths) < 2:
        raise InputError(f"{len(paths)} folder given; give a reference and at least one to compare with it")
    reference, *others = [open_row(Path(path)) for path in paths]
    return [reference, *(_compare(row, reference, resamples, seed) for row in others)]


def open_row(path: Path) -> Row:
    """The folders of a row with their scores. A metric may be in one of them only."""
    if os.path.isfile(path / MANIFEST):
        paths = [path]
    elif not os.path.isdir(path):
        paths = []
    else:
        paths = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
    if not paths:
        raise InputError(f"{path} is no folder of rti generate, nor does it hold any")
    folders = tuple(PictureFolder.open(one) for one in paths)
    for folder in folders:
        _check_manifest(folder)
    _check_alike(folders)
    scored: dict[str, Scored] = {}
    for folder in folders:
        scores = {metric: score for metric in METRICS if (score := Score.read(folder.path, metric)) is not None}
        for metric, score in scores.items():
            if score.digest != folder.digest:
                raise InputError(f"the {metric} score of {folder.path} is of other pictures; score it again")
            if metric in scored:
                both = f"{scored[metric].folder.path} and {folder.path}"
                raise InputError(f"{both} both have a {metric} score; a row has one of each")
            scored[metric] = Scored(folder, scores)
    if not scored:
        raise InputError(f"{path} was not scored; allowed: rti score {'|'.join(METRICS)} FOLDER")
    return Row(path, scored, folders, images_per_second(folders[0].path))


def _check_manifest(folder: PictureFolder) -> None:
    """Refuse a manifest without what a row shows."""
    found = folder.manifest
    missing = [name for name in (*_SHOWN, "patches", "reduction") if name not in found]
    if missing or not isinstance(found["reduction"], (dict, type(None))):
        what = f"lacks {missing[0]}" if missing else f"has the reduction {found['reduction']!r}"
        raise InputError(f"{folder.path / MANIFEST} is damaged: it {what}; draw the folder again")


def check_pair(first: PictureFolder, second: PictureFolder) -> None:
    """Refuse folders whose prompts or seeds differ, and say which."""
    both = f"{first.path} and {second.path} cannot be compared"
    if len(first.entries) != len(second.entries):
        raise InputError(f"{both}: they have {len(first.entries)} and {len(second.entries)} prompts")
    for one, other in zip(first.entries, second.entries, strict=True):
        if (one.index, one.prompt, one.group) != (other.index, other.prompt, other.group):
            shown = [f"{entry.prompt!r} (number {entry.index})" for entry in (one, other)]
            raise InputError(f"{both}: prompts differ, the first are {shown[0]} and {shown[1]}")
        if one.seeds != other.seeds:
            seeds = f"{_seed(first)} and {_seed(second)}"
            if len(one.seeds) != len(other.seeds):
                raise InputError(f"{both}: they have {len(one.seeds)} and {len(other.seeds)} pictures of a prompt")
            raise InputError(f"{both}: seeds differ from prompt {one.index} on; the runs have seed {seeds}")


def paired_summary(
    folder: PictureFolder, score: Score, reference: Score, resamples: int = 2000, seed: int = 0
) -> Summary:
    """Score minus reference, resampled by prompt; GenEval's within each task."""
    change = prompt_means(folder.entries, score.pictures) - prompt_means(folder.entries, reference.pictures)
    return stratified_summary(change, strata(folder.entries, score.metric == "geneval"), resamples, seed)


def _compare(row: Row, reference: Row, resamples: int, seed: int) -> Row:
    differences = {}
    for metric, scored in row.scored.items():
        if metric not in reference.scored:
            continue
        base, score = reference.scored[metric], scored.scores[metric]
        check_pair(base.folder, scored.folder)
        other = base.scores[metric]
        if score.scorer != other.scorer:
            name, one, two = manifest_differences(other.scorer, score.scorer)[0]
            where = f"{base.folder.path} and {scored.folder.path}"
            raise InputError(f"{where} were scored by another {metric} {name}: {one} and {two}")
        if metric in PAIRED:
            found = paired_summary(scored.folder, score, other, resamples, seed)
            groups = (found.means, found.intervals) if metric == "geneval" else ({}, {})
            differences[metric] = Difference(found.overall, found.interval, *groups)
        else:
            differences[metric] = Difference(score.summary["score"] - other.summary["score"])
    return Row(row.path, row.scored, row.folders, row.speed, differences)


_OF_THE_BENCHMARK = ("prompts", "images_per_prompt", "seed", "lenient")  # may differ between the folders of a row


def _check_alike(folders: Sequence[PictureFolder]) -> None:
    """The folders of a row are of one model at one budget."""
    for folder in folders[1:]:
        found = manifest_differences(folders[0].manifest, folder.manifest)
        found = [one for one in found if one[0].split(".")[0] not in _OF_THE_BENCHMARK]
        if found:
            name, one, other = found[0]
            both = f"{folders[0].path} and {folder.path}"
            raise InputError(f"{both} are no single row: {name} {one} and {other}")


def notable_differences(row: Row, reference: Row) -> list[str]:
    """What sets a row apart from the reference beside its budget: not refused, but to be told."""
    expected = ("budget", "guidance_budget", "text_budget", "reduction", "prompts", "images_per_prompt", "adapter")
    found = manifest_differences(reference.manifest, row.manifest)
    return [f"{name} {one} / {other}" for name, one, other in found if name.split(".")[0] not in expected]


def _seed(folder: PictureFolder) -> Any:
    return "unknown" if folder.manifest is None else folder.manifest.get("seed")
