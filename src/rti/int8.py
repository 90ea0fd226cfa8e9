"""Linear layers in int8 on a CPU: weights once and by output channel, activations as they come, picture by picture."""

from __future__ import annotations

import warnings
from contextlib import ExitStack

import torch
from torch import nn

from rti.backbones.base import Backbone
from rti.errors import InputError


class _PictureByPicture(nn.Module):
    """A layer in int8, over each picture by itself: torch takes the range of activations over all it is given, and a
    picture must not depend on those beside it."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(one) for one in x.split(1)])


def quantise(backbone: Backbone) -> ExitStack:
    """Run the linear layers of the blocks in int8. Patches in, patches out, norms and attention stay as they are.

    For inference on a CPU in float32, after a LoRA has been merged; nothing trains through it. What it gives back puts
    the layers back that were there before, untouched: `with quantise(backbone): ...`, or its close().
    """
    if backbone.device.type != "cpu" or backbone.dtype != torch.float32:
        raise InputError(f"int8 needs a float32 model on a CPU; this one is {backbone.dtype} on {backbone.device}")
    layers = []
    for block in backbone.repeated_blocks():
        for module in list(block.modules()):
            for name, child in list(module.named_children()):
                if type(child) is nn.Linear:
                    layers.append((module, name, child))
                elif "lora" in type(child).__module__:
                    raise InputError("int8 needs the LoRA folded in first: model.fuse()")
    if not layers:
        raise InputError("no linear layer to run in int8; is the model in int8 already?")
    undo = ExitStack()
    for parent, name, layer in layers:
        undo.callback(setattr, parent, name, layer)
        setattr(parent, name, _in_int8(layer))
    return undo


def _in_int8(layer: nn.Linear) -> nn.Module:
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces a successor elsewhere
        holder = nn.Sequential(layer).eval()
        holder = quantize_dynamic(holder, {nn.Linear: per_channel_dynamic_qconfig}, dtype=torch.qint8)
    return _PictureByPicture(holder[0])
