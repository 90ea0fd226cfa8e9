"""The released models by name, with the core, the budgets and the figures the paper reports for them.

No torch here: the command line reads this table to answer `--help`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rti.errors import InputError


@dataclass(frozen=True)
class Preset:
    """One row: a released model, and how the paper compresses it."""

    name: str
    family: str
    sizes: dict[str, Any]  # fields of the family's config that differ from its defaults
    core: tuple[int, int]  # first and last block of the core
    budgets: tuple[int, ...]  # trained budgets
    steps: int  # training steps
    hub: tuple[str, str] | None = None  # repository and folder
    trainable_millions: float | None = None  # as the paper's table prints it; None: the paper does not train this one


_MINIT2I_HUB = "MiniT2I/MiniT2I"
_BUDGETS_1024, _BUDGETS_256 = (64, 128, 256, 512), (32, 64, 128, 192)  # by the number of patches
_PATCH_32 = dict(patch_size=32)
_MINIT2I_L = dict(hidden_size=1248, txt_hidden_size=1248, cond_vec_size=1248, num_heads=24, head_dim=52)
_MINIT2I_L |= dict(depth_double=23, mlp_ratio=2.7)
_JIT_L = dict(hidden_size=1024, num_heads=16, depth=24, in_context_start=8)
_JIT_H = dict(hidden_size=1280, num_heads=16, depth=32, in_context_start=10, bottleneck_dim=256)
_JIT_512 = dict(input_size=512, noise_scale=2.0, **_PATCH_32)

# A row without a trainable count follows the rule of its family's other rows: the core of MiniT2I leaves three blocks
# at each end, that of JiT is half the trunk from the block at which the class tokens join.
PRESETS = {
    preset.name: preset
    for preset in (
        Preset("minit2i-b16", "minit2i", {}, (3, 13), _BUDGETS_1024, 40_000, (_MINIT2I_HUB, "minit2i-b-16"), 16.3),
        Preset(
            "minit2i-l16", "minit2i", _MINIT2I_L, (3, 19), _BUDGETS_1024, 40_000, (_MINIT2I_HUB, "minit2i-l-16"), 36.0
        ),
        Preset("minit2i-b32", "minit2i", _PATCH_32, (3, 13), _BUDGETS_256, 40_000, (_MINIT2I_HUB, "minit2i-b-32")),
        Preset("jit-b16", "jit", {}, (4, 9), _BUDGETS_256, 100_000, trainable_millions=6.0),
        Preset("jit-l16", "jit", _JIT_L, (8, 19), _BUDGETS_256, 100_000),
        Preset("jit-h16", "jit", _JIT_H, (10, 25), _BUDGETS_256, 100_000),
        Preset("jit-b32", "jit", _JIT_512, (4, 9), _BUDGETS_256, 100_000),
        Preset("jit-l32", "jit", _JIT_L | _JIT_512, (8, 19), _BUDGETS_256, 100_000),
        Preset("jit-h32", "jit", _JIT_H | _JIT_512, (10, 25), _BUDGETS_256, 100_000),
    )
}

# Small models to train from scratch on the scenes world, by `rti pretrain`: MiniT2I's structure with 16 x 16 patches
# and 64 text tokens, the release's 4 to 1, and JiT's with a class for each colour of each shape.
_SCENES = dict(image_size=64, patch_size=4, depth_double=12, txt_preamble_depth=2, num_heads=4, head_dim=32)
_SCENES |= dict(hidden_size=128, txt_hidden_size=128, cond_vec_size=128, pca_channels=32)
_SCENES |= dict(txt_input_size=64, prompt_length=64, llm="rti-words", noise_scale=2.0, n_T=50, guidance_scale=3.0)
_SCENES_JIT = dict(input_size=64, patch_size=4, depth=10, num_heads=4, hidden_size=128, bottleneck_dim=32)
_SCENES_JIT |= dict(in_context_len=4, in_context_start=3, num_classes=56, noise_scale=2.0)
FROM_SCRATCH: dict[str, tuple[str, dict[str, Any]]] = {
    "scenes": ("minit2i", _SCENES),
    "scenes-jit": ("jit", _SCENES_JIT),
    "photographs": ("jit", _SCENES_JIT),  # of scripts/photographs.py, as many as the classes of scenes
}

# How `rti train` adapts those that ship: budgets, steps, core, and what suits a small model on a CPU.
_SCENES_TRAINING = dict(budgets=(16, 32, 64, 128), steps=2000, batch=16, batch_per_device=16, ema=0.995)
_SCENES_TRAINING |= dict(learning_rate=1e-3, warmup=50, cooldown=500)
SCENES_TRAINING: dict[str, dict[str, Any]] = {
    "scenes": _SCENES_TRAINING | {"core": (2, 9)},
    "scenes-jit": _SCENES_TRAINING | {"core": (3, 7)},
}

_REPOSITORIES = {_MINIT2I_HUB: "minit2i"}  # that stand for a family, since they hold all of its sizes
_SIZE_NAMES = {"b": "b16", "base": "b16", "l": "l16", "large": "l16", "h": "h16", "huge": "h16"}


def find_preset(name: str, size: str | None = None) -> Preset | None:
    """The preset called `name`, in any common spelling ("JiT-B/16", "minit2i-b-16"), or family `name` and `size`.

    A name with its size may be given the same size again; None where nothing fits.
    """
    key = _squash(name)
    whole = next((preset for preset in PRESETS.values() if _squash(preset.name) == key), None)
    if size is None:
        return whole
    family = whole.family if whole is not None else key
    short = _squash(size).removeprefix(family)
    wanted = f"{family}{_SIZE_NAMES.get(short, short)}"
    found = next((preset for preset in PRESETS.values() if _squash(preset.name) == wanted), None)
    return found if whole in (None, found) else None


def preset_of(model: str, size: str | None = None) -> Preset | None:
    """The preset of that name; a file or folder of that name comes first. (A name too long for a path is none.)"""
    return None if os.path.exists(model) else find_preset(model, size)


def default_core(depth: int) -> tuple[int, int]:
    """Where no paper says otherwise: leave a sixth of the blocks, at least one where there are three, at each end."""
    ends = max(round(depth / 6), 1) if depth >= 3 else 0
    return ends, depth - 1 - ends


def sizes_of(family: str) -> list[str]:
    return [name.removeprefix(f"{family}-") for name in PRESETS if name.startswith(f"{family}-")]


def is_released(name: str) -> bool:
    """Whether a name is that of a preset, of a family, or of the repository of one."""
    return find_preset(name) is not None or bool(sizes_of(_squash(name)))


def get_preset(name: str, size: str | None) -> Preset:
    """As `find_preset`, but what cannot be found is an error that says what can."""
    preset = find_preset(name, size)
    if preset is not None:
        return preset
    if not is_released(name):
        raise InputError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    whole = find_preset(name)
    sizes = ", ".join(sizes_of(_squash(name) if whole is None else whole.family))
    given = f"unknown size {size!r} of {name}" if size is not None else f"{name!r} has several sizes, give one as size="
    raise InputError(f"{given}; allowed: {sizes}")


def _squash(name: str) -> str:
    if not isinstance(name, str):
        raise InputError(f"{name!r} is no name of a model or of a size; models: {', '.join(PRESETS)}")
    return "".join(character for character in _REPOSITORIES.get(name, name).lower() if character.isalnum())
