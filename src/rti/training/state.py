"""Checkpoints of a run: folders written whole or not at all, tensors as safetensors, the rest as JSON. No pickle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

NAME, TENSORS, VALUES = "checkpoint-{:08d}", "state.safetensors", "state.json"


def save_checkpoint(run: Path, step: int, tensors: dict[str, torch.Tensor], values: dict[str, Any], keep: int) -> None:
    """Write a checkpoint under a temporary name, force it to the disk, rename it, and drop the oldest."""
    final = run / NAME.format(step)
    part = final.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, part / TENSORS)
        (part / VALUES).write_text(json.dumps(values | {"step": step}), encoding="utf-8")
        for file in part.iterdir():
            _sync(file)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(final, ignore_errors=True)
    os.replace(part, final)
    _sync(run)
    for old in checkpoints(run)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The newest checkpoint that can be read, or None. A broken one is passed over for the one before."""
    for folder in reversed(checkpoints(run)):
        try:
            return load_file(folder / TENSORS), json.loads((folder / VALUES).read_text(encoding="utf-8"))
        except (OSError, SafetensorError, json.JSONDecodeError, UnicodeDecodeError):
            continue
    return None


def checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder for folder in run.glob(NAME.replace("{:08d}", "*")) if folder.suffix != ".part")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
