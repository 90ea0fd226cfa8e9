"""SceneEval of a model: the same prompts and noise at every budget, judged by the scenes world's detector."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm

from rti import __version__
from rti.backbones.base import Backbone
from rti.elastic import ElasticModel
from rti.errors import InputError
from rti.flow import picture_generator, time_grid
from rti.lab import scenes
from rti.lab.evaluation.earlier import Earlier
from rti.lab.evaluation.unfinished import Unfinished
from rti.lab.pictures.generation import weights_of
from rti.method.budgets import Budget, resolve_budget
from rti.pipeline import Pipeline
from rti.text.encoder import TextEncoder


@dataclass(frozen=True, eq=False)
class SceneResult:
    """One budget's pictures (n, 3, size, size) in [-1, 1] and their score; budget None is the frozen backbone.

    `how` is all that decides what they show, beside the prompts. Of an earlier evaluation there are no pictures here.
    `difference` is the accuracy minus that of the frozen backbone on the same prompts and noise, where both were drawn.
    """

    budget: int | None
    score: scenes.SceneScore
    images: torch.Tensor | None
    seconds: float
    how: dict[str, Any]
    difference: scenes.Difference | None = None

    @property
    def name(self) -> int | str:
        return "dense" if self.budget is None else self.budget

    def as_dict(self) -> dict[str, Any]:
        """Budget, accuracy and intervals, ready for JSON."""
        values = {"budget": self.name} | self.score.as_dict() | {"seconds": round(self.seconds, 3), "how": self.how}
        values |= {"reused": True} if self.images is None else {}
        return values if self.difference is None else values | {"difference_to_dense": asdict(self.difference)}


def evaluate_scenes(
    model: Pipeline | ElasticModel | Backbone,
    text_encoder: TextEncoder | None = None,
    budgets: Sequence[Budget] = (None,),
    images: int = 240,
    seed: int = 7,
    split: str = "train",
    steps: int | None = None,
    guidance: float | None = None,
    guidance_budget: Budget = None,
    text_budget: Budget = None,
    int8: bool = False,
    batch: int = 16,
    earlier: Earlier | None = None,
    unfinished: Unfinished | None = None,
    progress: bool = True,
) -> list[SceneResult]:
    """Draw the world's prompts at each budget and judge the pictures; one result per budget, in the order given.

    `model` is a pipeline, or a backbone or attached model with its `text_encoder`, as they are in training. A budget is
    a number of regions or a share; None is the frozen backbone without adapter. `split` "train" has the combinations of
    the training pictures, "held-out" those they never show, "all" both; prompts come from `seed` by a random stream of
    their own, and fewer images are the first of more. What is not given is as the model samples by itself.
    `guidance_budget` and `text_budget` go with every budget, not with dense; `int8` with all, see rti.int8.
    `earlier` are results of before: what was drawn there by the same model in the same way is not drawn again.
    `unfinished` keeps what is drawn, batch by batch, and has what an interrupted evaluation drew.
    A class-conditional model draws the world's classes, one object each; they know no split.
    """
    if isinstance(model, Pipeline) and text_encoder is not None:
        raise InputError("text_encoder given beside a pipeline, which has its own; give the pipeline's model instead")
    pipe = model if isinstance(model, Pipeline) else Pipeline(model, text_encoder)
    wanted = _check(pipe, budgets, images, seed, steps, batch)
    if pipe.backbone.conditioned_on == "labels":
        prompts = scenes.class_prompts(images, seed)
        subjects = [scenes.class_of(scene) for scene in prompts]
    else:
        prompts = scenes.prompts(images, seed, split)
        subjects = [scene.caption for scene in prompts]
    known, kept, results = earlier or Earlier(), unfinished or Unfinished(), {}
    flow = pipe.backbone.flow
    settings = {
        "seed": seed,
        "split": split,
        "steps": flow.steps if steps is None else steps,
        "guidance": flow.guidance_scale if guidance is None else guidance,
        "dtype": str(pipe.backbone.dtype).removeprefix("torch."),
        "int8": int8,
        "rti": __version__,
    }
    with tqdm(total=images * len(wanted), unit="picture", disable=not progress) as bar:
        for budget in wanted:
            bar.set_description("dense" if budget is None else f"R = {budget}")
            beside = {
                "guidance_budget": None if budget is None else guidance_budget,
                "text_budget": None if budget is None else text_budget,
            }
            with _drawing(pipe, budget, int8) as (drawing, which):
                how = settings | beside | {"model": which}
                found = known.find("dense" if budget is None else budget, how, prompts)
                if found is not None:
                    results[budget] = SceneResult(budget, found[0], None, found[1], how)
                    bar.update(images)
                    continue
                options = beside | {"budget": budget, "num_inference_steps": steps, "guidance_scale": guidance}
                seconds, parts = 0.0, []
                for first in range(0, images, batch):
                    some = subjects[first : first + batch]
                    draw = partial(_draw, drawing, some, seed, first, options)
                    part, took = kept.pictures(how | {"budget": budget, "first": first}, some, draw)
                    parts.append(part)
                    seconds += took
                    bar.update(len(some))
            pictures = torch.cat(parts)
            results[budget] = SceneResult(budget, scenes.score(prompts, pictures.numpy()), pictures, seconds, how)
    for folder, why in known.unused.items():
        warnings.warn(f"nothing of {folder} was reused: {why}", stacklevel=2)
    return [_compare(results[budget], results.get(None)) for budget in wanted]


def _draw(pipe: Pipeline, subjects: Sequence[Any], seed: int, first: int, options: dict[str, Any]) -> torch.Tensor:
    """The pictures of some prompts or classes, numbered from `first`: (n, 3, size, size) in [-1, 1]."""
    generators = [picture_generator(seed, first + index) for index in range(len(subjects))]
    drawn = pipe(subjects, generator=generators, output_type="pt", progress=False, **options)
    return 2 * drawn.images.cpu() - 1


def _compare(result: SceneResult, dense: SceneResult | None) -> SceneResult:
    if dense is None or result.budget is None:
        return result
    return replace(result, difference=scenes.paired_difference(result.score, dense.score))


@contextmanager
def _drawing(pipe: Pipeline, budget: int | None, int8: bool) -> Iterator[tuple[Pipeline, str]]:
    """The pipeline that draws at a budget, and which model it is."""
    if budget is None:
        with pipe.drawing(dense=True) as alone:
            which = _which(alone)
    else:
        which = _which(pipe)  # before the LoRA is folded in, which it would have to undo
    with pipe.drawing(budget is None, int8) as drawing:
        yield drawing, which


def _which(pipe: Pipeline) -> str:
    """A digest of weights, sizes and settings: the same for the same model, wherever it was loaded from."""
    reduction = None if pipe.elastic is None else pipe.elastic.config.to_dict()
    parts = [weights_of(pipe), asdict(pipe.backbone.config), reduction]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def check_model(backbone: Backbone) -> None:
    """Refuse a model whose pictures SceneEval cannot ask for or judge."""
    height, width = backbone.image_size
    if height != width:
        raise InputError(f"SceneEval needs a model of square pictures; this one draws {height} x {width} pixels")
    classes = getattr(backbone.config, "num_classes", None)
    if backbone.conditioned_on == "labels" and classes != len(scenes.CLASSES):
        raise InputError(f"SceneEval has {len(scenes.CLASSES)} classes; this model has {classes}")


def _check(
    pipe: Pipeline, budgets: Sequence[Budget], images: int, seed: int, steps: int | None, batch: int
) -> list[int | None]:
    """Refuse what cannot be drawn or judged before the first picture. The budgets as numbers, each once."""
    backbone = pipe.backbone
    check_model(backbone)
    for name, value, least in (("images", images, len(scenes.TASKS)), ("batch", batch, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if steps is not None:
        time_grid(steps)
    if not budgets:
        raise InputError("no budget given; allowed: numbers of regions, shares such as 0.25, dense")
    wanted = [None if budget is None else resolve_budget(budget, backbone.patches) for budget in budgets]
    if pipe.elastic is None and any(budget is not None for budget in wanted):
        given = next(budget for budget in budgets if budget is not None)
        raise InputError(f"budget {given!r} needs an adapter, and this model has none; allowed: dense")
    return list(dict.fromkeys(wanted))
