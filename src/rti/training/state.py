"""What a run survives by: its folder is its own, and its checkpoints are whole or not at all.

A checkpoint has its tensors as safetensors and the rest as JSON; no pickle. They are whole tensors: a run that was
sharded over processes goes on on any other number of them. A digest in the JSON tells what the disk has changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout  # comes with huggingface_hub
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rti.errors import InputError, check_whole
from rti.files import first_line, in_one_line, read_json, sync_folder


class CannotSave(Exception):
    """A checkpoint could not be written; those before are untouched."""


NAME, TENSORS, VALUES, LOCK = "checkpoint-{:08d}", "state.safetensors", "state.json", "run.lock"


def hold(run: Path) -> Any:
    """Keep other processes from training in a folder, and remove what a killed run had half written.

    The system lets go of the folder when this process ends, however it does.
    """
    lock = FileLock(run / LOCK, timeout=0)
    with in_one_line(f"cannot write to {run}"):
        run.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"another process is training in {run}; wait for its end, or choose another folder") from None
    except (OSError, NotImplementedError) as error:  # not every file system knows locks
        print(f"rti: warning: {run} cannot be locked ({error}); no other run may use it now", file=sys.stderr)
    for torn in (*run.glob("checkpoint-*.part"), *run.glob("*/.saving-*")):
        shutil.rmtree(torn, ignore_errors=True)
    return lock


def checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder for folder in run.glob("checkpoint-*") if folder.suffix != ".part")


def save_checkpoint(run: Path, step: int, tensors: dict[str, torch.Tensor], values: dict[str, Any], keep: int) -> None:
    """Write a checkpoint under a temporary name, force it to the disk, rename it, and drop the oldest."""
    final = run / NAME.format(step)
    part = final.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, part / TENSORS)
        values = values | {"step": step}
        values["digest"] = _digest(part / TENSORS, values)
        (part / VALUES).write_text(json.dumps(values), encoding="utf-8")
        for file in part.iterdir():
            with file.open("rb+") as opened:  # Windows forces only what may be written
                os.fsync(opened.fileno())
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        sync_folder(run)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CannotSave(first_line(error)) from None
    written = checkpoints(run)
    here = written.index(final)
    # Later ones were passed over as broken when the run was resumed; they must not count among those kept.
    for other in (*written[: max(here + 1 - keep, 0)], *written[here + 1 :]):
        torn = other.with_suffix(".part")  # so that one half removed is not taken for a whole one
        with suppress(OSError):
            os.replace(other, torn)
        shutil.rmtree(torn, ignore_errors=True)


def load_checkpoint(
    run: Path, like: Mapping[str, torch.Tensor] | None = None, counts: Iterable[str] = ()
) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The newest checkpoint that can be used, or None. A broken one is passed over for the one before.

    `like` are tensors of the shapes and dtypes it must hold, `counts` the numbers beside them.
    """
    for folder in reversed(checkpoints(run)):
        try:
            values = read_json(folder / VALUES)
            digest = values.pop("digest", None)  # older checkpoints have none
            if digest is not None and digest != _digest(folder / TENSORS, values):
                raise InputError("it is not as it was written: the digest differs")
            for name in ("step", *counts):
                check_whole(name, values.get(name), least=0)
            tensors = load_file(folder / TENSORS)
            for name, expected in (like or {}).items():
                found = tensors.get(name)
                if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
                    raise InputError(f"{name} is missing or of another shape")
            return tensors, values
        except (OSError, SafetensorError, InputError) as error:
            problem = f"{folder} cannot be read ({first_line(error)})"
            print(f"rti: warning: {problem}; trying the one before", file=sys.stderr)
    return None


def _digest(file: Path, values: dict[str, Any]) -> str:
    """sha256 of a checkpoint: its tensors as they lie in their file, and the values beside them."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


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
