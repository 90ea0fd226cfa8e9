"""The settings of a run: those every run has, those of elastic fine-tuning, and those of base training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rti.errors import InputError
from rti.presets import PRESETS, SCENES_TRAINING, find_preset

PRECISIONS, TRACKERS, OPTIMISERS = ("no", "bf16", "fp16"), ("tensorboard", "wandb", "none"), ("muon", "adamw")
ESTIMATES = ("pass", "blur")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every run has. The defaults are the paper's (table "Training and sampling settings")."""

    model: str
    output: str
    data: str
    steps: int
    batch: int = 256  # of all processes and accumulated micro-batches together
    batch_per_device: int = 8
    learning_rate: float = 1e-4
    warmup: int = 2000
    cooldown: int = 0  # steps at the end over which the learning rate falls to zero
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.9999
    time_mean: float = -0.8
    time_deviation: float = 0.8
    drop: float = 0.1  # share of examples that lose their condition
    flip: bool = False  # mirrored pictures as well
    start_from: str | None = None  # begin with the weights of another run: its adapter, or its model
    seed: int = 0
    mixed_precision: str = "no"
    compile: bool = False  # the blocks, by torch.compile
    gradient_checkpointing: bool = False  # compute activations twice instead of keeping them
    workers: int | None = None  # processes that read data; None: none on a CPU, four beside a GPU
    text_encoder: str | None = None  # None: the one the model names
    text_cache: str | None = None  # folder written by `rti encode`
    log_with: str = "tensorboard"
    log_every: int = 10
    save_every: int = 500
    keep: int = 2
    sample_every: int = 1000  # a sheet of samples; 0: never
    sample_count: int = 4
    sample_steps: int | None = None  # None: the model's own
    evaluate_every: int = 0  # accuracy on the scenes world; 0: never
    evaluate_images: int = 120

    def __post_init__(self):
        least_one = ("steps", "batch", "batch_per_device", "log_every", "save_every", "keep", "sample_count")
        for name in least_one:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("warmup", "cooldown", "sample_every", "evaluate_every", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)!r}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be from 0 to 2^63 - 1, got {self.seed!r}")
        if self.sample_steps is not None and self.sample_steps < 1:
            raise InputError(f"sample_steps must be at least 1, got {self.sample_steps!r}")
        if self.evaluate_images < 6:
            raise InputError(f"evaluate_images must be at least 6, one for each task, got {self.evaluate_images!r}")
        for name in ("learning_rate", "clip", "time_deviation"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above 0, got {getattr(self, name)!r}")
        for name in ("drop", "ema"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be from 0 to 1, got {getattr(self, name)!r}")
        if self.batch % self.batch_per_device:
            raise InputError(f"batch {self.batch} does not divide into micro-batches of {self.batch_per_device}")
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers must be at least 0, got {self.workers!r}")
        _one_of("mixed_precision", self.mixed_precision, PRECISIONS)
        _one_of("log_with", self.log_with, TRACKERS)
        if self.text_encoder is not None and self.text_cache is not None:
            raise InputError("text_encoder and text_cache exclude each other; a cache holds what its encoder said")

    def accumulation(self, processes: int) -> int:
        """How many micro-batches make a step, so that the global batch is the same on any number of processes."""
        together = self.batch_per_device * processes
        if self.batch % together:
            raise InputError(
                f"batch {self.batch} does not divide into {processes} processes of {self.batch_per_device} examples"
            )
        return self.batch // together

    def learning_rate_factor(self, step: int) -> float:
        """What the learning rate is multiplied by at a step, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (self.steps - step) / self.cooldown) if self.cooldown else 1.0
        return rise * max(fall, 0.0)


# What may differ when a run goes on.
FREE = {"output", "steps", "cooldown", "workers", "batch_per_device", "gradient_checkpointing", "log_with", "log_every"}
FREE |= {"save_every", "keep", "sample_every", "sample_count", "sample_steps", "evaluate_every", "evaluate_images"}
FREE |= {"compile"}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """One run of `rti train`: a preset or the folder of a checkpoint, frozen, and budgets to serve."""

    budgets: tuple[int, ...]  # R is drawn from these, anew for every step
    init: str | None = None  # "random": random weights, to try the machinery
    dtype: str = "float32"  # of the frozen weights; what trains is always float32
    estimate: str = (
        "pass"  # where the cuts come from an estimate: a "pass" of the model, or the clean picture in a "blur"
    )
    estimate_budget: int | None = None  # regions of the pass that makes the estimate; None: the smallest trained budget
    blind: float = 0.1  # share of steps without an estimate, as at a sampler's first step
    text_budgets: tuple[int, ...] = ()  # text regions, drawn anew for every step; none: the text stays as it is
    full_text: float = 0.25  # share of steps with all of the text, where there are text budgets

    def __post_init__(self):
        super().__post_init__()
        if not self.budgets or min(self.budgets) < 1:
            raise InputError(f"budgets {self.budgets!r} are not usable; allowed: whole numbers of at least 1")
        if self.estimate_budget is not None and self.estimate_budget < 1:
            raise InputError(f"estimate_budget must be at least 1, got {self.estimate_budget!r}")
        if self.text_budgets and min(self.text_budgets) < 1:
            raise InputError(f"text_budgets {self.text_budgets!r} are not usable; allowed: whole numbers of at least 1")
        for name in ("blind", "full_text"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be from 0 to 1, got {getattr(self, name)!r}")
        _one_of("estimate", self.estimate, ESTIMATES)
        _one_of("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        if self.dtype != "float32" and self.mixed_precision == "no":
            wanted = {"bfloat16": "bf16", "float16": "fp16"}[self.dtype]
            raise InputError(f"frozen weights in {self.dtype} need --mixed-precision {wanted}, got 'no'")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(RunConfig):
    """One run of `rti pretrain`: every parameter trains. The defaults suit a small model on a CPU."""

    sizes: tuple[str, ...] = ()  # fields of the model's config that differ from the named model's: image_size=32,...
    steps: int = 100_000
    batch: int = 64
    batch_per_device: int = 64
    optimiser: str = "muon"
    learning_rate: float = 3e-3
    adam_learning_rate: float = 2e-3  # of what is not a matrix of a block, beside Muon
    warmup: int = 200
    ema: float = 0.999
    save_every: int = 250

    def __post_init__(self):
        super().__post_init__()
        _one_of("optimiser", self.optimiser, OPTIMISERS)
        if self.mixed_precision == "fp16":  # one scaler cannot serve two optimisers
            raise InputError("mixed_precision 'fp16' is not for base training; allowed: no, bf16")
        if not self.adam_learning_rate > 0:
            raise InputError(f"adam_learning_rate must be above 0, got {self.adam_learning_rate!r}")
        wrong = next((pair for pair in self.sizes if "=" not in pair), None)
        if wrong is not None:
            raise InputError(f"sizes {wrong!r} is not usable; allowed: name=value, such as image_size=32")


def preset_values(model: str) -> dict[str, Any]:
    """What the paper fixes for a released model: its budgets, steps and core; and what suits a model that ships."""
    if model in SCENES_TRAINING:
        return SCENES_TRAINING[model]
    preset = find_preset(model)
    if preset is None:
        raise InputError(f"{model!r} is no preset; allowed: {', '.join(PRESETS)}, or give budgets, steps and core")
    return {"budgets": preset.budgets, "steps": preset.steps, "core": preset.core}


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
