"""The velocity loss on data a model has not seen, paired: the same pictures, times and noise at every budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from rti.data import Source
from rti.errors import InputError, check_whole
from rti.lab.intervals import mean_interval
from rti.method.budgets import Budget, resolve_budget
from rti.pipeline import Pipeline
from rti.training.draws import Dial, DrawSettings, draw
from rti.training.objectives import ElasticObjective
from rti.training.pretraining import BaseObjective
from rti.training.stream import Stream, collate, condition_of


class LossResult(NamedTuple):
    """One budget's losses (n,) at the times t (n,) of the examples; and the row of the table, ready for JSON.

    The row has the mean with its 95 % interval, and by how much it is above dense, paired, with that interval.
    """

    losses: np.ndarray
    times: np.ndarray
    row: dict[str, Any]


@torch.no_grad()
def evaluate_loss(
    pipe: Pipeline,
    source: Source,
    budgets: Sequence[Budget] = (None,),
    examples: int = 256,
    seed: int = 7,
    text_budget: int | None = None,
    batch: int = 32,
    progress: bool = True,
) -> list[LossResult]:
    """The velocity loss of some examples at each budget, one result per budget, in the order given.

    Budget None is the frozen backbone without adapter. Where cuts come from an estimate, it is made as in training, one
    to four sampling steps earlier, at the budget itself: what a sampler hands on from step to step. `text_budget` goes
    with every budget, not with dense.
    """
    backbone = pipe.backbone
    check_whole("examples", examples)
    check_whole("batch", batch)
    wanted = dict.fromkeys(None if budget is None else resolve_budget(budget, backbone.patches) for budget in budgets)
    if pipe.elastic is None and set(wanted) != {None}:
        raise InputError("a budget needs an adapter, and this model has none; allowed: dense")
    stream = Stream(source, seed)
    encoder = pipe.text_encoder if backbone.conditioned_on == "text" else None
    shape = (backbone.channels, *backbone.image_size)
    losses: dict[int | None, list[torch.Tensor]] = {budget: [] for budget in wanted}
    times: list[torch.Tensor] = []
    with tqdm(total=examples * len(losses), unit="example", disable=not progress) as bar:
        for first in range(0, examples, batch):
            numbers = range(first, min(first + batch, examples))
            drawn = collate([stream[number] for number in numbers])
            images = drawn.images.to(backbone.device)
            draws = draw(shape, seed, 0, numbers, DrawSettings(drop=0.0)).to(backbone.device)
            condition = condition_of(backbone, drawn, encoder)
            times.append(draws.t.cpu())
            for budget, some in losses.items():
                if budget is None:
                    with pipe.drawing(dense=True) as frozen:
                        found = BaseObjective(frozen.model, None)(images, condition, draws)
                else:
                    objective = ElasticObjective(pipe.elastic, budget)
                    found = objective(images, condition, draws, Dial(budget, False, text_budget))
                some.append(found.cpu())
                bar.update(len(numbers))
    t, *columns = (torch.cat(some).double().numpy() for some in (times, *losses.values()))
    found, results = dict(zip(losses, columns, strict=True)), []
    for budget, values in found.items():
        row = {"budget": "dense" if budget is None else budget}
        row |= {"loss": float(values.mean()), "interval": mean_interval(values)}
        if budget is not None and None in found:
            change = values - found[None]
            row |= {"difference_to_dense": float(change.mean()), "difference_interval": mean_interval(change)}
        results.append(LossResult(values, t, row))
    return results
