"""Which dtypes the CPU only emulates."""

from __future__ import annotations

import torch


def is_emulated(dtype: str) -> bool:
    """Whether torch's CPU library (oneDNN), where it is there, leaves matrix products of the dtype to plain loops."""
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype)
    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{short}_supported", None)
    return supported is not None and torch.backends.mkldnn.is_available() and not supported()


def emulated_warning(dtype: str) -> str:
    return f"this CPU has no units for {dtype} and emulates it, much slower than float32"
