"""Attaching a reduction and a LoRA to a backbone, and undoing it; loading both from an adapter's folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rti import adapter, lora
from rti.backbones.base import Backbone
from rti.errors import InputError, UnsupportedModelError
from rti.loading import load_backbone
from rti.method.config import ReductionConfig
from rti.method.core import CompressedCore
from rti.method.reductions import REDUCTIONS


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
        kind = type(config).__name__
        raise UnsupportedModelError(f"config must be a RegionConfig or that of another reduction, got {kind}")
    if backbone.attached:
        raise InputError("this backbone already has a reduction attached; detach that one first: model.detach()")
    config.check_fits(backbone.depth)
    lora.check_free(backbone)
    return ElasticModel(backbone, config)


def load(
    folder: str | Path | adapter.Stored,
    backbone: Backbone | str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> ElasticModel:
    """Load an adapter from a folder, the hub, or by the name of a shipped model, and attach it to its backbone.

    The folder names its backbone; give `backbone`, a module or a source, to use another.
    """
    stored = folder if isinstance(folder, adapter.Stored) else adapter.Stored.open(folder)
    if not isinstance(backbone, nn.Module):
        source = stored.backbone_source() if backbone is None else {"source": backbone}
        backbone = load_backbone(**source, dtype=dtype, device=device)
    stored.check_backbone(backbone)
    weights = stored.weights()
    model = attach(backbone, stored.config)
    try:
        stored.put(model, weights)
    except InputError:
        model.detach()
        raise
    return model.eval()


class ElasticModel(CompressedCore):
    """A frozen backbone with a token reduction and a LoRA, which train. Made by `rti.attach` or `rti.load`.

    Also a context manager that detaches at its end.
    """

    def __init__(self, backbone: Backbone, config: ReductionConfig):
        trainable = {name: parameter.requires_grad for name, parameter in backbone.named_parameters()}
        super().__init__(backbone, config)
        self._trainable_before = trainable
        self._fused: list[lora.Fused] | None = None
        backbone.requires_grad_(False)
        lora.inject(backbone, config)
        backbone.attached = True

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """What training changes: the reduction and the LoRA, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    # For inference, and undoing it.

    @property
    def fused(self) -> bool:
        return self._fused is not None

    @property
    def fused_for_good(self) -> bool:
        """Whether it was fused with keep=False: there is no way back."""
        return self.fused and any(layer.original is None for layer in self._fused)

    def fuse(self, keep: bool = True) -> ElasticModel:
        """Fold the LoRA into the weights, for inference. Twice is once.

        The original weights are kept for `unfuse`; with keep=False they are not, which saves their memory: then there
        is no way back to the LoRA, the frozen backbone or `detach`.
        """
        if not self.fused:
            self._fused = lora.fuse(self._attached(), keep)
        return self

    def unfuse(self) -> ElasticModel:
        """Undo `fuse`, bit by bit."""
        if self.fused:
            if self.fused_for_good:
                raise InputError("this model was fused with keep=False, so it cannot be unfused; load it again")
            lora.unfuse(self.backbone, self._fused)
            self._fused = None
        return self

    @contextmanager
    def unfused(self) -> Iterator[ElasticModel]:
        """As it trains, with the LoRA apart from the weights; afterwards as before."""
        self._attached()
        fused = self.fused
        self.unfuse()
        try:
            yield self
        finally:
            if fused:
                self.fuse()

    def merge(self, keep: bool = True) -> ElasticModel:
        warnings.warn("merge() is now fuse(), as in diffusers; the old name goes in 0.3", FutureWarning, stacklevel=2)
        return self.fuse(keep)

    def unmerge(self) -> ElasticModel:
        warnings.warn("unmerge() is now unfuse(); the old name goes in 0.3", FutureWarning, stacklevel=2)
        return self.unfuse()

    @contextmanager
    def dense(self) -> Iterator[Backbone]:
        """The frozen backbone alone, without our LoRA and reduction: `with model.dense() as backbone: ...`"""
        with self.unfused(), lora.switched_off(self.backbone):
            yield self.backbone

    def detach(self) -> Backbone:
        """Give back the backbone as it was before. This model is of no use afterwards."""
        backbone = self._attached()
        self.unfuse()
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
        with self.unfused():
            adapter.save(self, folder)

    def push_to_hub(self, repository: str, **options: Any) -> str:
        """Save the adapter to a repository on the hub; gives back its address."""
        with self.unfused():
            return adapter.push(self, repository, **options)
