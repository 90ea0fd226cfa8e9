"""LoRA by PEFT, as one adapter among others: the user's own adapters stay where they are and stay active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
        if name in lora and module.merged:
            raise InputError(f"{name} has a merged LoRA; call merge_and_unload() or unmerge it before attaching")
        if name in lora and ADAPTER in module.lora_A:
            raise InputError(f"{name} already has a LoRA named {ADAPTER!r}, which is our adapter's name; rename it")


def inject(backbone: Backbone, config: ReductionConfig) -> None:
    """Put a fresh LoRA adapter on the backbone's projections. B = 0, so nothing changes yet."""
    from peft import LoraConfig, inject_adapter_in_model

    active = {name: list(layer.active_adapters) for name, layer in _layers(backbone)}
    trainable = {id(parameter): parameter.requires_grad for parameter in backbone.parameters()}
    lora = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=list(backbone.lora_targets))
    lora.base_model_name_or_path = str((backbone.source or {}).get("source", ""))
    inject_adapter_in_model(lora, backbone, adapter_name=ADAPTER, low_cpu_mem_usage=backbone.device.type == "meta")
    # PEFT decides anew which adapters are active and what trains; the user's choice for theirs stands.
    for name, layer in _layers(backbone):
        layer.set_adapter([*active.get(name, []), *([ADAPTER] if ADAPTER in layer.lora_A else [])])
    for parameter in backbone.parameters():
        parameter.requires_grad_(trainable.get(id(parameter), True))


def remove(backbone: Backbone) -> None:
    """Take our adapter off again; a layer without any other adapter becomes the plain layer it was."""
    for name, layer in _layers(backbone):
        if set(layer.lora_A) == {ADAPTER}:
            backbone.set_submodule(name, layer.get_base_layer())
        elif ADAPTER in layer.lora_A:
            layer.delete_adapter(ADAPTER)
    backbone.peft_config.pop(ADAPTER)
    if not backbone.peft_config:
        del backbone.peft_config


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
    for name, layer in _layers(backbone):
        plain = layer.get_base_layer()
        place = "meta" if plain.weight.is_meta else "cpu"  # not on the model's GPU: it is only needed to undo
        original = {key: value.to(place, copy=True) for key, value in plain.state_dict().items()}
        fused.append(Fused(name, layer, original if keep else None))
        layer.merge(adapter_names=list(layer.active_adapters))
        backbone.set_submodule(name, plain)
    return fused


@torch.no_grad()
def unfuse(backbone: Backbone, fused: list[Fused]) -> None:
    """Put PEFT's layers back, with the original weights. What moved the model meanwhile did not reach the adapters."""
    for name, layer, original in fused:
        plain = layer.get_base_layer()
        for key, value in plain.state_dict().items():
            value.copy_(original[key])
        layer.merged_adapters.clear()
        dtype = plain.weight.dtype
        layer.to(plain.weight.device, None if dtype == original["weight"].dtype else dtype)
        backbone.set_submodule(name, layer)


@contextmanager
def switched_off(backbone: Backbone) -> Iterator[None]:
    """Run without our adapter, with those of the user as they are; a layer that has no other runs as the plain one."""
    with ExitStack() as undo:
        for name, layer in _layers(backbone):
            others = [adapter for adapter in layer.active_adapters if adapter != ADAPTER]
            if others:
                undo.callback(setattr, layer, "_active_adapter", layer.active_adapters)
                layer._active_adapter = others
            elif ADAPTER in layer.active_adapters:
                undo.callback(backbone.set_submodule, name, layer)
                backbone.set_submodule(name, layer.get_base_layer())
        yield


def _layers(backbone: nn.Module) -> list[tuple[str, nn.Module]]:
    from peft.tuners.lora import LoraLayer

    return [(name, module) for name, module in backbone.named_modules() if isinstance(module, LoraLayer)]
