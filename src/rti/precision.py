"""Where a model runs, and in which dtype: refused before anything is read, where the machine cannot."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from rti.errors import InputError, check_choice
from rti.files import first_line

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # that weights can be loaded in
TYPED = ("float32", "bfloat16", "float16")  # those of the command line


def check_device(device: str | torch.device) -> None:
    """Refuse a device that is not there."""
    try:
        torch.empty(0, device=torch.device(device))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise InputError(f"device {str(device)!r} is not usable here: {first_line(error)}") from None


def check_dtype(dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not usable; allowed: {', '.join(map(str, DTYPES))}")


def place(device: str = "auto", dtype: str = "float32") -> tuple[str, torch.dtype]:
    """A device and a dtype as typed; "auto" is a GPU where there is one. A dtype the CPU emulates gives a warning."""
    check_choice("dtype", dtype, TYPED)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    if device == "cpu" and is_emulated(dtype):
        warnings.warn(emulated_warning(dtype), stacklevel=2)
    return device, getattr(torch, dtype)


def is_emulated(dtype: str) -> bool:
    """Whether torch's CPU library (oneDNN), where it is there, leaves matrix products of the dtype to plain loops."""
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype)
    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{short}_supported", None)
    return supported is not None and torch.backends.mkldnn.is_available() and not supported()


def emulated_warning(dtype: str) -> str:
    return f"this CPU has no units for {dtype} and emulates it, much slower than float32"
