"""Finding, loading and saving a backbone: by preset, a file or folder in the release's layout, or from the hub."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rti.backbones.base import Backbone
from rti.backbones.jit import JiT
from rti.backbones.minit2i import MiniT2I
from rti.checkpoint import PICKLES, SAFETENSORS, State, fill, mismatches, read_state, without_wrapper
from rti.errors import InputError, UnsupportedModelError, check_choice, check_whole
from rti.files import fetch_repository, first_line, is_repository_name, local_path, read_json, whole_file, write_whole
from rti.precision import check_device, check_dtype
from rti.presets import PRESETS, Preset, default_core, find_preset, get_preset, is_released
from rti.shipped import shipped, shipped_name, shipped_names

WEIGHTS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json")
WEIGHTS += ("model.safetensors", "model.safetensors.index.json", "checkpoint-last.pth")
FAMILIES: dict[str, type[Backbone]] = {family.family: family for family in (MiniT2I, JiT)}


def load_backbone(
    source: str | Path,
    size: str | None = None,
    init: str | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Backbone:
    """Load a released model.

    `source` is a preset such as "minit2i-b16", a model that ships with rti, a repository on the hub, or a local file or
    folder in the release's layout. `size` ("b16", "large", ...) chooses where there are several, or tells the size of a
    file that does not say. With init="random" the preset is built with random weights from `seed` instead, for
    benchmarks.
    """
    if size is not None and not isinstance(size, str):
        raise InputError(f"size {size!r} is unknown; allowed: a name such as 'b16', or none")
    if init is not None:
        check_choice("init", init, ("random",))
    check_device(device)
    check_dtype(dtype)
    check_whole("seed", seed, 2**64 - 1, least=0)
    if init == "random":
        preset = get_preset(str(source), size)
        backbone = build(preset.family, preset.sizes)
        randomise(backbone, seed, dtype)
        backbone.source = {"source": preset.name, "init": init, "seed": seed}
    else:
        path, remembered = _locate(source, size)
        backbone = _load_path(path, size, dtype)
        backbone.source = remembered
    return backbone.to(device).eval()


def save_backbone(backbone: Backbone, folder: str | Path, values: State | None = None) -> None:
    """Write config and weights to the folder's `transformer`, as MiniT2I is released, each file whole or not at all.

    `values` are tensors that are not the backbone's own, such as an average's.
    """
    folder = Path(folder) / "transformer"
    state = backbone.state_dict() | (values or {})
    state = {backbone.weight_prefix + name: value.detach().contiguous() for name, value in state.items()}
    with whole_file(folder / WEIGHTS[0]) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(asdict(backbone.config), indent=2) + "\n")


def build(family: str, sizes: dict[str, Any]) -> Backbone:
    """A backbone of the given sizes without weights, on the meta device."""
    module = FAMILIES[family]
    known = {field.name for field in fields(module.config_type)}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in sizes.items() if key in known}
    with torch.device("meta"):
        return module(module.config_type(**values))


def preset_like(backbone: Backbone) -> Preset | None:
    """The preset that has a model's sizes, wherever the model came from."""
    rows = [preset for preset in PRESETS.values() if preset.family == backbone.family]
    named = {name for preset in rows for name in preset.sizes} - {"noise_scale"}
    sizes = asdict(backbone.config)

    def like(preset: Preset) -> bool:
        its = asdict(backbone.config_type(**preset.sizes))
        return all(its[name] == sizes[name] for name in named)

    return next(filter(like, rows), None)


def usual_core(backbone: Backbone) -> tuple[int, int]:
    """The core of a model that has no adapter: the paper's for these sizes, or by the depth of its trunk."""
    preset = preset_like(backbone)
    return default_core(backbone.depth) if preset is None else preset.core


def randomise(backbone: Backbone, seed: int, dtype: torch.dtype) -> None:
    """Plausible random weights: none is zero, and activations keep their scale."""
    generator = torch.Generator().manual_seed(seed)
    backbone.to(dtype).to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.8, 1.2, generator=generator)
            else:
                fan_in = parameter[0].numel() if parameter.ndim > 1 else 2500
                parameter.uniform_(-1.0, 1.0, generator=generator).mul_((3.0 / fan_in) ** 0.5)


def _locate(source: str | Path, size: str | None) -> tuple[Path, dict[str, Any]]:
    """A local path for `source`, and what to remember so that an adapter finds its backbone again."""
    path = shipped(source) or local_path(source)
    if path.exists():
        # A shipped model by its name: the package may lie elsewhere when the adapter is loaded.
        return path, {"source": shipped_name(path) or str(path.resolve())} | ({"size": size} if size else {})
    text = str(source)
    if is_released(text):
        preset = get_preset(text, size)
        if preset.hub is None:
            wanted = f"the path of its checkpoint-last.pth and size={preset.name.removeprefix(preset.family + '-')!r}"
            raise InputError(f"{preset.name} has no hub repository; give {wanted}, or init='random'")
        return _download(*preset.hub), {"source": preset.name}
    if is_repository_name(text) and path.suffix not in SAFETENSORS + PICKLES:
        return _download(text, None), {"source": text} | ({"size": size} if size else {})
    raise InputError(f"{text!r} is no file, folder or preset; presets: {', '.join([*shipped_names(), *PRESETS])}")


def _download(repository: str, folder: str | None) -> Path:
    kinds = ("*.json", "*.safetensors", "*.pth")
    root = fetch_repository(repository, [f"{folder}/**/{kind}" if folder else kind for kind in kinds])
    if folder is not None and not (root / folder).is_dir():
        raise InputError(f"{repository} on the hub has no folder {folder}")
    return root / folder if folder else root


def _load_path(path: Path, size: str | None, dtype: torch.dtype) -> Backbone:
    folder = _folder(path, size) if path.is_dir() else path.parent
    weights, config = path, folder / "config.json"
    if path.is_dir():
        weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
        if weights is None:
            raise InputError(f"{folder} holds no weights; expected one of {', '.join(WEIGHTS)}")
    sizes = read_json(config) if config.is_file() else None
    described = next((name for name, module in FAMILIES.items() if module.config_marker in (sizes or ())), None)
    if sizes is not None and described is None:
        raise UnsupportedModelError(f"{config} describes none of the supported models ({', '.join(FAMILIES)})")
    state, settings = read_state(weights)
    state = without_wrapper(state)
    family = next((name for name, module in FAMILIES.items() if module.weight_marker in state), None)
    if family is None:
        raise UnsupportedModelError(f"{weights} holds none of the supported models ({', '.join(FAMILIES)})")
    if described not in (None, family):
        raise InputError(f"{config} describes {described}, but {weights.name} holds {family}")
    try:
        if sizes is None or size is not None:
            known = FAMILIES[family].known_sizes(state, settings)
            preset = _released(family, state, known, size, str(weights))
            sizes = preset.sizes | known if sizes is None else sizes
        backbone = build(family, sizes)
    except Exception as error:  # values of unknown origin may fail in any way
        reason = str(error) if isinstance(error, InputError) else first_line(error)
        raise InputError(f"{config if described else weights} is not usable: {reason}") from None
    fill(backbone, state, dtype, str(weights))
    return backbone


def _released(family: str, state: State, known: dict[str, Any], size: str | None, origin: str) -> Preset:
    """The released size that the weights have, by their shapes; or the one the user names, unless it is another."""
    presets = [preset for preset in PRESETS.values() if preset.family == family]
    fitting = [one for one in presets if not mismatches(build(family, one.sizes | known).state_dict(), state)]
    if size is not None:
        wanted = get_preset(family, size)
        if fitting and wanted not in fitting:
            raise InputError(f"{origin} is {fitting[0].name}, not {wanted.name}")
        return wanted  # of sizes that were not released, the user's word counts
    if len(fitting) != 1:
        raise InputError(f"{origin} does not say its size and has no config.json beside it; give size=")
    return fitting[0]


def _folder(path: Path, size: str | None) -> Path:
    """The folder with the weights: the given one, its `transformer`, or the one of the wanted size."""
    for folder in (path / "transformer", path):
        if (folder / "config.json").is_file() or (folder / "checkpoint-last.pth").is_file():
            return folder
    presets = ((find_preset(entry.name), entry) for entry in sorted(path.iterdir()) if entry.is_dir())
    found = [(preset, entry) for preset, entry in presets if preset is not None]
    wanted = [entry for preset, entry in found if size is None or preset == find_preset(preset.family, size)]
    if len(wanted) == 1:
        return _folder(wanted[0], None)
    if found:
        names = ", ".join(preset.name for preset, _ in found)
        raise InputError(f"{path} holds the sizes {names}; give one of them as size=, got {size!r}")
    raise InputError(f"{path} holds no checkpoint; expected [transformer/]config.json or checkpoint-last.pth")
