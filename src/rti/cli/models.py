"""Finding the model a command is about, without weights where none are needed."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from rti.errors import InputError
from rti.presets import PRESETS, Preset, find_preset
from rti.shipped import SHIPPED

if TYPE_CHECKING:
    from rti.backbones import Backbone
    from rti.method.config import ReductionConfig
    from rti.method.reductions import Reduction
    from rti.pipeline import Pipeline

_SHIPPED = f"A model that ships with rti ({', '.join(SHIPPED)}), a" if SHIPPED else "A"
MODEL_HELP = f"{_SHIPPED} preset ({', '.join(PRESETS)}), or the folder of a checkpoint or of an adapter."
DTYPES = ("float32", "bfloat16", "float16")
DTYPE_HELP = f"Weights as {', '.join(DTYPES)}; the sampling state is always float32."
DEVICE_HELP = "cpu, cuda, cuda:1, mps, or auto."
TEXT_BUDGET_HELP = "Text tokens in the trunk, such as 32 or 0.25; the adapter must have text regions. Default: all."
INT8_HELP = "The blocks' linear layers in int8, on a CPU, dense as well: less time for the released sizes."
COMPILE_HELP = "Compile the blocks first, which takes a minute: for many pictures."
GUIDANCE_BUDGET_HELP = "Budget of the unconditional branch of guidance. Default: that of the row."


def describe(
    model: str, core: tuple[int, int] | None = None, reduction: str | None = None, settings: list[str] | None = None
) -> tuple[Backbone, Reduction, ReductionConfig]:
    """The backbone and the reduction of a model: by name on the meta device, without weights, or from its folder.

    Where there is no adapter, the reduction is the one that `rti train` would begin with. A reduction by name, with
    settings such as cuts=merge, stands in for the one that the model has.
    """
    import torch

    from rti.adapter import adapter_folder, read_config
    from rti.loading import FAMILIES, build, load_backbone
    from rti.method.reductions import make_reduction

    preset = preset_of(model)
    folder = adapter_folder(model) if preset is None else None
    if preset is not None:
        backbone, config = build(preset.family, preset.sizes), untrained_config("region", [], core or preset.core)
    elif folder is not None:
        config, origin = read_config(folder)
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


def preset_of(model: str, size: str | None = None) -> Preset | None:
    """The preset of that name; a file or folder of that name comes first. (A name too long for a path is none.)"""
    return None if os.path.exists(model) else find_preset(model, size)


def load_pipeline(
    model: str,
    adapter: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    compile: bool = False,
    **options: Any,
) -> Pipeline:
    """The pipeline of a model as typed, its LoRA not folded in; `options` go to `Pipeline.from_pretrained`."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; allowed: {', '.join(DTYPES)}")
    import torch

    from rti.pipeline import Pipeline
    from rti.precision import emulated_warning, is_emulated

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and is_emulated(dtype):
        warnings.warn(emulated_warning(dtype), stacklevel=2)
    options |= {"torch_dtype": getattr(torch, dtype), "device": device, "merge": False}
    pipe = Pipeline.from_pretrained(model, adapter=adapter, **options)
    if compile:
        pipe.backbone.compile_repeated_blocks()
    return pipe


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
    from rti.method.reductions import REDUCTIONS
    from rti.training.parsing import parse_arguments

    if name not in REDUCTIONS:
        raise InputError(f"unknown reduction {name!r}; allowed: {', '.join(REDUCTIONS)}")
    kind = REDUCTIONS[name][0]
    values = kind.training_defaults() | {"core": core or kind.own_core(usual)} | more
    return kind.from_dict(values | parse_arguments([f"--{one}" for one in settings], kind))


def default_core(depth: int) -> tuple[int, int]:
    """Where no paper says otherwise: leave a sixth of the blocks, at least one where there are three, at each end."""
    ends = max(round(depth / 6), 1) if depth >= 3 else 0
    return ends, depth - 1 - ends
