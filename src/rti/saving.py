"""Writing a backbone in a layout that `load_backbone` reads. `rti.loading` is the inverse."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from rti.backbones.base import Backbone


def save_backbone(backbone: Backbone, folder: str | Path, values: dict[str, torch.Tensor] | None = None) -> None:
    """Write config and weights to the folder's `transformer`, as MiniT2I is released, each file whole or not at all.

    `values` are tensors that are not the backbone's own, such as an average's.
    """
    folder = Path(folder) / "transformer"
    folder.mkdir(parents=True, exist_ok=True)
    state = backbone.state_dict() | (values or {})
    state = {backbone.weight_prefix + name: value.detach().contiguous() for name, value in state.items()}
    weights, config = folder / "diffusion_pytorch_model.safetensors", folder / "config.json"
    save_file(state, f"{weights}.part", metadata={"format": "pt"})
    os.replace(f"{weights}.part", weights)
    Path(f"{config}.part").write_text(json.dumps(asdict(backbone.config), indent=2) + "\n", encoding="utf-8")
    os.replace(f"{config}.part", config)
