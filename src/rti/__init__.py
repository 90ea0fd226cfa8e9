"""RTI, the Region Token Interface: pixel-space diffusion transformers on a budget of region tokens."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import rti.moved  # noqa: F401  old names of modules

__version__ = "0.2.0"

# The public names and where they live. They are imported when first used, so that `rti --help` answers at once.
# A name must not be that of a file here: importing the file would put the module in its place.
_PUBLIC = {
    "load_backbone": "rti.loading",
    "Backbone": "rti.backbones",
    "RegionConfig": "rti.method.config",
    "Budgets": "rti.method.budgets",
    "attach": "rti.elastic",
    "ElasticModel": "rti.elastic",
    "load": "rti.elastic",
    "Pipeline": "rti.pipeline",
    "adapt": "rti.training.adapt",
    "euler": "rti.solvers",
    "heun": "rti.solvers",
    "multistep": "rti.solvers",
    "sample": "rti.sampling",
    "order": "rti.method.order",
    "merge_tree": "rti.method.merge",
    "InputError": "rti.errors",
    "PRESETS": "rti.presets",
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from rti.backbones import Backbone as Backbone
    from rti.elastic import ElasticModel as ElasticModel
    from rti.elastic import attach as attach
    from rti.elastic import load as load
    from rti.errors import InputError as InputError
    from rti.loading import load_backbone as load_backbone
    from rti.method.budgets import Budgets as Budgets
    from rti.method.config import RegionConfig as RegionConfig
    from rti.method.merge import merge_tree as merge_tree
    from rti.method.order import order as order
    from rti.pipeline import Pipeline as Pipeline
    from rti.presets import PRESETS as PRESETS
    from rti.sampling import sample as sample
    from rti.solvers import euler as euler
    from rti.solvers import heun as heun
    from rti.solvers import multistep as multistep
    from rti.training.adapt import adapt as adapt


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rti' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
