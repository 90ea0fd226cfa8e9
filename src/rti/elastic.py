"""A backbone whose middle blocks run on fewer tokens (paper, "Compressing Only the Core")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rti import lora
from rti.backbones.base import Backbone, Condition
from rti.errors import InputError, UnsupportedModelError
from rti.method.budgets import Budget, resolve_budget
from rti.method.config import ReductionConfig
from rti.method.reductions import REDUCTIONS, Span, make_reduction


def attach(backbone: nn.Module, config: ReductionConfig) -> ElasticModel:
    """Attach a token reduction to a backbone, with LoRA on its projections; `model.detach()` undoes it.

    The backbone itself is changed in place, as PEFT does, and stays frozen: only the reduction and the LoRA train.
    """
    if isinstance(backbone, ElasticModel):
        raise InputError("this model already has a reduction attached; detach it first: backbone = model.detach()")
    if hasattr(backbone, "get_base_model"):  # a PeftModel around a backbone: its adapters stay active
        backbone = backbone.get_base_model()
    if not isinstance(backbone, Backbone):
        known = ", ".join(sorted(family.__name__ for family in Backbone.__subclasses__()))
        raise UnsupportedModelError(
            f"cannot attach to a {type(backbone).__name__}; supported: {known}, or a subclass of rti.Backbone"
        )
    if type(config) not in [row[0] for row in REDUCTIONS.values()]:
        raise UnsupportedModelError(
            f"config must be a RegionConfig or that of another reduction, got {type(config).__name__}"
        )
    if backbone.attached:
        raise InputError("this backbone already has a reduction attached; detach that one first: model.detach()")
    config.check_fits(backbone.depth)
    lora.check_free(backbone)
    return ElasticModel(backbone, config)


class ElasticModel(nn.Module):
    """Prelude on all patches, core on a budget of tokens, coda on all patches. Made by `rti.attach` or `rti.load`.

    Also a context manager that detaches at its end.
    """

    def __init__(self, backbone: Backbone, config: ReductionConfig):
        super().__init__()
        self.config = config
        self._trainable_before = {name: p.requires_grad for name, p in backbone.named_parameters()}
        self._merged: list[lora.Merged] | None = None
        with torch.device(backbone.device):
            reduction = make_reduction(config, backbone)
        backbone.requires_grad_(False)
        lora.inject(backbone, config)
        backbone.attached = True
        self.backbone = backbone
        self.reduction = reduction.to(backbone.dtype)

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
        backbone, (first, last) = self._attached(), self.config.core
        if torch.compiler.is_compiling() and (isinstance(budget, float) or isinstance(text_budget, float)):
            raise InputError(
                "under torch.compile give the budget as a whole number; a share would compile anew each time"
            )
        budget = resolve_budget(budget, backbone.patches)
        x, t = backbone.check(x, t, condition)
        tokens = backbone.embed(x, t, self.prepare(condition, text_budget))
        tokens = backbone.run(tokens, 0, first)  # prelude
        tokens = self.reduction(tokens, Span(backbone, first, last + 1), budget, estimate)  # core
        tokens = backbone.run(tokens, last + 1, backbone.depth)  # coda
        return backbone.head(tokens)

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
        backbone = self._attached()
        budget = resolve_budget(budget, backbone.patches)
        x, t = backbone.check(x, t, condition)
        tokens = backbone.embed(x, t, self.prepare(condition, text_budget))
        return self.reduction.regions(backbone.run(tokens, 0, self.config.core[0]), budget, estimate)

    def condition(self, **inputs: Any) -> Condition:
        return self._attached().condition(**inputs)

    def prepare(self, condition: Condition, text_budget: Budget = None) -> Condition:
        """Compute once what depends on the condition alone, its text as `text_budget` regions where one is given."""
        condition = self._attached().prepare(condition)
        if text_budget is None:
            return condition
        if self.reduction.text is None:
            raise InputError(
                f"text_budget {text_budget!r} given, but this adapter has no text regions; "
                "allowed: None, or an adapter with text_regions=True"
            )
        return self.reduction.text(condition, text_budget)

    def unconditional(self, condition: Condition) -> Condition:
        return self._attached().unconditional(condition)

    def _attached(self) -> Backbone:
        if self.backbone is None:
            raise InputError("this model is detached; attach its backbone again with rti.attach")
        return self.backbone

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """What training changes: the reduction and the LoRA, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    # For inference, and undoing it.

    @property
    def merged(self) -> bool:
        return self._merged is not None

    @property
    def merged_for_good(self) -> bool:
        """Whether it was merged with keep=False: there is no way back."""
        return self.merged and any(layer.original is None for layer in self._merged)

    def merge(self, keep: bool = True) -> ElasticModel:
        """Fold the LoRA into the weights, for inference. Twice is once.

        The original weights are kept for `unmerge`; with keep=False they are not, which saves their memory: then there
        is no way back to the LoRA, the frozen backbone or `detach`.
        """
        if not self.merged:
            self._merged = lora.merge(self._attached(), keep)
        return self

    def unmerge(self) -> ElasticModel:
        """Undo `merge`, bit by bit."""
        if self.merged:
            if self.merged_for_good:
                raise InputError("this model was merged with keep=False, so it cannot be unmerged; load it again")
            lora.unmerge(self.backbone, self._merged)
            self._merged = None
        return self

    @contextmanager
    def unmerged(self) -> Iterator[ElasticModel]:
        """As it trains, with the LoRA apart from the weights; afterwards as before."""
        merged = self.merged
        self.unmerge()
        try:
            yield self
        finally:
            if merged:
                self.merge()

    @contextmanager
    def dense(self) -> Iterator[Backbone]:
        """The frozen backbone alone, without our LoRA and reduction: `with model.dense() as backbone: ...`"""
        backbone = self._attached()
        with self.unmerged(), lora.switched_off(backbone):
            yield backbone

    def detach(self) -> Backbone:
        """Give back the backbone as it was before. This model is of no use afterwards."""
        backbone = self._attached()
        self.unmerge()
        lora.remove(backbone)
        for name, parameter in backbone.named_parameters():
            parameter.requires_grad_(self._trainable_before.get(name, parameter.requires_grad))
        del backbone.attached
        self.backbone = None
        return backbone

    def __enter__(self) -> ElasticModel:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.backbone is not None:
            self.detach()

    # Saving; `rti.load` is the inverse.

    def save_pretrained(self, folder: Any) -> None:
        """Write the adapter: PEFT's files for the LoRA, interface.safetensors, rti_config.json and a model card."""
        from rti.adapter import save

        self._attached()
        with self.unmerged():
            save(self, folder)

    def push_to_hub(self, repository: str, **options: Any) -> str:
        """Save the adapter to a repository on the hub; gives back its address."""
        from rti.adapter import push

        self._attached()
        with self.unmerged():
            return push(self, repository, **options)
