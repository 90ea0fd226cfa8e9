"""How near an adapter is to its frozen backbone, on prompts and noise that it was not made from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tqdm.auto import tqdm

from rti.elastic import ElasticModel
from rti.flow import picture_generator
from rti.pipeline import Pipeline
from rti.text.encoder import TextEncoder
from rti.training.config import AdaptConfig
from rti.training.draws import Dial
from rti.training.objectives import DistillationObjective
from rti.training.trajectories import STEPS, Conditions, Trajectories

UNUSED = 2**20  # what is added to the seed for noise that no training sees
EVERY = 3  # so many steps of the teacher's a state is looked at, from the first


@torch.no_grad()
def against_dense(
    model: ElasticModel, encoder: TextEncoder | None, asked: list[Any], config: AdaptConfig, scale: float
) -> list[dict[str, float]]:
    """At each budget, the most regions first: PSNR of the picture, and loss of the clean image where the teacher is."""
    one_pass, places = config.one_pass is not None, range(len(asked))
    own = replace(config, seed=(config.seed + UNUSED) % 2**63, steps=1, guidance=str(scale))
    pictures = Trajectories(model, Conditions(model, encoder, asked), own, followed=False)
    pictures.draw_until(len(asked))
    objective = DistillationObjective(model, features=0.0, balanced=False)
    losses: dict[int, list[float]] = {budget: [] for budget in sorted(config.budgets, reverse=True)}
    for step in tqdm(range(0, STEPS, EVERY), desc="measuring"):
        lessons = pictures.lessons(torch.tensor(places), torch.tensor(step), one_pass)
        guided = one_pass and bool((lessons.scale != 1).all())
        for budget, some in losses.items():
            some.append(float(objective(lessons, Dial(budget, blind=step == 0, guided=guided)).mean()))
    pipe, subjects = Pipeline(model, encoder), {"label" if encoder is None else "prompt": asked}

    def draw(budget: int | str) -> torch.Tensor:
        generators = [picture_generator(own.seed, index) for index in places]
        how = dict(guidance_scale=scale, batch_size=4, output_type="pt", progress=False)
        with pipe.drawing(budget == "dense") as drawing:
            return drawing(**subjects, budget=budget, generator=generators, num_inference_steps=STEPS, **how).images

    rows, dense = [], draw("dense")
    for budget, some in losses.items():
        error = (draw(budget) - dense).square().flatten(1).mean(dim=1)
        row = {"budget": budget, "psnr": round(float(-10 * error.log10().mean()), 2)}
        rows.append(row | {"loss": round(sum(some) / len(some), 5)})
    return rows
