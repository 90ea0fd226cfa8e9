"""What a step of training computes: the velocity loss at a budget, against data or against the frozen backbone."""

from __future__ import annotations

import torch
from torch import nn

from rti.backbones.base import Condition
from rti.elastic import ElasticModel
from rti.flow import interpolate
from rti.sampling import guidance_applies, guide
from rti.training.draws import Dial, Draws
from rti.training.tasks import velocity_losses


class ElasticObjective(nn.Module):
    """What a step computes; the part that a distributed wrapper goes around.

    `estimate_budget` is that of the pass that makes the estimate.
    """

    def __init__(self, model: ElasticModel, estimate_budget: int):
        super().__init__()
        self.model, self.estimate_budget = model, estimate_budget
        # accelerate shards a model by the classes it names here.
        self._no_split_modules = [kind.__name__ for kind in model.backbone.block_types]

    def forward(self, images: torch.Tensor, condition: Condition, draws: Draws, dial: Dial) -> torch.Tensor:
        """The velocity loss of each example: (B, C, H, W) clean images -> (B,)."""
        flow = self.model.backbone.flow
        noise = flow.noise_scale * draws.noise
        condition = condition.where(~draws.dropped, self.model.unconditional(condition))
        x = interpolate(images, noise, draws.t)
        estimate = self.estimate(images, condition, draws, noise, dial)
        clean = self.model(x, draws.t, condition, dial.budget, estimate, dial.text_budget)
        return velocity_losses(clean, images, draws.t, flow.time_floor)

    @torch.no_grad()
    def estimate(
        self, images: torch.Tensor, condition: Condition, draws: Draws, noise: torch.Tensor, dial: Dial
    ) -> torch.Tensor | None:
        """The clean image as the model would have seen it a few sampling steps earlier, with the same noise."""
        if dial.blind or not self.model.reduction.uses_estimate:
            return None
        t = (draws.t - draws.earlier).clamp_min(0.0)
        x = interpolate(images, noise, t)
        return self.model(x, t, condition, budget=self.estimate_budget, text_budget=dial.text_budget)


class DistillationObjective(ElasticObjective):
    """What a step computes; the part that a distributed wrapper goes around.

    The student's clean image is to be the teacher's; where a step is guided, one pass is to give what guidance makes of
    the teacher's two. Its features after the core are to be the teacher's too, with the weight `features`, in units of
    what the teacher's core changes.
    """

    def __init__(self, model: ElasticModel, estimate_budget: int, features: float):
        super().__init__(model, estimate_budget)
        self.features = features

    def forward(
        self, images: torch.Tensor, condition: Condition, draws: Draws, dial: Dial, scale: torch.Tensor
    ) -> torch.Tensor:
        """The loss of each picture of the teacher's: (B, C, H, W), at its scale of guidance (B,) -> (B,)."""
        model, flow, t = self.model, self.model.backbone.flow, draws.t
        noise = flow.noise_scale * draws.noise
        x, cut_from = interpolate(images, noise, t), self.estimate(images, condition, draws, noise, dial)
        if dial.guided:
            scale = torch.where(guidance_applies(t, t.new_tensor(flow.guidance_interval)), scale, 1.0)
            both = Condition.cat([condition, model.unconditional(condition)])
            teacher = self.teacher(x.repeat(2, 1, 1, 1), t.repeat(2), both)
            before, after, target = (guide(value, scale.view(-1, *[1] * (value.ndim - 1))) for value in teacher)
            condition = model.prepare(condition, dial.text_budget, scale)
        else:
            condition = condition.where(~draws.dropped, model.unconditional(condition))
            before, after, target = self.teacher(x, t, condition)
            condition = model.prepare(condition, dial.text_budget)
        tokens = model.core(model.prelude(x, t, condition), dial.budget, cut_from)
        losses = velocity_losses(model.coda(tokens), target, t, flow.time_floor)
        error = (tokens.image.float() - after).square().flatten(1).mean(dim=1)
        return losses + self.features * error / (after - before).square().mean()

    @torch.no_grad()
    def teacher(self, x: torch.Tensor, t: torch.Tensor, condition: Condition) -> tuple[torch.Tensor, ...]:
        """The frozen backbone's image tokens entering and leaving the core, in float32, and its clean image."""
        first, last = self.model.config.core
        with self.model.dense() as frozen:
            tokens = frozen.run(frozen.embed(x, t, frozen.prepare(condition)), 0, first)
            left = frozen.run(tokens, first, last + 1)
            return tokens.image.float(), left.image.float(), frozen.head(frozen.run(left, last + 1, frozen.depth))
