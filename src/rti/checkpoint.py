"""Reading checkpoint files: safetensors and PyTorch files, never executing what they contain."""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from rti.errors import InputError, UnsupportedModelError
from rti.files import first_line, in_one_line, read_json, require_regular

State = dict[str, torch.Tensor]
SAFETENSORS, PICKLES = (".safetensors",), (".pth", ".pt", ".ckpt", ".bin")
PREFIXES = ("model.net.", "module.net.", "net.", "module.", "model.")
MOST_TENSORS = 20_000  # in one file; the largest release has some hundreds

_ZEROS = b"\nbytearray\n"  # the only way a pickle that torch reads can name it


def read_state(path: Path) -> tuple[State, dict[str, Any]]:
    """Weights of a checkpoint file, and the settings stored along with them."""
    if path.suffix in SAFETENSORS:
        return _read_safetensors(path), {}
    if path.name.endswith(".safetensors.index.json"):
        return _read_shards(path), {}
    if path.suffix in PICKLES:
        return _read_torch(path)
    allowed = ", ".join(SAFETENSORS + PICKLES)
    raise UnsupportedModelError(f"{path} is not a checkpoint file; allowed endings: {allowed}")


def without_wrapper(state: State) -> State:
    """The weights of a backbone, which releases wrap in one module or another, without the wrapper's prefix."""
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state):
            return {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def under(prefix: str, state: State) -> State:
    """The weights of one part of a module, by their names in it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _read_safetensors(path: Path) -> State:
    require_regular(path)
    with in_one_line(f"{path} is truncated or not a safetensors file"), safe_open(path, "pt") as file:
        names = file.keys()
        if len(names) > MOST_TENSORS:
            raise InputError(f"{path} holds {len(names):,} tensors; allowed: {MOST_TENSORS:,}")
        return {name: file.get_tensor(name) for name in names}


def _read_shards(index: Path) -> State:
    state: State = {}
    places = read_json(index).get("weight_map", {})
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise InputError(f"{index} is no index of shards; expected a weight_map from keys to names of files")
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise InputError(f"{index} names a shard outside its folder: {name}")
        state |= _read_safetensors(index.parent / name)
    return state


def _read_torch(path: Path) -> tuple[State, dict[str, Any]]:
    """A PyTorch file, by the unpickler that builds tensors and plain values only, plus the release's `args`."""
    require_regular(path)
    with in_one_line(f"{path} is truncated or not a PyTorch checkpoint"):
        _check_small(path)
        try:
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            why = "it is broken or wants to run code, and only tensors are read"
            raise InputError(f"{path} was refused: {why} ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{path} holds a {type(content).__name__}; expected a dict of weights")
    settings = vars(content["args"]) if isinstance(content.get("args"), argparse.Namespace) else {}
    state = next((content[key] for key in ("model_ema1", "model", "state_dict") if key in content), content)
    if not isinstance(state, dict) or not all(map(_is_weight, state.keys(), state.values())):
        raise UnsupportedModelError(f"{path} holds no weights; expected tensors, or them in 'model_ema1' or 'model'")
    return dict(state), settings


def _check_small(path: Path) -> None:
    """Refuse a PyTorch file that is small and would fill the memory: by packed entries, of which torch writes none, or
    by asking for an array of zeros, the one thing of any size that torch's unpickler makes."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is truncated, or not of the format that torch writes since 1.6; save it anew")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        packed = any(one.compress_type or one.file_size > one.compress_size for one in entries)
        zeros = not packed and any(_ZEROS in archive.read(one) for one in entries if one.filename.endswith(".pkl"))
    if packed or zeros:
        raise InputError(f"{path} was refused: it holds {'packed entries' if packed else 'a bytearray'}, not tensors")


def _is_weight(key: Any, value: Any) -> bool:
    """A plain tensor in memory, by its name."""
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"
    return plain and isinstance(key, str)


def mismatches(expected: State, state: State) -> list[str]:
    """What keeps `state` from being exactly the expected weights: missing, extra and misshapen keys."""
    problems = [f"missing {key}" for key in expected if key not in state]
    problems += [f"extra {key}" for key in state if key not in expected]
    problems += [
        f"{key} is {tuple(state[key].shape)}, expected {tuple(expected[key].shape)}"
        for key in expected
        if key in state and state[key].shape != expected[key].shape
    ]
    return problems


def require_match(expected: State, state: State, origin: str) -> None:
    """Refuse weights that do not fit, and say which."""
    problems = mismatches(expected, state)
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(f"{origin} does not fit: {shown}")


def fill(module: nn.Module, state: State, dtype: torch.dtype, origin: str) -> None:
    """Put the weights into `module`, built on the meta device, without a second copy in memory."""
    require_match(module.state_dict(), state, origin)
    module.load_state_dict({key: value.to(dtype) for key, value in state.items()}, assign=True)


def weights_digest(encoder: Any) -> str:
    """Which model or encoder it is: sha256 of 1,024 evenly spaced values of every weight, and of a sentence's tokens.

    Of the weights and not of their files, so that a folder may move and the hub's copy of a T5 equals a local one.
    Nothing is computed, so it is the same on every machine. Sorted and without names, since releases of transformers
    differ in how they name weights and in which they list twice.
    """
    samples = set()
    for weight in getattr(encoder, "encoder", encoder).parameters():
        flat = weight.detach().flatten()
        values = flat[:: max(1, len(flat) // 1024)][:1024].float().cpu().numpy()
        samples.add(hashlib.sha256(f"{tuple(weight.shape)}".encode() + values.tobytes()).hexdigest())
    tokenizer = getattr(encoder, "tokenizer", None)
    tokens = [] if tokenizer is None else list(tokenizer("a photograph of a red cube on a blue table").input_ids)
    return hashlib.sha256(json.dumps([sorted(samples), tokens]).encode()).hexdigest()
