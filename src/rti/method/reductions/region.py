"""The region token interface: order -> partition -> Read -> core -> Write."""

from __future__ import annotations

import torch

from rti.backbones.base import Backbone, Tokens
from rti.backbones.layers import patchify
from rti.errors import InputError
from rti.method.config import RegionConfig
from rti.method.order import order
from rti.method.partition import fixed_regions, partition
from rti.method.reductions.grouped import GroupedReduction


class RegionReduction(GroupedReduction):
    """Connected regions along a walk over the patches, one token each."""

    def __init__(self, config: RegionConfig, backbone: Backbone):
        learned, centred = config.interface == "learned", config.position == "centre"
        sized = config.sized_write, config.sized_attention
        super().__init__(config, backbone, learned, config.size_embedding, centred, *sized)
        self.patch_size, self.image_size = backbone.patch_size, backbone.image_size
        walk, inverse = order(config.order, *backbone.grid)
        self.register_buffer("walk", walk, persistent=False)
        self.register_buffer("inverse", inverse, persistent=False)

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        config = self.config
        batch = len(tokens.image)
        if self.uses_estimate:
            if estimate is None:
                ids = fixed_regions(1, len(self.walk), budget, self.walk.device)
            else:
                ids = partition(self._patches(estimate, batch), budget, config.cuts, config.size_prior)
        else:
            ids = partition(tokens.image.detach()[:, self.walk], budget, config.cuts, config.size_prior)
        return ids[:, self.inverse].repeat(batch // len(ids), 1)

    def _patches(self, estimate: torch.Tensor, batch: int) -> torch.Tensor:
        """The estimate's patches along the walk. One estimate may serve several branches of a guided batch."""
        shape = tuple(estimate.shape) if isinstance(estimate, torch.Tensor) else type(estimate).__name__
        if len(shape) != 4 or shape[2:] != self.image_size or not shape[0] or batch % shape[0]:
            raise InputError(
                f"estimate of shape {shape} for a batch of {batch}; "
                f"allowed: (batch, channels, {self.image_size[0]}, {self.image_size[1]}), one per image or per branch"
            )
        return patchify(estimate.detach(), self.patch_size)[:, self.walk]

    @property
    def uses_estimate(self) -> bool:
        return self.config.cuts_from == "estimate" and self.config.cuts != "fixed"
