"""The settings of a run: those every run has, those of elastic fine-tuning, and those of base training."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

from rti.errors import InputError
from rti.method.config import check_all_finite
from rti.presets import PRESETS, SCENES_TRAINING, find_preset

PRECISIONS, TRACKERS, OPTIMISERS = ("no", "bf16", "fp16"), ("tensorboard", "wandb", "none"), ("muon", "adamw")
ESTIMATES = ("pass", "blur")
MOST_WORKERS = 256


def setting(default: Any = MISSING, *, help: str) -> Any:
    """A field of the settings, with the words that --help has for it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every run has. The defaults are the paper's (table "Training and sampling settings")."""

    model: str
    output: str
    data: str
    steps: int = setting(help="Steps to train; more of them lengthen a run that has ended.")
    batch: int = setting(256, help="Examples a step, of all processes and accumulated micro-batches together.")
    batch_per_device: int = setting(8, help="Most examples at once on a device; lowered to what divides the batch.")
    learning_rate: float = setting(1e-4, help="At its highest.")
    warmup: int = setting(2000, help="Steps at the start over which the learning rate rises.")
    cooldown: int = setting(0, help="Steps at the end over which the learning rate falls to zero.")
    weight_decay: float = setting(0.0, help="Of AdamW.")
    clip: float = setting(1.0, help="Longest gradient; longer ones are shortened to it.")
    ema: float = setting(0.9999, help="Decay of the moving average of the weights, which is what is for use.")
    time_mean: float = setting(-0.8, help="Mean of the logit-normal that times are drawn from.")
    time_deviation: float = setting(0.8, help="Its standard deviation.")
    drop: float = setting(0.1, help="Share of examples that lose their condition.")
    flip: bool = setting(False, help="Mirrored pictures as well.")
    start_from: str | None = setting(None, help="Begin with the weights of another run: its adapter, or its model.")
    seed: int = setting(0, help="Of everything that is drawn at random.")
    mixed_precision: str = setting("no", help=f"Autocast: {', '.join(PRECISIONS)}.")
    compile: bool = setting(False, help="Compile the blocks, by torch.compile.")
    gradient_checkpointing: bool = setting(False, help="Compute activations twice instead of keeping them.")
    workers: int | None = setting(None, help="Processes that read data; none: no one on a CPU, four beside a GPU.")
    text_encoder: str | None = setting(None, help="Folder or hub name of the T5; none: the one the model names.")
    text_cache: str | None = setting(None, help="Folder written by rti encode, in place of a text encoder.")
    log_with: str = setting("tensorboard", help=f"Beside log.jsonl: {', '.join(TRACKERS)}.")
    log_every: int = setting(10, help="Steps between entries of the log.")
    save_every: int = setting(500, help="Steps between checkpoints.")
    keep: int = setting(2, help="Checkpoints to keep.")
    sample_every: int = setting(1000, help="Steps between sheets of samples; 0: never.")
    sample_count: int = setting(4, help="Pictures in a row of such a sheet.")
    sample_steps: int | None = setting(None, help="Their sampling steps; none: the model's own.")

    def __post_init__(self):
        check_all_finite(self)
        least_one = ("steps", "batch", "batch_per_device", "log_every", "save_every", "keep", "sample_count")
        for name in least_one:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("warmup", "cooldown", "sample_every", "weight_decay"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)!r}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be from 0 to 2^63 - 1, got {self.seed!r}")
        if self.sample_steps is not None and self.sample_steps < 1:
            raise InputError(f"sample_steps must be at least 1, got {self.sample_steps!r}")
        for name in ("learning_rate", "clip", "time_deviation"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above 0, got {getattr(self, name)!r}")
        for name in ("drop", "ema"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be from 0 to 1, got {getattr(self, name)!r}")
        at_once = min(self.batch_per_device, self.batch)
        while self.batch % at_once:
            at_once -= 1
        object.__setattr__(self, "batch_per_device", at_once)
        if self.workers is not None and not 0 <= self.workers <= MOST_WORKERS:
            raise InputError(f"workers must be from 0 to {MOST_WORKERS}, got {self.workers!r}")
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
FREE |= {"save_every", "keep", "sample_every", "sample_count", "sample_steps"}
FREE |= {"evaluate_every", "evaluate_images"}  # of runs from before these were taken out
FREE |= {"compile"}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """One run of `rti train`: a preset or the folder of a checkpoint, frozen, and budgets to serve."""

    budgets: tuple[int, ...] = setting(help="Regions to serve; each step draws one of them.")
    init: str | None = setting(None, help="random: random weights, to try the machinery.")
    dtype: str = setting("float32", help="Of the frozen weights; what trains is always float32.")
    estimate: str = setting(
        "pass", help="Of the clean picture, to cut by: pass (of the model) or blur (of the picture)."
    )
    estimate_budget: int | None = setting(None, help="Regions of that pass; none: the smallest trained budget.")
    blind: float = setting(0.1, help="Share of steps without an estimate, as at a sampler's first step.")
    text_budgets: tuple[int, ...] = setting((), help="Text regions, drawn for every step; none: the text stays whole.")
    full_text: float = setting(0.25, help="Share of steps with all of the text, where there are text budgets.")

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

    sizes: tuple[str, ...] = setting((), help="Fields of the model's config to change, such as image_size=32.")
    steps: int = setting(100_000, help="Steps to train; more of them lengthen a run that has ended.")
    batch: int = setting(64, help="Examples a step, of all processes and accumulated micro-batches together.")
    batch_per_device: int = setting(64, help="Most examples at once on a device; lowered to what divides the batch.")
    optimiser: str = setting("muon", help="muon (matrices of blocks; AdamW for the rest) or adamw.")
    learning_rate: float = setting(3e-3, help="At its highest.")
    adam_learning_rate: float = setting(2e-3, help="Of what is not a matrix of a block, beside Muon.")
    weight_decay: float | None = setting(None, help="Of all that trains; none: 0.01 for Muon's matrices, 0 for AdamW.")
    warmup: int = setting(200, help="Steps at the start over which the learning rate rises.")
    ema: float = setting(0.999, help="Decay of the moving average of the weights, which is what is for use.")
    save_every: int = setting(250, help="Steps between checkpoints.")

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
