"""From what a user types to a model: a name that ships, a preset, a folder, an adapter; without weights where none are
needed."""

from __future__ import annotations

from typing import Any

import torch

from rti.adapter import Stored, adapter_folder
from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.loading import FAMILIES, build, load_backbone
from rti.method.config import ReductionConfig
from rti.method.reductions import REDUCTIONS, Reduction, make_reduction
from rti.parsing import parse_pairs
from rti.presets import default_core, preset_of


def describe(
    model: str, core: tuple[int, int] | None = None, reduction: str | None = None, settings: list[str] | None = None
) -> tuple[Backbone, Reduction, ReductionConfig]:
    """The backbone and the reduction of a model: by name on the meta device, without weights, or from its folder.

    Where there is no adapter, the reduction is the one that `rti train` would begin with. A reduction by name, with
    settings such as cuts=merge, stands in for the one that the model has.
    """
    preset = preset_of(model)
    folder = adapter_folder(model) if preset is None else None
    if preset is not None:
        backbone, config = build(preset.family, preset.sizes), untrained_config("region", [], core or preset.core)
    elif folder is not None:
        stored = Stored.open(folder)
        config, origin = stored.config, stored.origin
        if origin.get("family") not in FAMILIES or not isinstance(origin.get("sizes"), dict):
            raise InputError(f"{folder} does not say which backbone it is for")
        backbone = build(origin["family"], origin["sizes"])
    else:
        backbone = load_backbone(model)
        config = untrained_config("region", [], core or default_core(backbone.depth))
    if reduction is not None or settings:
        config = untrained_config(reduction or "region", settings or [], core, usual=config.core)
    config.check_fits(backbone.depth)
    with torch.device("meta"):
        module = make_reduction(config, backbone)
    return backbone, module, config


def untrained_config(
    name: str,
    settings: list[str],
    core: tuple[int, int] | None = None,
    usual: tuple[int, int] | None = None,
    **more: Any,
) -> ReductionConfig:
    """The config `rti train --reduction NAME` would begin with, settings as typed: cuts=merge.

    Without a core it is the method's own, where region tokens have the `usual` one.
    """
    if name not in REDUCTIONS:
        raise InputError(f"unknown reduction {name!r}; allowed: {', '.join(REDUCTIONS)}")
    kind = REDUCTIONS[name][0]
    values = kind.training_defaults() | {"core": core or kind.own_core(usual)} | more
    return kind.from_dict(values | parse_pairs(settings, kind))
