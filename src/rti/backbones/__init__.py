"""The backbones: one file per family behind the protocol of `base.py`, and how one is loaded."""

from rti.backbones.base import Backbone, Condition, FlowSettings, Tokens
from rti.backbones.jit import JiT
from rti.backbones.loading import FAMILIES, build, load_backbone
from rti.backbones.minit2i import MiniT2I

__all__ = ["FAMILIES", "Backbone", "Condition", "FlowSettings", "JiT", "MiniT2I", "Tokens", "build", "load_backbone"]
