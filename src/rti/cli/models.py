"""What commands say about models, and the pipeline of the model one is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rti.presets import PRESETS
from rti.shipped import SHIPPED

if TYPE_CHECKING:
    from rti.pipeline import Pipeline

_SHIPPED = f"A model that ships with rti ({', '.join(SHIPPED)}), a" if SHIPPED else "A"
MODEL_HELP = f"{_SHIPPED} preset ({', '.join(PRESETS)}), or the folder of a checkpoint or of an adapter."
DTYPE_HELP = "Weights as float32, bfloat16, float16; the sampling state is always float32."
DEVICE_HELP = "cpu, cuda, cuda:1, mps, or auto."
TEXT_BUDGET_HELP = "Text tokens in the trunk, such as 32 or 0.25; the adapter must have text regions. Default: all."
COMPILE_HELP = "Compile the blocks first, which takes a minute: for many pictures."


def load_pipeline(
    model: str,
    adapter: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    compile: bool = False,
    **options: Any,
) -> Pipeline:
    """The pipeline of a model as typed, its LoRA not folded in; `options` go to `Pipeline.from_pretrained`."""
    from rti.pipeline import Pipeline
    from rti.precision import place

    device, kind = place(device, dtype)
    pipe = Pipeline.from_pretrained(model, adapter=adapter, dtype=kind, device=device, fuse=False, **options)
    if compile:
        pipe.backbone.compile_repeated_blocks()
    return pipe
