"""Seconds of a picture, end to end: as the model was released, by our dense path, and by each preset.

The loops are whole, and all rows take turns within one run. Single passes are timed beside each picture, so that it can
be held against the product of its parts: its evaluations times the seconds of one.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from rti.backbones.base import Backbone, FlowSettings
from rti.dials import Dials, Preset
from rti.elastic import ElasticModel
from rti.errors import check_whole
from rti.flow import choose_times
from rti.lab.bench.benchmark import Work, forward_pass, random_inputs, time_of, times_asked
from rti.loading import build
from rti.method.budgets import Budgets, is_dense, resolve_budget
from rti.sampling import guidance_applies, sample


@contextmanager
def written_out() -> Iterator[None]:
    """Attention as both releases write it: all scores, their softmax, then the values; nothing is fused.

    Not torch's SDPBackend.MATH, which would flatter us: its softmax also looks for rows that are masked out, and it
    turns half precision into float32.
    """

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: None) -> torch.Tensor:
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v

    with patch.object(F, "scaled_dot_product_attention", attention):
        yield


@dataclass
class Row:
    """One way to draw a picture, and the seconds of whole ones and of single passes."""

    setting: str
    model: Any  # a backbone, or a model with a reduction
    dials: Dials
    attention: Callable[[], AbstractContextManager] = nullcontext
    evaluations: dict[str, int] = field(default_factory=dict)  # guided and unguided ones of a picture
    works: dict[str, Work] = field(default_factory=dict)  # the picture, and a pass of each of these kinds
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def seconds(self, part: str = "picture") -> float:
        return statistics.median(self.times[part])


def own_dials(flow: FlowSettings, dials: Dials) -> Dials:
    """The same with what is not turned as a model samples by itself."""
    return dials.over(Dials(flow.steps, flow.sampler, guidance_interval=flow.guidance_interval))


def time_pictures(
    dense: Backbone,
    model: ElasticModel,
    presets: Mapping[str, Preset],
    batch: int = 1,
    guidance: float | None = None,
    passes: int = 1,
    warmup: int = 1,
    plain: Backbone | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Draw in every way in turn; the warm-up is of single passes. `plain` is the backbone before it was compiled."""
    for name, value, least in (("batch", batch, 1), ("passes", passes, 1), ("warmup", warmup, 0)):
        check_whole(name, value, least=least)
    scale = float(dense.flow.guidance_scale if guidance is None else guidance)
    rows, inputs = _rows(dense, model, presets, dense if plain is None else plain, scale), random_inputs(dense, batch)
    total = sum(warmup * len(row.evaluations) + passes * row.dials.num_inference_steps for row in rows)
    total += sum(2 * passes * len(row.evaluations) for row in rows)
    with tqdm(total=total, desc="drawing", unit="step", disable=not progress) as bar:

        def after_step(*_: Any) -> None:
            bar.update()

        for row in rows:
            with row.attention():
                _fill(row, inputs, scale, after_step)
                for part in warmup * [*row.evaluations]:
                    row.works[part]()
                    bar.update()
        for turn in range(passes):
            for row in random.Random(turn).sample(rows, len(rows)):  # no row always comes after the same one
                for part in (*row.evaluations, "picture", *row.evaluations):  # on both sides: machines drift
                    with row.attention():
                        row.times[part].append(time_of(row.works[part], dense.device))
                    bar.update(part != "picture")
    return [_shown(row, rows[0], dense, batch) for row in rows]


def count_evaluations(dials: Dials, scale: float) -> dict[str, int]:
    """How often a picture asks the model, guided and unguided; a kind that it never asks for is left out."""
    times = times_asked(dials.solver, choose_times(dials.num_inference_steps, dials.shift))
    interval = torch.tensor(dials.guidance_interval).tolist()  # rounded as the times are
    guided = sum(scale != 1.0 and guidance_applies(t, interval) for t in times)
    return {part: count for part, count in (("guided", guided), ("unguided", len(times) - guided)) if count}


def _rows(
    dense: Backbone, model: ElasticModel, presets: Mapping[str, Preset], plain: Backbone, scale: float
) -> list[Row]:
    flow = build(dense.family, {}).flow  # as its authors sample, whatever a small model's own config says
    same = own_dials(flow, Dials())
    rows = [Row("release", plain, replace(same, finish="state"), written_out), Row("dense", dense, same)]
    for name, preset in presets.items():
        dials = own_dials(dense.flow, preset.dials)
        rows.append(Row(name, dense if is_dense(dials.budget) else model, dials))
    for row in rows:
        row.evaluations = count_evaluations(row.dials, scale)
    return rows


def _fill(row: Row, inputs: tuple, scale: float, callback: Callable[..., None]) -> None:
    """What is timed: a picture, from the text encoder's states to the last step, and its passes."""
    dials, budget = row.dials, None if is_dense(row.dials.budget) else row.dials.budget
    budgets = Budgets(budget, text=dials.text_budget, passes=dials.guidance_passes)
    for part in row.evaluations:
        row.works[part] = forward_pass(row.model, budgets, *inputs, scale if part == "guided" else 1.0)
    how = {"solver": dials.solver, "shift": dials.shift, "finish": dials.finish, "guidance_scale": scale}
    how |= {"guidance_interval": dials.guidance_interval, "budget": budgets, "callback": callback}
    row.works["picture"] = partial(sample, row.model, *inputs, dials.num_inference_steps, **how)


def _shown(row: Row, release: Row, dense: Backbone, batch: int) -> dict[str, Any]:
    """For JSON; all seconds are of one picture of the batch."""
    dials, text, seconds = row.dials, row.dials.text_budget, row.seconds()
    product = sum(count * row.seconds(part) for part, count in row.evaluations.items())
    return {
        "setting": row.setting,
        "steps": dials.num_inference_steps,
        "solver": dials.solver,
        "budget": "dense" if is_dense(dials.budget) else resolve_budget(dials.budget, dense.patches),
        "text_budget": None if text is None else resolve_budget(text, dense.config.prompt_length, "text budget"),
        "evaluations": row.evaluations,
        "pass_seconds": {part: round(row.seconds(part) / batch, 5) for part in row.evaluations},
        "seconds": round(seconds / batch, 5),
        "of_parts": round(seconds / product, 3),
        "speedup": round(release.seconds() / seconds, 3),
    }
