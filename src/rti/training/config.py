"""The settings of elastic fine-tuning, with the paper's rows as presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rti.errors import InputError
from rti.presets import PRESETS, find_preset


@dataclass(frozen=True)
class TrainConfig:
    """One run of `rti train`. The defaults are the paper's (table "Training and sampling settings")."""

    model: str  # a preset, or the folder of a checkpoint
    output: str
    data: str
    budgets: tuple[int, ...]  # R is drawn from these, anew for every step
    steps: int
    init: str | None = None  # "random": random weights, to try the machinery
    batch: int = 256  # of all processes and accumulated micro-batches together
    batch_per_device: int = 8
    learning_rate: float = 1e-4
    warmup: int = 2000
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.9999
    time_mean: float = -0.8
    time_deviation: float = 0.8
    drop: float = 0.1
    flip: bool = False  # mirrored pictures as well
    blind: float = 0.1  # share of steps without an estimate, where the cuts come from one
    estimate_budget: int | None = None  # regions of the pass that makes the estimate; None: the smallest trained budget
    seed: int = 0
    mixed_precision: str = "no"
    save_every: int = 500
    keep: int = 2
    text_encoder: str | None = None

    def __post_init__(self):
        for name in ("steps", "batch", "batch_per_device", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if self.batch % self.batch_per_device:
            raise InputError(f"batch {self.batch} does not divide into micro-batches of {self.batch_per_device}")
        if not self.budgets or min(self.budgets) < 1:
            raise InputError(f"budgets {self.budgets!r} are not usable; allowed: whole numbers of at least 1")
        if self.mixed_precision not in ("no", "bf16", "fp16"):
            raise InputError(f"mixed_precision {self.mixed_precision!r} is unknown; allowed: no, bf16, fp16")

    def accumulation(self, processes: int) -> int:
        """How many micro-batches make a step, so that the global batch is the same on any number of processes."""
        together = self.batch_per_device * processes
        if self.batch % together:
            raise InputError(
                f"batch {self.batch} does not divide into {processes} processes of {self.batch_per_device} examples"
            )
        return self.batch // together


def preset_values(model: str) -> dict[str, Any]:
    """What the paper fixes for a released model: its budgets, steps and core."""
    preset = find_preset(model)
    if preset is None:
        raise InputError(f"{model!r} is no preset; allowed: {', '.join(PRESETS)}, or give budgets, steps and core")
    return {"budgets": preset.budgets, "steps": preset.steps, "core": preset.core}
