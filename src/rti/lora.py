"""LoRA by PEFT, as one adapter among others: the user's own adapters stay where they are and stay active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.method.config import ReductionConfig

ADAPTER = "rti"


def check_free(backbone: Backbone) -> None:
    """Refuse a backbone on which an adapter of ours could not work beside those it has."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    lora = dict(_layers(backbone))
    for name, module in backbone.named_modules():
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and name not in lora:
            raise InputError(f"{name} has a PEFT {type(module).__name__}; only LoRA can stay active beside a reduction")
    for name, layer in lora.items():
        if layer.merged:
            raise InputError(f"{name} has a merged LoRA; call merge_and_unload() or unmerge it before attaching")
        if ADAPTER in layer.lora_A:
            raise InputError(f"{name} already has a LoRA named {ADAPTER!r}, which is our adapter's name; rename it")


def inject(backbone: Backbone, config: ReductionConfig) -> None:
    """Put a fresh LoRA adapter on the backbone's projections. B = 0, so nothing changes yet."""
    from peft import LoraConfig, inject_adapter_in_model

    active = {name: list(layer.active_adapters) for name, layer in _layers(backbone)}
    trainable = {id(parameter): parameter.requires_grad for parameter in backbone.parameters()}
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(backbone.lora_targets),
        base_model_name_or_path=str((backbone.source or {}).get("source", "")),
    )
    meta = backbone.device.type == "meta"
    inject_adapter_in_model(lora, backbone, adapter_name=ADAPTER, low_cpu_mem_usage=meta)
    # PEFT decides anew which adapters are active and what trains; the user's choice for theirs stands.
    for name, layer in _layers(backbone):
        layer.set_adapter([*active.get(name, []), *([ADAPTER] if ADAPTER in layer.lora_A else [])])
    for parameter in backbone.parameters():
        parameter.requires_grad_(trainable.get(id(parameter), True))


def remove(backbone: Backbone) -> None:
    """Take our adapter off again; a layer without any other adapter becomes the plain layer it was."""
    for name, layer in list(_layers(backbone)):
        if ADAPTER not in layer.lora_A:
            continue
        if set(layer.lora_A) == {ADAPTER}:
            _put(backbone, name, layer.get_base_layer())
        else:
            layer.delete_adapter(ADAPTER)
    configs = backbone.__dict__.get("peft_config", {})
    configs.pop(ADAPTER, None)
    if not configs:
        backbone.__dict__.pop("peft_config", None)


class Fused(NamedTuple):
    """A layer that runs as the plain layer it was, its adapters folded in: what it takes to undo that."""

    name: str
    layer: nn.Module  # PEFT's, taken out
    original: dict[str, torch.Tensor] | None  # weight and bias before, where they were kept, in the host's memory


def fuse(backbone: Backbone, keep: bool = True) -> list[Fused]:
    """Fold the active adapters into the weights and take PEFT's layers out: no trace of them is left in a forward pass.

    Gives back what `unfuse` needs to be exact; without `keep` that is not possible, and takes no memory.
    """
    fused = []
    for name, layer in list(_layers(backbone)):
        plain = layer.get_base_layer()
        original = {key: _kept(value) for key, value in plain.state_dict().items()} if keep else None
        fused.append(Fused(name, layer, original))
        layer.merge(adapter_names=list(layer.active_adapters))
        _put(backbone, name, plain)
    return fused


def _kept(value: torch.Tensor) -> torch.Tensor:
    """A copy beside the model, not on its GPU: it is only needed to undo."""
    return value.detach().to("meta" if value.is_meta else "cpu", copy=True)


@torch.no_grad()
def unfuse(backbone: Backbone, fused: list[Fused]) -> None:
    """Put PEFT's layers back, with the original weights. What moved the model meanwhile did not reach the adapters."""
    for name, layer, original in fused:
        plain = layer.get_base_layer()
        for key, value in plain.state_dict().items():
            value.copy_(original[key])
        layer.merged_adapters.clear()
        cast = plain.weight.dtype if plain.weight.dtype != original["weight"].dtype else None
        layer.to(plain.weight.device, cast)
        _put(backbone, name, layer)


@contextmanager
def switched_off(backbone: Backbone) -> Iterator[None]:
    """Run without our adapter, with those of the user as they are; a layer that has no other runs as the plain one."""
    taken_out, switched = [], []
    try:
        for name, layer in list(_layers(backbone)):
            if ADAPTER not in layer.active_adapters:
                continue
            others = [adapter for adapter in layer.active_adapters if adapter != ADAPTER]
            if others:
                switched.append((layer, list(layer.active_adapters)))
                layer._active_adapter = others
            else:
                taken_out.append((name, layer))
                _put(backbone, name, layer.get_base_layer())
        yield
    finally:
        for layer, active in switched:
            layer._active_adapter = active
        for name, layer in taken_out:
            _put(backbone, name, layer)


def _put(backbone: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, child = name.rpartition(".")
    setattr(backbone.get_submodule(parent), child, layer)


def _layers(backbone: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    from peft.tuners.lora import LoraLayer

    return ((name, module) for name, module in backbone.named_modules() if isinstance(module, LoraLayer))
