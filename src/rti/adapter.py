"""Saving and loading an attached reduction: one folder, which PEFT can read too.

adapter_config.json, adapter_model.safetensors   the LoRA, in PEFT's layout
interface.safetensors                            the reduction's own weights (Read and Write)
rti_config.json                                  the reduction, and which backbone it belongs to
presets.json                                     where `rti tune` has been: how to draw at which cost
README.md                                        a model card
"""

from __future__ import annotations

import json
import os
import tempfile
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from rti import __version__
from rti.backbones.base import Backbone
from rti.checkpoint import State, read_state, require_match, under
from rti.dials import FILE as PRESETS
from rti.errors import InputError
from rti.files import fetch_repository, in_one_line, is_repository_name, local_path, read_json, write_whole
from rti.loading import FAMILIES, build
from rti.lora import ADAPTER
from rti.method.config import ReductionConfig
from rti.method.reductions import config_from_dict
from rti.presets import is_released
from rti.shipped import find_shipped, shipped, shipped_name

if TYPE_CHECKING:
    from rti.elastic import ElasticModel

CONFIG, INTERFACE, LORA = "rti_config.json", "interface.safetensors", "adapter_model.safetensors"
MUST_AGREE = ("family", "hidden_size", "patch_size", "image_size", "input_size", "depth", "depth_double")
PEFT_PREFIX = "base_model.model."  # what PEFT puts before the names of a wrapped model


def save(model: ElasticModel, folder: str | Path, values: State | None = None) -> None:
    """Write the adapter to a folder, each file whole or not at all.

    `values` are its tensors where they are not the model's own.
    """
    folder, backbone = Path(folder), model.backbone
    origin = {"family": backbone.family, "source": backbone.source, "sizes": asdict(backbone.config)}
    config = model.config.to_dict() | {"backbone": origin, "rti_version": __version__}
    lora = copy(backbone.peft_config[ADAPTER])
    lora.target_modules = sorted(lora.target_modules)  # a set, in another order in every process
    interface = model.reduction.state_dict() | under("reduction.", values or {})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder, ignore_cleanup_errors=True) as place:
            staging = Path(place)
            lora.save_pretrained(staging)
            save_file(
                _lora_state(backbone, under("backbone.", values or {}) or None),
                staging / LORA,
                metadata={"format": "pt"},
            )
            save_file(_contiguous(interface), staging / INTERFACE, metadata={"format": "pt"})
            (staging / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (staging / "README.md").write_text(_card(model), encoding="utf-8")
            files = list(staging.iterdir())
            if in_the_way := [file.name for file in files if (folder / file.name).is_dir()]:  # before any is moved
                raise IsADirectoryError(f"{in_the_way[0]} there is a folder")
            for file in files:
                os.replace(file, folder / file.name)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None


@dataclass(frozen=True)
class Stored:
    """An adapter's folder: its reduction, and what it knows of its backbone (family, source and sizes)."""

    path: Path
    config: ReductionConfig
    origin: dict[str, Any]

    @classmethod
    def open(cls, source: str | Path) -> Stored:
        """A folder, a repository on the hub, or the name of a shipped model."""
        stored = cls.find(source)
        if stored is None:
            raise InputError(f"{source} holds no adapter; expected a folder or a hub repository with {CONFIG}")
        return stored

    @classmethod
    def find(cls, source: str | Path) -> Stored | None:
        """The same, None where it is something else: a preset, the folder of a backbone, ..."""
        path = adapter_folder(source)
        if path is None:
            return None
        values = read_json(path / CONFIG)
        values.pop("rti_version", None)
        origin = values.pop("backbone", None)
        return cls(path, config_from_dict(values), origin if isinstance(origin, dict) else {})

    def backbone_source(self) -> dict[str, Any]:
        """What `load_backbone` finds the backbone by. That of a shipped adapter lies beside it."""
        source = self.origin.get("source") if shipped_name(self.path) is None else {"source": str(self.path.parent)}
        kinds = {"source": str, "size": str, "init": str, "seed": int}  # what the loader remembers
        values = source if isinstance(source, dict) and "source" in source else {"": None}
        if not all(isinstance(value, kinds.get(key, ())) for key, value in values.items()):
            raise InputError(f"{self.path / CONFIG} does not say where its backbone is; give it as backbone=")
        home = find_shipped(source["source"])  # a name that was stored is never a folder of the user's
        return source if home is None else source | {"source": str(home)}

    def build(self) -> Backbone:
        """Its backbone without weights, on the meta device."""
        if self.origin.get("family") not in FAMILIES or not isinstance(self.origin.get("sizes"), dict):
            raise InputError(f"{self.path} does not say which backbone it is for")
        backbone, source = build(self.origin["family"], self.origin["sizes"]), self.origin.get("source")
        backbone.source = source if isinstance(source, dict) else None
        return backbone

    def check_backbone(self, backbone: torch.nn.Module) -> None:
        """Refuse a backbone of another family or other sizes."""
        inner = backbone.get_base_model() if hasattr(backbone, "get_base_model") else backbone
        if not isinstance(inner, Backbone) or not self.origin:
            return  # attach says what is wrong with it
        if not isinstance(self.origin.get("sizes"), dict):
            raise InputError(f"{self.path / CONFIG} does not say the sizes of its backbone")
        stored = {"family": self.origin.get("family")} | self.origin["sizes"]
        for name, given in ({"family": inner.family} | json.loads(json.dumps(asdict(inner.config)))).items():
            if name in MUST_AGREE and given != stored.get(name):
                raise InputError(f"{self.path} was made for {name} {stored.get(name)}, the backbone has {given}")

    def weights(self) -> tuple[State, State]:
        """LoRA and interface. A rank that is not the config's is refused before a LoRA of that rank is made."""
        lora, interface = read_state(self.path / LORA)[0], read_state(self.path / INTERFACE)[0]
        ranks = {value.shape[0] for key, value in lora.items() if ".lora_A." in key and value.ndim}
        if ranks and self.config.lora_rank not in ranks:
            given = f"lora_rank is {self.config.lora_rank} in {self.path / CONFIG}"
            raise InputError(f"{self.path / LORA} has rank {max(ranks)}, but {given}")
        return {key.removeprefix(PEFT_PREFIX): value for key, value in lora.items()}, interface

    def put(self, model: ElasticModel, weights: tuple[State, State]) -> None:
        """Give an attached model these weights; its parameters must have the same names and shapes."""
        from peft import set_peft_model_state_dict

        lora, interface = weights
        require_match(_lora_state(model.backbone, prefix=""), lora, str(self.path / LORA))
        require_match(model.reduction.state_dict(), interface, str(self.path / INTERFACE))  # before anything changes
        set_peft_model_state_dict(model.backbone, lora, adapter_name=ADAPTER)
        self.put_interface(model.reduction, interface)

    def put_interface(self, reduction: torch.nn.Module, interface: State) -> None:
        """Give a reduction its own weights, without the LoRA."""
        require_match(reduction.state_dict(), interface, str(self.path / INTERFACE))
        reduction.load_state_dict(interface)


def load_weights(model: ElasticModel, folder: str | Path) -> None:
    """Give an attached model the weights of an adapter whose parameters have the same names and shapes.

    It may be the start of one that guides itself, writes by the region's size or has text regions, which are fresh
    then; or of one without text regions.
    """
    stored = Stored.open(folder)
    lora, interface = stored.weights()
    values = model.reduction.state_dict()
    interface = {name: value for name, value in interface.items() if name in values or not name.startswith("text.")}
    fresh = {name: value for name, value in values.items() if name.startswith(("guidance.", "write.h.", "text."))}
    stored.put(model, (lora, fresh | interface))


def adapter_folder(source: str | Path) -> Path | None:
    """The local folder of an adapter, fetched from the hub where need be; None if `source` is none."""
    path, name = shipped(source), str(source)
    if path is not None and not (path / CONFIG).is_file():
        path = path / "adapter"  # a model's name also stands for its adapter
    path = path or local_path(source)
    if path.is_dir():
        return path if (path / CONFIG).is_file() else None
    if path.exists() or is_released(name) or not is_repository_name(name):
        return None
    try:
        # The one small file first: a repository of another kind may be large.
        if not (fetch_repository(name, [CONFIG]) / CONFIG).is_file():
            return None
        return fetch_repository(name, [CONFIG, INTERFACE, LORA, "adapter_config.json", PRESETS])
    except InputError:
        return None


def push(model: ElasticModel, repository: str, private: bool = False, message: str = "Upload region tokens") -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    with tempfile.TemporaryDirectory() as folder, in_one_line(f"cannot upload to {repository} on the hub"):
        save(model, folder)
        api.create_repo(repository, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message))


def note(folder: Path, text: str) -> None:
    """Add to the card of an adapter."""
    card = folder / "README.md"
    write_whole(card, card.read_text(encoding="utf-8") + text)


def _lora_state(backbone: Backbone, values: State | None = None, prefix: str = PEFT_PREFIX) -> State:
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(backbone, values, adapter_name=ADAPTER, save_embedding_layers=False)
    return _contiguous({prefix + key: value for key, value in state.items()})


def _contiguous(state: State) -> State:
    return {key: value.detach().contiguous() for key, value in state.items()}


CARD = """---
library_name: peft
pipeline_tag: {task}
tags: [region-tokens, rti, lora, {family}, token-reduction]
---

# Region token adapter for {name}

Blocks {core[0]} to {core[1]} of the frozen backbone run on a chosen number of region tokens: one checkpoint, every
budget. Made with RTI, the Region Token Interface, {version}. The backbone's own licence applies to the backbone.

```python
import rti

pipe = rti.Pipeline.from_pretrained("path/or/repository/of/this/folder")
image = pipe({example}, budget=0.25).images[0]
```
"""


def _card(model: ElasticModel) -> str:
    family, source = model.backbone.family, str((model.backbone.source or {}).get("source", ""))
    task, example = "unconditional-image-generation", "label=0"
    if model.backbone.conditioned_on == "text":
        task, example = "text-to-image", '"a prompt"'
    values = {"name": Path(source).name or family, "core": model.config.core, "version": __version__}
    return CARD.format(task=task, example=example, family=family, **values)
