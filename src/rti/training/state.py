"""Checkpoints of a run: folders written whole or not at all, tensors as safetensors, the rest as JSON. No pickle.

They hold whole tensors: a run that was sharded over processes goes on on any other number of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file


class CannotSave(Exception):
    """A checkpoint could not be written; those before are untouched."""


NAME, TENSORS, VALUES = "checkpoint-{:08d}", "state.safetensors", "state.json"


def save_checkpoint(run: Path, step: int, tensors: dict[str, torch.Tensor], values: dict[str, Any], keep: int) -> None:
    """Write a checkpoint under a temporary name, force it to the disk, rename it, and drop the oldest."""
    final = run / NAME.format(step)
    part = final.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, part / TENSORS)
        (part / VALUES).write_text(json.dumps(values | {"step": step}), encoding="utf-8")
        for file in part.iterdir():
            _sync(file)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        _sync(run)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CannotSave(getattr(error, "strerror", None) or " ".join(str(error).split())) from None
    written = checkpoints(run)
    here = written.index(final)
    # Later ones were passed over as broken when the run was resumed; they must not count among those kept.
    for other in (*written[: max(here + 1 - keep, 0)], *written[here + 1 :]):
        shutil.rmtree(other, ignore_errors=True)


def load_checkpoint(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The newest checkpoint that can be read, or None. A broken one is passed over for the one before."""
    for folder in reversed(checkpoints(run)):
        try:
            return load_file(folder / TENSORS), json.loads((folder / VALUES).read_text(encoding="utf-8"))
        except (OSError, SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            print(f"rti: warning: {folder} cannot be read ({reason}); trying the one before", file=sys.stderr)
    return None


def sweep(run: Path) -> None:
    """Remove what a killed run had half written."""
    for torn in (*run.glob(NAME.replace("{:08d}", "*.part")), *run.glob("*/.saving-*")):
        shutil.rmtree(torn, ignore_errors=True)


def checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder for folder in run.glob(NAME.replace("{:08d}", "*")) if folder.suffix != ".part")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with all its parts, where it is sharded over processes; every process must ask."""
    return tensor.full_tensor().detach() if hasattr(tensor, "full_tensor") else tensor.detach()


@torch.no_grad()
def put(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Copy a whole tensor into one that may be sharded."""
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    return target.copy_(value)
