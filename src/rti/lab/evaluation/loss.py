"""The velocity loss on data a model has not seen, paired: the same pictures, times and noise at every budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from rti.data import Source
from rti.errors import InputError
from rti.lab.intervals import Interval, as_list, mean_interval
from rti.method.budgets import Budget, resolve_budget
from rti.pipeline import Pipeline
from rti.training.draws import Draws, DrawSettings, draw
from rti.training.elastic import Dial, ElasticObjective
from rti.training.pretraining import BaseObjective
from rti.training.stream import Stream, collate
from rti.training.tasks import condition_of

ESTIMATES = ("own", "clean", "none")  # what cuts are made from, where they come from an estimate


@dataclass(frozen=True, eq=False)
class LossResult:
    """One budget's losses (n,), their mean and its 95 % interval; and, paired, by how much it is above dense."""

    budget: int | None
    losses: np.ndarray
    times: np.ndarray  # (n,) the time t of each example, the same at every budget
    difference: float | None = None
    difference_interval: Interval | None = None

    @property
    def name(self) -> int | str:
        return "dense" if self.budget is None else self.budget

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    def as_dict(self) -> dict:
        values = {"budget": self.name, "loss": self.loss, "interval": as_list(mean_interval(self.losses))}
        if self.difference is not None:
            values |= {"difference_to_dense": self.difference, "difference_interval": as_list(self.difference_interval)}
        return values


@torch.no_grad()
def evaluate_loss(
    pipe: Pipeline,
    source: Source,
    budgets: Sequence[Budget] = (None,),
    examples: int = 256,
    seed: int = 7,
    text_budget: int | None = None,
    batch: int = 32,
    estimate: str = "own",
    progress: bool = True,
) -> list[LossResult]:
    """The velocity loss of some examples at each budget, one result per budget, in the order given.

    Budget None is the frozen backbone without adapter. Where cuts come from an estimate, it is made as in training, one
    to four sampling steps earlier, at the budget itself: what a sampler hands on from step to step. With the
    `estimate` "clean" it is the clean picture, which no sampler has: what remains is not the estimate's fault. With
    "none" there is none, as at a sampler's first step. `text_budget` goes with every budget, not with dense.
    """
    backbone = pipe.backbone
    for name, value in (("examples", examples), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value!r}")
    wanted = [None if budget is None else resolve_budget(budget, backbone.patches) for budget in budgets]
    if pipe.elastic is None and any(budget is not None for budget in wanted):
        raise InputError("a budget needs an adapter, and this model has none; allowed: dense")
    if estimate not in ESTIMATES:
        raise InputError(f"estimate {estimate!r} is unknown; allowed: {', '.join(ESTIMATES)}")
    if estimate != "own" and (pipe.elastic is None or not pipe.elastic.reduction.uses_estimate):
        raise InputError(f"estimate {estimate!r} given, but this model cuts from none")
    stream = Stream(source, seed)
    encoder = pipe.text_encoder if backbone.conditioned_on == "text" else None
    shape = (backbone.channels, *backbone.image_size)
    losses: dict[int | None, list[torch.Tensor]] = {budget: [] for budget in wanted}
    times: list[torch.Tensor] = []
    with tqdm(total=examples * len(losses), unit="example", disable=not progress) as bar:
        for first in range(0, examples, batch):
            numbers = range(first, min(first + batch, examples))
            drawn = collate([stream[number] for number in numbers], examples)
            images = drawn.images.to(backbone.device)
            draws = draw(shape, seed, 0, numbers, DrawSettings(drop=0.0)).to(backbone.device)
            condition = condition_of(backbone, drawn, encoder)
            times.append(draws.t.cpu())
            for budget, some in losses.items():
                some.append(_losses(pipe, budget, text_budget, estimate)(images, condition, draws).cpu())
                bar.update(len(numbers))
    t = torch.cat(times).double().numpy()
    results = {budget: LossResult(budget, torch.cat(some).double().numpy(), t) for budget, some in losses.items()}
    return [_compare(results[budget], results.get(None)) for budget in dict.fromkeys(wanted)]


def save_losses(path: Path, results: Sequence[LossResult]) -> None:
    """Write the time of every example and its loss at every budget, as JSON."""
    values = {"times": results[0].times.tolist()}
    values |= {"losses": {str(result.name): result.losses.tolist() for result in results}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


class CleanObjective(ElasticObjective):
    """Cuts from the clean picture, where they come from an estimate."""

    def _estimate(self, images: torch.Tensor, *_: object) -> torch.Tensor:
        return images


def _losses(pipe: Pipeline, budget: int | None, text_budget: int | None, estimate: str) -> Callable[..., torch.Tensor]:
    objective = CleanObjective if estimate == "clean" else ElasticObjective
    dial = Dial(budget, estimate == "none", text_budget)

    def elastic(images: torch.Tensor, condition: object, draws: Draws) -> torch.Tensor:
        return objective(pipe.elastic, budget)(images, condition, draws, dial)

    def dense(images: torch.Tensor, condition: object, draws: Draws) -> torch.Tensor:
        with nullcontext(pipe.model) if pipe.elastic is None else pipe.elastic.dense() as backbone:
            return BaseObjective(backbone, None)(images, condition, draws)

    return dense if budget is None else elastic


def _compare(result: LossResult, dense: LossResult | None) -> LossResult:
    if dense is None or result.budget is None:
        return result
    change = result.losses - dense.losses
    return replace(result, difference=float(change.mean()), difference_interval=mean_interval(change))
