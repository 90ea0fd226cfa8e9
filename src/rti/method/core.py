"""Core: a backbone whose middle blocks run on fewer tokens (paper, "Compressing Only the Core")."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rti.backbones.base import Backbone, Condition, Tokens
from rti.errors import InputError
from rti.method.budgets import Budget, resolve_budget
from rti.method.config import ReductionConfig
from rti.method.reductions import Span, make_reduction


class CompressedCore(nn.Module):
    """Prelude on all patches, core on a budget of tokens, coda on all patches.

    Identity: with fresh parameters and as many regions as patches, it is the backbone.
    """

    backbone: Backbone | None

    def __init__(self, backbone: Backbone, config: ReductionConfig):
        super().__init__()
        self.config = config
        with torch.device(backbone.device):
            reduction = make_reduction(config, backbone)
        self.backbone, self.reduction = backbone, reduction.to(backbone.dtype)

    def forward(
        self,
        x: torch.Tensor,
        t: torch.Tensor | float,
        condition: Condition,
        budget: Budget = None,
        estimate: torch.Tensor | None = None,
        text_budget: Budget = None,
    ) -> torch.Tensor:
        """The clean image predicted from the noisy one: (B, 3, H, W), time (B,) or a number -> (B, 3, H, W).

        `budget` is the number of region tokens, a share of the patches, or None for as many as there are patches.
        `estimate` is the clean image of the step before, where the reduction cuts from it. `text_budget` is the number
        of text regions; None leaves the text as it is, or as `prepare` has made it.
        """
        if torch.compiler.is_compiling() and (isinstance(budget, float) or isinstance(text_budget, float)):
            raise InputError("under torch.compile a budget is a whole number; a share would compile anew each time")
        return self.coda(self.core(self.prelude(x, t, condition, text_budget), budget, estimate))

    def core(self, tokens: Tokens, budget: Budget = None, estimate: torch.Tensor | None = None) -> Tokens:
        """Tokens entering the core -> tokens leaving it, both with all patches; in between there are `budget`."""
        backbone, (first, last) = self._attached(), self.config.core
        return self.reduction(
            tokens, Span(backbone, first, last + 1), resolve_budget(budget, backbone.patches), estimate
        )

    def coda(self, tokens: Tokens) -> torch.Tensor:
        """Tokens leaving the core -> clean image."""
        backbone = self._attached()
        return backbone.head(backbone.run(tokens, self.config.core[1] + 1, backbone.depth))

    @torch.no_grad()
    def regions(
        self,
        x: torch.Tensor,
        t: torch.Tensor | float,
        condition: Condition,
        budget: Budget = None,
        estimate: torch.Tensor | None = None,
        text_budget: Budget = None,
    ) -> torch.Tensor:
        """The region of each patch that a forward pass would use: (B, N) int64, patches row by row."""
        budget = resolve_budget(budget, self._attached().patches)
        return self.reduction.regions(self.prelude(x, t, condition, text_budget), budget, estimate)

    def prelude(
        self, x: torch.Tensor, t: torch.Tensor | float, condition: Condition, text_budget: Budget = None
    ) -> Tokens:
        """Noisy image, time and condition -> tokens entering the core."""
        backbone = self._attached()
        x, t = backbone.check(x, t, condition)
        tokens = backbone.embed(x, t, self.prepare(condition, text_budget))
        return backbone.run(tokens, 0, self.config.core[0])

    def condition(self, **inputs: Any) -> Condition:
        return self._attached().condition(**inputs)

    def prepare(
        self, condition: Condition, text_budget: Budget = None, guidance: torch.Tensor | None = None
    ) -> Condition:
        """Compute once what depends on the condition alone, its text as `text_budget` regions where one is given.

        With `guidance`, the scale of each picture (B,), a pass with this condition gives the guided clean image.
        """
        backbone = self._attached()
        condition = backbone.prepare(condition)
        if text_budget is not None:
            if self.reduction.text is None:
                raise InputError(f"text_budget {text_budget!r} needs an adapter with text_regions=True; leave it out")
            condition = self.reduction.text(condition, text_budget)
        if guidance is not None:
            if self.reduction.guidance is None:
                raise InputError("guidance in one pass needs an adapter made for it (rti adapt --guidance 1.5..7)")
            condition = backbone.beside(condition, self.reduction.guidance(guidance))
        return condition

    def guides_itself(self, scale: float) -> bool:
        """Whether one pass gives the guided clean image at this scale."""
        scales = self.config.one_pass
        return scales is not None and scales[0] <= scale <= scales[1]

    def unconditional(self, condition: Condition) -> Condition:
        return self._attached().unconditional(condition)

    def _attached(self) -> Backbone:
        if self.backbone is None:
            raise InputError("this model is detached; attach its backbone again with rti.attach")
        return self.backbone
