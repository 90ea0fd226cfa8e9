"""RTI, the Region Token Interface: pixel-space diffusion transformers on a budget of region tokens."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rti import moved

__version__ = "0.1.0"
moved.install()

# The public names and where they live. They are imported when first used, so that `rti --help` answers at once.
# A name must not be that of a file here: importing the file would put the module in its place.
_PUBLIC = {
    "load_backbone": "rti.loading",
    "Backbone": "rti.backbones",
    "RegionConfig": "rti.method.config",
    "attach": "rti.elastic",
    "ElasticModel": "rti.elastic",
    "load": "rti.elastic",
    "Pipeline": "rti.pipeline",
    "euler": "rti.sampling",
    "heun": "rti.sampling",
    "sample": "rti.sampling",
    "order": "rti.method.order",
    "merge_tree": "rti.method.merge",
    "InputError": "rti.errors",
    "PRESETS": "rti.presets",
}

__all__ = [
    "PRESETS",
    "Backbone",
    "ElasticModel",
    "InputError",
    "Pipeline",
    "RegionConfig",
    "__version__",
    "attach",
    "euler",
    "heun",
    "load",
    "load_backbone",
    "merge_tree",
    "order",
    "sample",
]

if TYPE_CHECKING:
    from rti.backbones import Backbone
    from rti.elastic import ElasticModel, attach, load
    from rti.errors import InputError
    from rti.loading import load_backbone
    from rti.method.config import RegionConfig
    from rti.method.merge import merge_tree
    from rti.method.order import order
    from rti.pipeline import Pipeline
    from rti.presets import PRESETS
    from rti.sampling import euler, heun, sample


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rti' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
