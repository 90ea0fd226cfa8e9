"""What a step of training computes: the velocity loss at a budget, against data or against the frozen backbone."""

from __future__ import annotations

import torch
from torch import nn

from rti.backbones.base import Condition
from rti.elastic import ElasticModel
from rti.flow import interpolate
from rti.training.draws import Dial, Draws
from rti.training.tasks import velocity_losses
from rti.training.trajectories import Lessons


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


class DistillationObjective(nn.Module):
    """What a step computes; the part that a distributed wrapper goes around.

    The student's clean image is to be the teacher's; where a step is guided, one pass is to give what guidance makes of
    the teacher's two. Its features after the core are to be the teacher's too, with the weight `features`, in units of
    what the teacher's core changes. `balanced` losses count less at small budgets, where they are many times as large,
    and one adapter would forget the large ones for their sake.
    """

    def __init__(self, model: ElasticModel, features: float, balanced: bool):
        super().__init__()
        self.model, self.features, self.balanced = model, features, balanced

    def forward(self, lessons: Lessons, dial: Dial) -> torch.Tensor:
        """The loss of each example, (B,)."""
        model, t = self.model, lessons.t
        condition = model.prepare(lessons.condition, dial.text_budget, lessons.scale if dial.guided else None)
        estimate = None if dial.blind else lessons.estimate
        tokens = model.core(model.prelude(lessons.x, t, condition), dial.budget, estimate)
        losses = velocity_losses(model.coda(tokens), lessons.clean, t, model.backbone.flow.time_floor)
        error = (tokens.image.float() - lessons.after).square().flatten(1).mean(dim=1)
        losses = losses + self.features * error / lessons.change
        if not self.balanced:
            return losses
        return losses * min(1.0, dial.budget / max(1, model.backbone.patches - dial.budget)) ** 0.5
