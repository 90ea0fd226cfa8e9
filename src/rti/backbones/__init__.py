"""The backbones: one file per family behind the protocol of `base.py`."""

from rti.backbones.base import Backbone, Condition, FlowSettings, Tokens
from rti.backbones.jit import JiT
from rti.backbones.minit2i import MiniT2I

__all__ = ["Backbone", "Condition", "FlowSettings", "JiT", "MiniT2I", "Tokens"]
