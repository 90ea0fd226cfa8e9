"""From what a user types to a model: a name that ships, a preset, a folder, an adapter; without weights where none are
needed."""

from __future__ import annotations

from typing import Any

import torch

from rti.adapter import Stored
from rti.backbones.base import Backbone
from rti.errors import check_choice
from rti.loading import build, load_backbone, usual_core
from rti.method.config import ReductionConfig
from rti.method.reductions import REDUCTIONS, Reduction, make_reduction
from rti.parsing import parse_pairs
from rti.presets import preset_of


def describe(
    model: str, core: tuple[int, int] | None = None, reduction: str | None = None, settings: list[str] | None = None
) -> tuple[Backbone, Reduction, ReductionConfig]:
    """The backbone and the reduction of a model: by name on the meta device, without weights, or from its folder.

    Where there is no adapter, the reduction is the one that `rti train` would begin with. A reduction by name, with
    settings such as cuts=merge, stands in for the one that the model has.
    """
    stored, preset = Stored.find(model), preset_of(model)
    if stored is not None:
        config, backbone = stored.config, stored.build()
    else:
        backbone = load_backbone(model) if preset is None else build(preset.family, preset.sizes)
        config = untrained_config("region", [], core or usual_core(backbone))
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
    check_choice("reduction", name, REDUCTIONS)
    kind = REDUCTIONS[name][0]
    values = kind.training_defaults() | {"core": core or kind.own_core(usual)} | more
    return kind.from_dict(values | parse_pairs(settings, kind))
