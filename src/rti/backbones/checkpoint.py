"""Reading checkpoint files: safetensors and PyTorch files, never executing what they contain."""

from __future__ import annotations

import argparse
import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from rti.errors import InputError, UnsupportedModelError

State = dict[str, torch.Tensor]
SAFETENSORS, PICKLES = (".safetensors",), (".pth", ".pt", ".ckpt", ".bin")
PREFIXES = ("model.net.", "module.net.", "net.", "module.", "model.")


def read_state(path: Path) -> tuple[State, dict[str, Any]]:
    """Weights of a checkpoint file without the wrapper's prefix, and the settings stored along with them."""
    if path.suffix in SAFETENSORS:
        state, settings = _read_safetensors(path), {}
    elif path.name.endswith(".safetensors.index.json"):
        state, settings = _read_shards(path), {}
    elif path.suffix in PICKLES:
        state, settings = _read_torch(path)
    else:
        allowed = ", ".join(SAFETENSORS + PICKLES)
        raise UnsupportedModelError(f"{path} is not a checkpoint file; allowed endings: {allowed}")
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state):
            return {key.removeprefix(prefix): value for key, value in state.items()}, settings
    return state, settings


def _read_safetensors(path: Path) -> State:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is truncated or not a safetensors file ({_first_line(error)})") from None


def _read_shards(index: Path) -> State:
    state: State = {}
    for name in sorted(set(read_json(index).get("weight_map", {}).values())):
        if Path(name).name != name:
            raise InputError(f"{index} names a shard outside its folder: {name}")
        state |= _read_safetensors(index.parent / name)
    return state


def _read_torch(path: Path) -> tuple[State, dict[str, Any]]:
    """A PyTorch file, by the unpickler that builds tensors and plain values only, plus the release's `args`."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            try:
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                content = torch.load(path, map_location="cpu", weights_only=True)  # the format before torch 1.6
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} was refused: it is broken or wants to run code, and only tensors are read ({_first_line(error)})"
        ) from None
    except Exception as error:  # a file of unknown origin may fail in any way
        raise InputError(f"{path} is truncated or not a PyTorch checkpoint ({_first_line(error)})") from None

    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{path} holds a {type(content).__name__}; expected a dict of weights")
    settings = vars(content["args"]) if isinstance(content.get("args"), argparse.Namespace) else {}
    state = next((content[key] for key in ("model_ema1", "model", "state_dict") if key in content), content)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UnsupportedModelError(
            f"{path} holds no weights; expected tensors, or a dict with 'model_ema1' or 'model'"
        )
    return dict(state), settings


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def read_json(path: Path) -> dict[str, Any]:
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a device has no end, and a pipe may have no beginning
            raise InputError(f"{path} is no regular file")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # also of numbers too long, of brackets too deep
        raise InputError(f"{path} is not readable JSON ({_first_line(error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


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
