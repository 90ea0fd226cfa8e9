"""Token skip, after Mixture-of-Depths: every other block of the core sees only the tokens a router admits.

Blocks alternate in groups of two, one on all tokens and one on the admitted. The paper says of its class-conditional
comparison that "returning its saving as three extra depth groups brings it back to dense compute", and no more. Its
numbers fit this reading: on JiT-B/16, 71 % of the dense token compute is four groups of the twelve blocks, which save
4 x 7/8 of a block; a further group costs 1 + 1/8, so three are the most that the saving pays for, to 99 % of dense. A
frozen checkpoint has no weights for more depth, and every method of the paper keeps the backbone and the places of its
LoRA, so an extra group runs the two blocks of a group again, right after the first time, with a router of its own. The
last groups are the ones run again. What a second run changes is multiplied by a learned gate that starts at zero, so
that training starts from the model as it is without the extra depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from rti.backbones.base import Backbone, Tokens
from rti.backbones.layers import RMSNorm
from rti.errors import InputError, check_finite, check_whole
from rti.method.config import ReductionConfig, setting
from rti.method.reductions.base import Reduction, Span


@dataclass(frozen=True)
class SkipConfig(ReductionConfig):
    """No budget: blocks alternate between all image tokens and the share `capacity` of them.

    `extra_groups` of the last groups of two blocks run twice: rti train MODEL --reduction token-skip --extra-groups 3
    """

    name: ClassVar[str] = "token-skip"

    capacity: float = setting(0.125, help="Share of the image tokens that every second block runs on.")
    extra_groups: int = setting(0, help="How many of the last groups of two blocks run twice.")

    def __post_init__(self):
        super().__post_init__()
        check_finite("capacity", self.capacity, above=0, most=1)
        check_whole("extra_groups", self.extra_groups, self.groups, least=0)

    @property
    def groups(self) -> int:
        """How many pairs of a dense and a sparse block there are; a last block without a partner is dense."""
        return (self.core[1] - self.core[0] + 1) // 2

    @classmethod
    def own_core(cls, core: tuple[int, int]) -> tuple[int, int]:
        """From block 2 on, to where the core of region tokens ends.

        The paper's [2, 13] beside [3, 13] on MiniT2I-B/16; on JiT-B/16, [2, 9] has the four sparse blocks that 71 % of
        the dense token compute means, which [4, 9] has not.
        """
        return min(2, core[0]), core[1]


class SkipReduction(Reduction):
    """A sparse block runs on the tokens with the highest scores; the rest stay on the residual stream.

    What a block changes is multiplied by a gate of the score, which is how the router learns. The gate starts near one.
    Identity: with a capacity of one, the routers and the gates of extra groups at zero, as those start, the core runs
    as if nothing were here.
    """

    elastic = False

    def __init__(self, config: SkipConfig, backbone: Backbone):
        super().__init__(config)
        self.patches = backbone.patches
        self.admitted = max(1, round(config.capacity * backbone.patches))
        sparse = config.groups + config.extra_groups  # first those of the groups, then those of their second runs
        self.norms = nn.ModuleList(RMSNorm(backbone.hidden_size) for _ in range(sparse))
        spread = 0.1 * backbone.hidden_size**-0.5  # scores of a tenth: enough to choose by, and gates near one
        self.routers = nn.ParameterList(torch.randn(backbone.hidden_size) * spread for _ in range(sparse))
        if config.extra_groups:
            self.gates = nn.Parameter(torch.zeros(config.extra_groups))

    def forward(self, tokens: Tokens, core: Span, budget: int, estimate: torch.Tensor | None = None) -> Tokens:
        blocks, groups = list(core), self.config.groups
        for group in range(groups):
            pair = blocks[2 * group : 2 * group + 2]
            tokens = self._group(group, tokens, *pair)
            if group in self._again():
                extra = group - self._again().start
                tokens = _between(tokens, self._group(groups + extra, tokens, *pair), self.gates[extra])
        for block in blocks[2 * groups :]:
            tokens = block(tokens)
        return tokens

    def _again(self) -> range:
        """The groups that run twice."""
        return range(self.config.groups - self.config.extra_groups, self.config.groups)

    def _group(self, number: int, tokens: Tokens, dense: Span, sparse: Span) -> Tokens:
        """A block on all tokens, and one on those that the router of that number admits."""
        tokens = dense(tokens)
        image, phasors = tokens.image, tokens.phasors
        scores = self.norms[number](image).float() @ self.routers[number].float()
        chosen = scores.topk(self.admitted, dim=1).indices.sort(dim=1).values
        index = chosen[:, :, None]
        some = image.gather(1, index.expand(-1, -1, image.shape[-1]))
        where = phasors.expand(len(image), -1, -1).gather(1, index.expand(-1, -1, phasors.shape[-1]))
        after = sparse(tokens._replace(image=some, phasors=where))
        gate = 2 * scores.gather(1, chosen).sigmoid()[:, :, None]
        moved = some + (gate * (after.image - some)).to(image.dtype)
        image = image.scatter(1, index.expand(-1, -1, image.shape[-1]), moved)
        return after._replace(image=image, phasors=phasors)

    def regions(self, tokens: Tokens, budget: int, estimate: torch.Tensor | None = None) -> torch.Tensor:
        raise InputError("token-skip has no regions: its tokens are kept or passed over, never grouped")

    def core_blocks(self) -> list[int]:
        (first, last), blocks = self.config.core, []
        for group in range(self.config.groups):
            blocks += [first + 2 * group, first + 2 * group + 1] * (2 if group in self._again() else 1)
        return blocks + list(range(first + 2 * self.config.groups, last + 1))

    def core_tokens(self, budget: int) -> list[int]:
        first = self.config.core[0]
        return [self.patches if (block - first) % 2 == 0 else self.admitted for block in self.core_blocks()]


def _between(before: Tokens, after: Tokens, share: torch.Tensor) -> Tokens:
    """All that a run of blocks changed, times a share."""
    image = before.image + share.to(before.image.dtype) * (after.image - before.image)
    side = after.side
    if before.side is not None:  # else they have just joined
        side = before.side + share.to(side.dtype) * (after.side - before.side)
    return after._replace(image=image, side=side)
