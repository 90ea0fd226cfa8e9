"""What a scorer found in a folder of pictures: a row per picture, a summary over prompts, one file for both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from rti.errors import InputError, check_whole, is_finite
from rti.files import read_json, write_whole
from rti.images import open_image
from rti.lab.intervals import Summary, stratified_summary
from rti.lab.pictures.folder import SCORES, Entry, PictureFolder

Scorer = Callable[[Sequence[Image.Image], Sequence[Entry]], Sequence[dict[str, Any]]]  # rows with at least a "score"


class Metric(NamedTuple):
    """How a score is shown: in a table, at an axis, times what, in how many digits; whether pictures have one each."""

    name: str
    axis: str
    scale: int = 1
    digits: int = 2
    paired: bool = True
    near: bool = False  # it is itself a comparison, with a reference


METRICS = {
    "geneval": Metric("GenEval", "GenEval, % ↑", 100, 1),
    "clip": Metric("CLIP", "CLIPScore ↑"),
    "pick": Metric("Pick", "PickScore ↑"),
    "imagereward": Metric("IR", "ImageReward ↑"),
    "psnr": Metric("PSNR", "PSNR to the reference, dB ↑", near=True),
    "ssim": Metric("SSIM", "SSIM to the reference ↑", digits=3, near=True),
    "lpips": Metric("LPIPS", "LPIPS to the reference ↓", digits=3, near=True),
    "fid": Metric("FID", "FID ↓", paired=False),
    "is": Metric("IS", "Inception Score ↑", digits=1, paired=False),
}


@dataclass(frozen=True)
class Score:
    """`scorer` says by which model and settings; `pictures` are the rows; `digest` says which pictures they were."""

    metric: str
    scorer: dict[str, Any]
    summary: dict[str, Any]
    pictures: list[dict[str, Any]]
    digest: str | None = None

    def write(self, folder: Path) -> Path:
        path = score_path(folder, self.metric)
        write_whole(path, json.dumps(vars(self), indent=1) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Score:
        try:
            score = cls(**read_json(path))
            groups = score.summary["groups"] if score.metric == "geneval" else score.summary.get("groups", {})
            numbers = [score.summary["score"], *groups.values()]
            numbers += [row[name] for row in score.pictures for name in ("score", "prompt")]
            whole = isinstance(score.scorer, dict) and all(map(is_finite, numbers))
        except (TypeError, KeyError, AttributeError):
            whole = False
        if not whole:
            raise InputError(f"{path} is no file of rti score; score the folder again")
        return score


def score_path(folder: Path, metric: str) -> Path:
    return folder / SCORES / f"{metric}.json"


def score_folder(
    folder: PictureFolder,
    metric: str,
    scorer: Scorer,
    description: dict[str, Any],
    batch: int = 16,
    by_group: bool = False,
    progress: bool = True,
) -> Score:
    """Score every picture. `by_group` makes the overall figure the mean of the groups' means, as GenEval's share is."""
    check_whole("batch", batch)
    pictures, rows = folder.pictures, []
    with tqdm(total=len(pictures), desc=metric, unit="picture", disable=not progress) as bar:
        for first in range(0, len(pictures), batch):
            some = pictures[first : first + batch]
            found = scorer([open_image(folder.file(*picture)) for picture in some], [entry for entry, _ in some])
            for (entry, number), row in zip(some, found, strict=True):
                rows.append({"file": entry.files[number], "prompt": entry.index, "number": number} | row)
            bar.update(len(some))
    return Score(metric, description, summary(folder.entries, rows, by_group), rows, folder.digest)


def score_texts(
    metric: str, load: Callable[..., Scorer], folder: Path, batch: int, device: str, **models: str
) -> Score:
    """A measure of each picture beside its prompt; the scorer is loaded when the prompts are known to be texts."""
    pictures = PictureFolder.open(folder)
    prompts_of(pictures.entries)
    return score_folder(pictures, metric, load(*models.values(), device=device), models, batch)


def prompts_of(entries: Sequence[Entry]) -> list[str]:
    """The texts of prompts; labels have none."""
    for entry in entries:
        if not isinstance(entry.prompt, str) or not entry.prompt:
            raise InputError(f"prompt {entry.index} is no text but {entry.prompt!r}; this score compares with texts")
    return [entry.prompt for entry in entries]


def prompt_means(entries: Sequence[Entry], rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """The mean score of each prompt's pictures, in the order of the prompts: what the bootstrap draws from."""
    scores: dict[int, list[float]] = {entry.index: [] for entry in entries}
    for row in rows:
        scores.setdefault(row["prompt"], []).append(float(row["score"]))
    empty = [index for index, some in scores.items() if not some]
    if empty:
        raise InputError(f"no picture of prompt {empty[0]} was scored; score the folder again")
    return np.array([np.mean(scores[entry.index]) for entry in entries])


def strata(entries: Sequence[Entry], by_group: bool) -> list[str]:
    return [str(entry.group) if by_group else "all" for entry in entries]


def summary(entries: Sequence[Entry], rows: Sequence[dict[str, Any]], by_group: bool) -> dict[str, Any]:
    """The score with its 95 % interval, bootstrapped over prompts, and the mean of each group."""
    values, groups = prompt_means(entries, rows), strata(entries, by_group=True)
    found = stratified_summary(values, strata(entries, by_group), shares=by_group)  # GenEval's, of right pictures
    counts = {"pictures": len(rows), "prompts": len(values)}
    result = {"score": found.overall, "interval": found.interval} | counts
    if len(set(groups)) > 1 or by_group:
        result |= means_of_groups(stratified_summary(values, groups, shares=by_group))
    return result


def means_of_groups(found: Summary) -> dict[str, Any]:
    """Ready for JSON."""
    return {"groups": found.means, "group_intervals": found.intervals}
