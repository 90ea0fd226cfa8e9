"""Writing a backbone in a layout that `load_backbone` reads. `rti.loading` is the inverse."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from rti.backbones.base import Backbone
from rti.files import whole_file, write_whole


def save_backbone(backbone: Backbone, folder: str | Path, values: dict[str, torch.Tensor] | None = None) -> None:
    """Write config and weights to the folder's `transformer`, as MiniT2I is released, each file whole or not at all.

    `values` are tensors that are not the backbone's own, such as an average's.
    """
    folder = Path(folder) / "transformer"
    state = backbone.state_dict() | (values or {})
    state = {backbone.weight_prefix + name: value.detach().contiguous() for name, value in state.items()}
    weights, config = folder / "diffusion_pytorch_model.safetensors", folder / "config.json"
    with whole_file(weights) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    write_whole(config, json.dumps(asdict(backbone.config), indent=2) + "\n")
