"""Feature similarity, after ToMe: the nearest of R anchors, wherever in the picture it is (paper, "Feat Sim")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from rti.backbones.base import Backbone, Tokens
from rti.errors import check_choice
from rti.method.config import ORDER_NAMES, ReductionConfig
from rti.method.order import order
from rti.method.reductions.grouped import GroupedReduction


@dataclass(frozen=True)
class SimilarityConfig(ReductionConfig):
    """Only the grouping differs from our regions: Read, Write, sizes and positions are the same.

    Anchors are evenly spaced along `order`. Row by row they stand in R / width columns, or in one;
    along the Hilbert curve they lie over the whole frame.
    """

    name: ClassVar[str] = "feature-similarity"

    order: str = "raster"

    def __post_init__(self):
        super().__post_init__()
        check_choice("order", self.order, ORDER_NAMES)


class SimilarityReduction(GroupedReduction):
    """Every patch joins the anchor whose features it resembles most, by cosine. Groups may lie anywhere."""

    def __init__(self, config: SimilarityConfig, backbone: Backbone):
        super().__init__(config, backbone)
        self.register_buffer("walk", order(config.order, *backbone.grid)[0], persistent=False)

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        """An anchor stays in its own group, so that no group is empty where two anchors are alike."""
        features = F.normalize(tokens.image.detach().float(), dim=-1)
        numbers = torch.arange(budget, device=features.device)
        anchors = self.walk[anchor_positions(features.shape[1], budget, features.device)]
        nearest = (features @ features[:, anchors].transpose(1, 2)).argmax(dim=-1)
        return nearest.scatter(1, anchors.expand(len(nearest), -1), numbers.expand(len(nearest), -1))


def anchor_positions(patches: int, budget: int, device: torch.device | None = None) -> torch.Tensor:
    """Evenly spaced places along an order, each in the middle of its share: (R,) int64."""
    return (2 * torch.arange(budget, device=device) + 1) * patches // (2 * budget)
