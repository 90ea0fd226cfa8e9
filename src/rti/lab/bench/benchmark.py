"""Speed: dense and every budget take turns, and what was measured stands beside what the arithmetic says.

Times on one machine drift, so only ratios within one run are results. Everything a reduction adds is inside them.
"""

from __future__ import annotations

import copy
import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm

from rti import cost
from rti.backbones.base import Backbone, Condition, FlowSettings
from rti.elastic import ElasticModel
from rti.errors import check_whole
from rti.flow import draw_noise, time_grid
from rti.lab.bench.stopwatch import clock, parts_of, peak_memory
from rti.method.budgets import Budget, Budgets, resolve_budget
from rti.sampling import GuidedVelocity, sample
from rti.solvers import SOLVERS

TIME = 0.5  # of the forward pass that is measured; guidance applies there in both families
PLAIN = "dense as loaded"  # the name of another row of dense
Work = Callable[[], torch.Tensor]  # what is timed


@dataclass
class Row:
    """One line of the table: dense, or a model with a reduction at its budgets, and what a run of it costs.

    That is times by the clock, and FLOPs of one picture's forward pass by the paper's count.
    """

    name: str = "dense"
    budget: int | None = None
    text_budget: int | None = None
    guidance_passes: int = 2  # of a guided evaluation
    model: Any = None  # a backbone, or a model with a reduction
    work: Work | None = None
    flops: float = 0.0
    times: list[float] = field(default_factory=list)
    memory: float | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)


def as_rows(rows: Sequence[Row], batch: int, share: float) -> list[dict[str, Any]]:
    """The table, ready for JSON: dense first. A row measures a `share` of the evaluations of a whole picture."""
    found, dense = [], rows[0]
    for row in rows:
        speedup, analytic = dense.seconds / row.seconds, dense.flops / row.flops
        shown = {
            "model": row.name,
            "budget": "dense" if row.budget is None else row.budget,
            "text_budget": row.text_budget,
            "guidance_passes": row.guidance_passes,
            "seconds": round(row.seconds, 5),
            "images_per_second": round(batch * share / row.seconds, 5),
            "speedup": round(speedup, 3),
            "analytic_speedup": round(analytic, 3),
            "efficiency": round(speedup / analytic, 3),
            "peak_memory_gigabytes": row.memory,
            "parts": {name: round(seconds, 5) for name, seconds in row.parts.items()},
        }
        found.append(shown)
    return found


def run_benchmark(
    dense: Backbone,
    models: dict[str, ElasticModel],
    budgets: Sequence[Budget],
    text_budgets: Sequence[int | None] = (None,),
    batch: int = 1,
    steps: int | None = None,
    guidance: float | None = None,
    passes: int = 3,
    warmup: int = 1,
    plain: Backbone | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Measure one guided forward pass, or with `steps` whole pictures, dense and at every budget of every model.

    Every pass runs every row once, one after the other. `plain` adds the backbone before it was compiled or quantised:
    what that has brought.
    """
    for name, value, least in (("batch", batch, 1), ("passes", passes, 1), ("warmup", warmup, 0)):
        check_whole(name, value, least=least)
    numbers = dict.fromkeys(resolve_budget(budget, dense.patches) for budget in budgets)
    rows = [Row(model=dense), *([Row(PLAIN, model=plain)] if plain is not None else [])]
    scale = float(dense.flow.guidance_scale if guidance is None else guidance)
    for (name, model), text, number in itertools.product(models.items(), dict.fromkeys(text_budgets), numbers):
        rows += [Row(name, number, text, count, model) for count in ((2, 1) if model.guides_itself(scale) else (2,))]

    inputs, device = random_inputs(dense, batch), dense.device
    for row in rows:
        row.flops = _flops(dense, row) * row.guidance_passes / 2
        budgets = Budgets(row.budget, text=row.text_budget, passes=row.guidance_passes)
        if steps is None:
            row.work = forward_pass(row.model, budgets, *inputs, scale)
        else:  # a whole picture, from the text encoder's states to the last step
            row.work = partial(sample, row.model, *inputs, steps=steps, guidance_scale=scale, budget=budgets)
    with tqdm(total=(warmup + passes) * len(rows), desc="measuring", unit="run", disable=not progress) as bar:
        for turn in range(warmup + passes):
            for row in random.Random(turn).sample(rows, len(rows)):  # no row always comes after the same one
                seconds = time_of(row.work, device)
                row.times += [seconds] if turn >= warmup else []
                bar.update()
    for row in rows:
        row.memory = peak_memory(row.work, device)
        with parts_of(row.model) as parts:
            parts["run"] = time_of(row.work, device)
        text = {} if row.text_budget is None else {"text_budget": row.text_budget}
        prepare = partial(torch.no_grad()(row.model.prepare), inputs[1], **text)
        row.parts = parts | {"text, once a prompt": time_of(prepare, device)}
    return as_rows(rows, batch, 1 / _evaluations(dense.flow) if steps is None else 1.0)


@torch.no_grad()
def forward_pass(model: Any, budgets: Budgets, noise: torch.Tensor, condition: Condition, scale: float) -> Work:
    """One forward pass at the middle of the way, guided unless the scale is 1. The text is prepared beforehand, as a
    sampler does.

    Where regions are cut from an estimate, it is the model's own clean picture, as a sampler would hand it on.
    """
    backbone = getattr(model, "backbone", model)
    resolved = None if budgets.image is None else budgets.resolve(1, backbone.patches)
    guided = GuidedVelocity(model, condition, backbone.flow, scale, (0.0, 1.0), resolved)
    guided.estimate = guided.clean(noise, TIME, 0)
    return torch.no_grad()(partial(guided.clean, noise, TIME, 0))


def _flops(dense: Backbone, row: Row) -> float:
    """Of one picture's forward pass, by the paper's count."""
    if row.budget is None:
        return cost.dense_flops(dense)
    return cost.reduced_flops(dense, row.model.reduction, row.budget, row.text_budget)


def _evaluations(flow: FlowSettings) -> int:
    """How often the sampler asks the model for a whole picture."""
    return len(times_asked(flow.sampler, time_grid(flow.steps)))


def times_asked(solver: str, times: torch.Tensor) -> list[float]:
    """The times at which a solver asks the model on its way."""
    asked: list[float] = []
    SOLVERS[solver](lambda x, t, step: asked.append(t) or x, torch.zeros(()), times)
    return asked


def time_of(work: Work, device: torch.device) -> float:
    started = clock(device)
    work()
    return clock(device) - started


def random_inputs(backbone: Backbone, batch: int) -> tuple[torch.Tensor, Condition]:
    """Noise, and something to condition on."""
    generators = [torch.Generator().manual_seed(number) for number in range(batch)]
    shape = (backbone.channels, *backbone.image_size)
    noise = draw_noise(shape, generators, backbone.flow.noise_scale, backbone.device)
    return noise, random_condition(backbone, batch)


def random_condition(backbone: Backbone, batch: int) -> Condition:
    """Something to condition on: made-up text states of which an eighth are words, or the first classes."""
    if backbone.conditioned_on == "labels":
        return backbone.condition(labels=torch.arange(batch) % backbone.config.num_classes)
    generator, config = torch.Generator().manual_seed(0), backbone.config
    text = torch.randn(batch, config.prompt_length, config.txt_input_size, generator=generator)
    words = torch.arange(config.prompt_length) < max(config.prompt_length // 8, 1)
    mask = words.expand(batch, -1)
    return backbone.condition(text=text.to(backbone.device, backbone.dtype), mask=mask.to(backbone.device))


def twin(backbone: Backbone) -> Backbone:
    """A second backbone on the same weights: it takes no memory of its own, and has its own layers to attach to."""
    tensors = [*backbone.parameters(), *backbone.buffers()]
    return copy.deepcopy(backbone, {id(tensor): tensor for tensor in tensors})
