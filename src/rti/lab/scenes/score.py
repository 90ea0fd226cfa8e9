"""SceneEval: GenEval's protocol on the scenes world, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rti.errors import InputError
from rti.lab.intervals import RESAMPLES, Interval, as_list, stratified_summary
from rti.lab.judge import judge
from rti.lab.scenes.detect import detect
from rti.lab.scenes.world import TASKS, Scene


@dataclass(frozen=True, eq=False)
class SceneScore:
    """How many pictures show what their scene asks for. All shares are in [0, 1], intervals cover 95 %.

    `correct` (n,) and `reasons` (why not) are per picture, `tasks` and `task_intervals` per task; `overall` is the
    unweighted mean of the task means.
    """

    scenes: tuple[Scene, ...]
    correct: np.ndarray
    reasons: tuple[str, ...]
    tasks: dict[str, float]
    task_intervals: dict[str, Interval | None]
    overall: float
    interval: Interval | None

    def as_dict(self) -> dict:
        """Overall accuracy, tasks and intervals, ready for JSON."""
        return {
            "overall": self.overall,
            "interval": as_list(self.interval),
            "tasks": dict(self.tasks),
            "task_intervals": {task: as_list(interval) for task, interval in self.task_intervals.items()},
            "images": len(self.correct),
        }


@dataclass(frozen=True)
class Difference:
    """Accuracy of a run minus that of another on the same prompts, overall and per task, with 95 % intervals."""

    overall: float
    interval: Interval | None
    tasks: dict[str, float]
    task_intervals: dict[str, Interval | None]


def score(scenes: Sequence[Scene], images: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> SceneScore:
    """Judge one picture per scene. `images` (n, 3, size, size) in [-1, 1]."""
    if len(scenes) != len(images) or not len(scenes):
        raise InputError(f"need one picture per scene, got {len(scenes)} scenes and {len(images)} pictures")
    verdicts = [judge(scene, found) for scene, found in zip(scenes, detect(images), strict=True)]
    correct = np.array([verdict.correct for verdict in verdicts])
    return score_of_verdicts(scenes, correct, [verdict.reason for verdict in verdicts], resamples, seed)


def score_of_verdicts(
    scenes: Sequence[Scene], correct: np.ndarray, reasons: Sequence[str], resamples: int = RESAMPLES, seed: int = 0
) -> SceneScore:
    """The score of pictures that have been judged: (n,) whether right, and why not."""
    return SceneScore(tuple(scenes), correct, tuple(reasons), *_summary(correct, scenes, resamples, seed, shares=True))


def paired_difference(first: SceneScore, second: SceneScore, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """First minus second, resampled by prompt: what both runs find hard or easy cancels out."""
    if first.scenes != second.scenes:
        raise InputError(
            f"a paired difference needs the same prompts in the same order, got {len(first.scenes)} and "
            f"{len(second.scenes)} that differ"
        )
    change = first.correct.astype(np.float64) - second.correct
    tasks, task_intervals, overall, interval = _summary(change, first.scenes, resamples, seed)
    return Difference(overall, interval, tasks, task_intervals)


def _summary(
    values: np.ndarray, scenes: Sequence[Scene], resamples: int, seed: int, shares: bool = False
) -> tuple[dict[str, float], dict[str, Interval | None], float, Interval | None]:
    """Task means, their intervals, the mean of the task means, its interval (bootstrap stratified by task)."""
    found = stratified_summary(values, [scene.task for scene in scenes], resamples, seed, shares)
    present = [task for task in TASKS if task in found.means]
    means, intervals = ({task: some[task] for task in present} for some in (found.means, found.intervals))
    return means, intervals, found.overall, found.interval
