"""Text regions: the same interface on the text stream, once per prompt, for the whole trunk (ours, beyond the paper).

Most of a prompt's positions are padding that all says the same, yet every block of the trunk pays for them at every
step. After the preamble the text is cut at its largest feature gaps, as the image is along its walk, and each run is
read into one token. The trunk gives back no text, so nothing is written.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from rti.backbones.base import Backbone, Condition
from rti.errors import InputError
from rti.method.budgets import Budget, resolve_budget
from rti.method.partition import partition
from rti.method.read import Read, average_phasors, membership


class TextRegions(nn.Module):
    """Runs of neighbouring text tokens, one token each.

    Identity: with fresh parameters and as many regions as there are text tokens, the text is unchanged.
    """

    def __init__(self, backbone: Backbone):
        super().__init__()
        if backbone.conditioned_on != "text":
            raise InputError(f"text_regions need a model that reads text; {type(backbone).__name__} draws from labels")
        self.read = Read(backbone.hidden_size, backbone.config.prompt_length)

    def forward(self, condition: Condition, budget: Budget) -> Condition:
        """A prepared condition, its stream (B, T, D) -> (B, R_t, D) and its phasors (B, T, P) -> (B, R_t, P)."""
        budget = resolve_budget(budget, condition.stream.shape[1], "text budget")
        regions = partition(condition.stream.detach(), budget, "gaps")
        member = membership(regions, budget)
        stream, phasors = self.read(condition.stream, member), average_phasors(condition.phasors, member)
        return replace(condition, stream=stream, phasors=phasors)
