"""The closed form: Write's map by least squares against the frozen core, from prompts alone and without a gradient.

At each state of a guided trajectory the frozen backbone tells what its dense core answers. What the core on regions
misses of it is fitted by a linear map of what Write sees; the sums of products are all that is kept.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from rti.backbones.base import Backbone, Condition
from rti.checkpoint import weights_digest
from rti.elastic import ElasticModel
from rti.errors import InputError
from rti.files import in_one_line, whole_file
from rti.flow import draw_noise, picture_generator
from rti.method.reductions import Span
from rti.sampling import guide, sample
from rti.text.encoder import TextEncoder
from rti.training.trajectories import AT_ONCE, STEPS, Conditions

RIDGE = 1e-2  # of each feature's own sum of squares: how strongly the map stays what it was


class Sums(dict[int, dict[str, torch.Tensor]]):
    """For each budget: `gram` (F, F) and `cross` (F, D), sums of products, and `energy`, that of what is missed.

    Rows are patches of each branch, and once more of the guided difference of both, which is what a sampler goes by: an
    error that both branches share is not amplified by guidance, one that they do not is.
    """

    def add(self, budget: int, features: torch.Tensor, target: torch.Tensor, scale: float | None) -> None:
        """Features (B, N, F) and what they are to give (B, N, D); with a guidance scale both are [c ; u]."""
        self._add(budget, features, target)
        if scale is not None:
            weight = (2 / (scale**2 + (scale - 1) ** 2)) ** 0.5  # as if errors of the branches were independent
            self._add(budget, weight * guide(features, scale), weight * guide(target, scale))

    def _add(self, budget: int, features: torch.Tensor, target: torch.Tensor) -> None:
        x, y = features.float().flatten(0, 1), target.float().flatten(0, 1)
        with torch.autocast(x.device.type, enabled=False):
            new = {"gram": x.T @ x, "cross": x.T @ y, "energy": y.square().sum()}
        for name, value in new.items():
            self.setdefault(budget, {})
            self[budget][name] = self[budget].get(name, 0) + value.to(_place(x.device), torch.float64)

    def solve(self) -> torch.Tensor:
        """One map for all budgets, (F, D): each counts by the share that is left of its own error."""
        gram = sum(one["gram"] / one["energy"] for one in self.values())
        cross = sum(one["cross"] / one["energy"] for one in self.values())
        diagonal = gram.diagonal()
        ridge = RIDGE * diagonal.clamp_min(1e-9 * diagonal.max())
        solution = torch.linalg.solve(gram + ridge.diag(), cross)
        if not solution.isfinite().all():
            raise InputError("the closed form has no finite solution; leave it out (--stage distil)")
        return solution

    def explained(self, solution: torch.Tensor) -> dict[int, float]:
        """The share of its error that the map takes away, at each budget."""

        def share(one: dict[str, torch.Tensor]) -> float:
            gained = 2 * (solution * one["cross"]).sum() - (solution * (one["gram"] @ solution)).sum()
            return float(gained / one["energy"])

        return {budget: share(one) for budget, one in self.items()}


class Watched(nn.Module):
    """The frozen backbone as a sampler calls it. At each call it adds to the sums what the core on regions misses."""

    def __init__(
        self,
        model: ElasticModel,
        frozen: Backbone,
        budgets: Sequence[int],
        texts: Sequence[int | None],
        sums: Sums,
        scale: float,
        pictures: int,
    ):
        super().__init__()
        self.model, self.backbone, self.budgets, self.sums, self.scale = model, frozen, budgets, sums, scale
        self.prepare, self.unconditional = frozen.prepare, frozen.unconditional
        self.pictures = pictures  # in the batch that is sampled now
        self.texts = itertools.cycle(texts)  # budgets of the text, one a step

    def forward(
        self, x: torch.Tensor, t: Any, condition: Condition, budget: Any = None, estimate: torch.Tensor | None = None
    ) -> torch.Tensor:
        frozen, (first, last) = self.backbone, self.model.config.core
        x, t = frozen.check(x, t, condition)
        tokens = frozen.run(frozen.embed(x, t, condition), 0, first)
        core = Span(frozen, first, last + 1)
        after = core(tokens)
        if (text := next(self.texts)) is not None:
            tokens = frozen.run(frozen.embed(x, t, self.model.prepare(condition, text)), 0, first)
        scale = self.scale if len(x) > self.pictures else None  # else this step has one branch alone
        for one in self.budgets:
            features, left = self.model.reduction.linear(tokens, core, one, estimate)
            self.sums.add(one, features, after.image.float() - left.float(), scale)
        return frozen.head(frozen.run(after, last + 1, frozen.depth))


@torch.no_grad()
def collect(
    model: ElasticModel,
    encoder: TextEncoder | None,
    subjects: dict[int, str | int],
    budgets: Sequence[int],
    seed: int = 0,
    scale: float | None = None,
    texts: Sequence[int] = (),
    store: Path | None = None,
    on_part: Callable[[int], None] = lambda done: None,
) -> Sums:
    """The sums over one trajectory of each subject; its number in `subjects` and the seed say from which noise.

    Kept in `store` on the way, which a later call goes on from.
    With text budgets every other step has the text as it is, the others one of these.
    """
    backbone = model.backbone
    scale = backbone.flow.guidance_scale if scale is None else scale
    texts = [one for text in texts for one in (None, text)] or [None]
    told = {"subjects": list(subjects.items()), "budgets": list(budgets), "texts": texts, "seed": seed, "scale": scale}
    with model.dense() as frozen:
        told |= {"reduction": model.config.to_dict(), "weights": weights_digest(frozen), "dtype": str(backbone.dtype)}
    sums, done = load_sums(store, told, _place(backbone.device))
    numbers, conditions = list(subjects), Conditions(model, encoder, list(subjects.values()))
    shape = (backbone.channels, *backbone.image_size)
    with model.dense() as frozen:
        while done < len(subjects):
            on_part(done)
            part = numbers[done : done + AT_ONCE]
            condition = conditions.of(range(done, done + len(part)))
            generators = [picture_generator(seed, number) for number in part]
            noise = draw_noise(shape, generators, frozen.flow.noise_scale, frozen.device)
            watched = Watched(model, frozen, budgets, texts, sums, scale, len(part))
            sample(watched, noise, condition, steps=STEPS, guidance_scale=scale, solver="euler")
            done += len(part)
            if store is not None:
                tensors = {f"{budget}.{name}": value for budget, one in sums.items() for name, value in one.items()}
                with whole_file(store) as path:
                    save_file(tensors, path, metadata={"told": json.dumps(told), "done": str(done)})
    on_part(done)
    return sums


def _place(device: torch.device) -> torch.device:
    """Where the sums are: on the device, if it has float64."""
    return torch.device("cpu") if device.type == "mps" else device


def load_sums(store: Path | None, told: dict[str, Any], device: torch.device) -> tuple[Sums, int]:
    """Sums that an earlier call left, and of how many subjects; none where there are none, or others."""
    if store is None or not store.is_file():
        return Sums(), 0
    with in_one_line(f"{store} cannot be read; remove it to begin anew"), safe_open(store, "pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("told") != json.dumps(told):
            return Sums(), 0
        sums = Sums()
        for key in file.keys():  # noqa: SIM118  it is no dict
            budget, name = key.split(".")
            sums.setdefault(int(budget), {})[name] = file.get_tensor(key).to(device)
        return sums, int(metadata["done"])
