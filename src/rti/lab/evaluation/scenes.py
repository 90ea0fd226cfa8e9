"""SceneEval of a model: generate, score and compare on the scenes world. The same prompts and noise at every budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rti.backbones.base import Backbone
from rti.errors import InputError, check_whole
from rti.files import write_whole
from rti.lab.pictures.compare import paired_summary
from rti.lab.pictures.folder import PictureFolder, batches
from rti.lab.pictures.generation import Generation, GenerationSettings, Shard
from rti.lab.pictures.prompts import scene_prompts
from rti.lab.pictures.scorers.fidelity import score_fidelity
from rti.lab.pictures.scorers.geneval import GenEvalScorer, SceneDetector
from rti.lab.pictures.scorers.results import Score, score_folder
from rti.lab.scenes import CLASSES, TASKS
from rti.lab.scenes.detect import scipy_ndimage
from rti.method.budgets import Budget, is_dense, resolve_budget
from rti.pipeline import Pipeline

_SUMMARY = dict(overall="score", interval="interval", tasks="groups", task_intervals="group_intervals")
_SUMMARY |= dict(images="pictures")  # what a row calls the values of a score's summary


class SceneResult(NamedTuple):
    """The pictures of a budget, their verdicts, and the row of the table: accuracy with intervals, ready for JSON."""

    name: int | str  # the budget, "dense" is the frozen backbone
    folder: PictureFolder
    score: Score
    row: dict[str, Any]


def evaluate_scenes(
    pipe: Pipeline,
    budgets: Sequence[Budget] = (None,),
    images: int = 240,
    seed: int = 7,
    split: str = "train",
    output: Path | None = None,
    batch: int = 16,
    names: dict[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> list[SceneResult]:
    """Draw the world's prompts at each budget and judge the pictures; one result per budget, in the order given.

    A budget is a number of regions or a share; None is the frozen backbone without adapter. `split` "train" has the
    combinations of the training pictures, "held-out" those they never show, "all" both; fewer images are the first of
    more. A class-conditional model draws the world's classes, one object each; they know no split. `settings` are those
    of `GenerationSettings`: steps, guidance, and text_budget and passes, which go with budgets, not with dense. Each
    budget has a folder of `rti generate` in `output`, which goes on where it stopped; `names` go into its manifest.
    """
    scipy_ndimage()  # before the pictures, not after them
    check_model(pipe.backbone)
    check_whole("images", images, least=len(TASKS))
    check_whole("batch", batch)
    if not budgets:
        raise InputError("no budget given; allowed: numbers of regions, shares such as 0.25, dense")
    prompts = scene_prompts(images, seed, split, pipe.backbone.conditioned_on)
    with TemporaryDirectory(prefix="rti-") if output is None else nullcontext(output) as place:
        generations = {}
        for budget in budgets:  # all of them before the first picture: each may be refused
            dense = is_dense(budget)
            name = "dense" if dense else resolve_budget(budget, pipe.backbone.patches)
            given = settings | ({"text_budget": None, "guidance_passes": None} if dense else {})
            wanted = GenerationSettings(None if dense else budget, seed=seed, **given)
            generations[name] = Generation(pipe, prompts, Path(place) / str(name), wanted, names)
        results = {name: _evaluate(name, one, split, batch, progress) for name, one in generations.items()}
        for name, result in results.items():
            if "dense" in results and name != "dense":
                change = paired_summary(result.folder, result.score, results["dense"].score)
                result.row["difference_to_dense"] = {
                    "overall": change.overall,
                    "interval": change.interval,
                    "tasks": change.means,
                    "task_intervals": change.intervals,
                }
                near = score_fidelity(results["dense"].folder.path, result.folder.path, progress=False)
                result.row["fidelity"] = {one.metric: one.summary for one in near}
                for one in near:
                    one.write(result.folder.path)
    return list(results.values())


def _evaluate(name: int | str, generation: Generation, split: str, batch: int, progress: bool) -> SceneResult:
    generation.run(batch, Shard(), progress)
    folder, manifest = PictureFolder.open(generation.folder), generation.manifest
    scorer = GenEvalScorer(SceneDetector())
    score = score_folder(folder, "geneval", scorer, {"detector": "scenes"}, by_group=True, progress=False)
    score.write(folder.path)
    names = ("seed", "steps", "guidance", "guidance_passes", "guidance_interval", "solver", "shift", "finish")
    how = {name: manifest.get(name) for name in (*names, "text_budget", "dtype")}
    how |= {"split": split, "model": manifest["weights"]}
    row = {"budget": name} | {ours: score.summary[its] for ours, its in _SUMMARY.items()}
    row["seconds"] = round(sum(seconds for _, seconds in batches(folder.path)), 3)
    row["how"] = how | {"rti": manifest["versions"]["rti"]}
    return SceneResult(name, folder, score, row)


def check_model(backbone: Backbone) -> None:
    """Refuse a model whose pictures SceneEval cannot ask for or judge."""
    height, width = backbone.image_size
    if height != width:
        raise InputError(f"SceneEval needs a model of square pictures; this one draws {height} x {width} pixels")
    classes = getattr(backbone.config, "num_classes", None)
    if backbone.conditioned_on == "labels" and classes != len(CLASSES):
        raise InputError(f"SceneEval has {len(CLASSES)} classes; this model has {classes}")


def save_results(output: Path, values: dict[str, Any], results: Sequence[SceneResult]) -> None:
    """Write results.json: the values, and every picture's verdict at every budget."""
    entries = results[0].folder.entries
    pictures = [{"task": entry.group, "caption": entry.metadata["prompt"]} for entry in entries]
    for index, picture in enumerate(pictures):
        verdicts = {str(result.name): result.score.pictures[index] for result in results}
        picture["correct"] = {name: verdict["score"] == 1 for name, verdict in verdicts.items()}
        picture["reason"] = {name: verdict["reason"] for name, verdict in verdicts.items()}
    write_whole(output / "results.json", json.dumps(values | {"pictures": pictures}, indent=1) + "\n")
