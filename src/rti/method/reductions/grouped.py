"""Read, core, Write around any grouping of the patches: what our regions and feature similarity share."""

from __future__ import annotations

import torch

from rti.backbones.base import Backbone, Tokens
from rti.method.config import ReductionConfig
from rti.method.read import MeanRead, Read, average_phasors, centre_phasors, membership
from rti.method.reductions.base import Reduction, Span
from rti.method.write import Broadcast, Write


class GroupedReduction(Reduction):
    """One token per group. A subclass says which group each patch belongs to; no group is empty.

    Identity: with fresh parameters and as many groups as patches, the core runs as if nothing were here.
    """

    def __init__(
        self,
        config: ReductionConfig,
        backbone: Backbone,
        learned: bool = True,
        sizes: bool = True,
        centred: bool = False,
        sized_write: bool = False,
        sized_attention: bool = False,
    ):
        super().__init__(config)
        self.patches = backbone.patches
        self.read = Read(backbone.hidden_size, backbone.patches, sizes) if learned else MeanRead()
        self.write = Write(backbone.hidden_size, backbone.patches if sized_write else None) if learned else Broadcast()
        self.grid = backbone.grid if centred else None
        self.sized_attention = sized_attention

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        after, change, regions = self._run(tokens, core, budget, estimate)
        return after._replace(image=self.write(tokens.image, change, regions), phasors=tokens.phasors, log_sizes=None)

    def linear(
        self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(self.write, Broadcast):
            return super().linear(tokens, core, budget, estimate)
        _, change, regions = self._run(tokens, core, budget, estimate)
        return self.write.features(tokens.image, change, regions), self.write(tokens.image, change, regions)

    def correct(self, solution: torch.Tensor) -> None:
        self.write.correct(solution)

    def _run(
        self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None
    ) -> tuple[Tokens, torch.Tensor, torch.Tensor]:
        """Read and core: tokens after the core, still of the groups; what it changed (B, R, D); groups (B, N)."""
        regions = self.regions(tokens, budget, estimate)
        member = membership(regions, budget)
        region_tokens = self.read(tokens.image, member)
        if self.grid is None:
            phasors = average_phasors(tokens.phasors, member)
        else:
            phasors = centre_phasors(tokens.phasors, member, self.grid)
        log_sizes = member.sum(dim=-1).log() if self.sized_attention else None
        after = core(tokens._replace(image=region_tokens, phasors=phasors, log_sizes=log_sizes))
        return after, after.image - region_tokens, regions
