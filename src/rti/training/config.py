"""The settings of a run: those every run has, those of elastic fine-tuning, and those of base training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from rti.errors import InputError, check_choice, check_finite
from rti.method.config import check_scales, setting
from rti.precision import TYPED
from rti.presets import SCENES_TRAINING, find_preset

STAGES = ("all", "linear", "distil")
PRECISIONS, TRACKERS, OPTIMISERS = ("no", "bf16", "fp16"), ("tensorboard", "wandb", "none"), ("muon", "adamw")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every run has. The defaults are the paper's (table "Training and sampling settings")."""

    model: str
    output: str
    steps: int = setting(least=1, help="Steps to train; more of them lengthen a run that has ended.")
    batch: int = setting(256, least=1, help="Examples a step, of all processes and accumulated micro-batches together.")
    batch_per_device: int = setting(8, least=1, help="Most examples at once on a device; lowered to divide the batch.")
    learning_rate: float = setting(1e-4, above=0, help="At its highest.")
    warmup: int = setting(2000, least=0, help="Steps at the start over which the learning rate rises.")
    cooldown: int = setting(0, least=0, help="Steps at the end over which the learning rate falls to zero.")
    weight_decay: float = setting(0.0, least=0, help="Of AdamW.")
    clip: float = setting(1.0, above=0, help="Longest gradient; longer ones are shortened to it.")
    ema: float = setting(0.9999, least=0, most=1, help="Decay of the average of the weights, which is for use.")
    time_mean: float = setting(-0.8, help="Mean of the logit-normal that times are drawn from.")
    time_deviation: float = setting(0.8, above=0, help="Its standard deviation.")
    start_from: str | None = setting(None, help="Begin with the weights of another run: its adapter, or its model.")
    seed: int = setting(0, least=0, most=2**63 - 1, help="Of everything that is drawn at random.")
    mixed_precision: str = setting("no", among=PRECISIONS, help=f"Autocast: {', '.join(PRECISIONS)}.")
    compile: bool = setting(False, help="Compile the blocks, by torch.compile.")
    gradient_checkpointing: bool = setting(False, help="Compute activations twice instead of keeping them.")
    text_encoder: str | None = setting(None, help="Folder or hub name of the T5; none: the one the model names.")
    log_with: str = setting("tensorboard", among=TRACKERS, help=f"Beside log.jsonl: {', '.join(TRACKERS)}.")
    log_every: int = setting(10, least=1, help="Steps between entries of the log.")
    save_every: int = setting(500, least=1, help="Steps between checkpoints.")
    keep: int = setting(2, least=1, help="Checkpoints to keep.")
    sample_every: int = setting(1000, least=0, help="Steps between sheets of samples; 0: never.")
    sample_count: int = setting(4, least=1, help="Pictures in a row of such a sheet.")
    sample_steps: int | None = setting(None, least=1, help="Their sampling steps; none: the model's own.")

    def __post_init__(self):
        for one in fields(self):
            given = getattr(self, one.name)
            for value in given if isinstance(given, (tuple, list)) else (given,):
                limits = {name: one.metadata[name] for name in ("least", "most", "above") if name in one.metadata}
                if "among" in one.metadata:
                    check_choice(one.name, value, one.metadata["among"])
                elif (limits and value is not None) or isinstance(value, float):
                    check_finite(one.name, value, **limits)
        at_once = min(self.batch_per_device, self.batch)
        while self.batch % at_once:
            at_once -= 1
        object.__setattr__(self, "batch_per_device", at_once)

    def accumulation(self, processes: int) -> int:
        """How many micro-batches make a step, so that the global batch is the same on any number of processes."""
        together = self.batch_per_device * processes
        if self.batch % together:
            each = f"{processes} processes of {self.batch_per_device} examples"
            raise InputError(f"batch {self.batch} does not divide into {each}")
        return self.batch // together

    def shares(self, process: int, processes: int) -> list[range]:
        """The micro-batches of one process in a step, as numbers in the global batch: they go round the processes."""
        size, stride = self.batch_per_device, self.batch // self.accumulation(processes)
        return [range(first, first + size) for first in range(process * size, self.batch, stride)]

    def learning_rate_factor(self, step: int) -> float:
        """What the learning rate is multiplied by at a step, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (self.steps - step) / self.cooldown) if self.cooldown else 1.0
        return rise * max(fall, 0.0)


def _usually(default: Any, name: str) -> Any:
    """A setting of every run, with another default."""
    return field(default=default, metadata=RunConfig.__dataclass_fields__[name].metadata)


# What may differ when a run goes on.
FREE = {"output", "steps", "cooldown", "workers", "batch_per_device", "gradient_checkpointing", "compile", "keep"}
FREE |= {"minutes", "log_with", "log_every", "save_every", "sample_every", "sample_count", "sample_steps"}
GONE = {"evaluate_every", "evaluate_images", "text_cache", "estimate"}  # of runs from before these were taken out
FREE |= GONE


@dataclass(frozen=True, kw_only=True)
class DataConfig(RunConfig):
    """What every run on data has."""

    data: str
    drop: float = setting(0.1, least=0, most=1, help="Share of examples that lose their condition.")
    flip: bool = setting(False, help="Mirrored pictures as well.")
    workers: int | None = setting(None, least=0, most=256, help="Processes that read data; none: 4 for a GPU, else 0.")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(RunConfig):
    """What every run for an adapter has: a preset or the folder of a checkpoint, frozen, and budgets to serve."""

    needed: ClassVar[tuple[str, ...]] = ("model", "output", "budgets")
    reduction_defaults: ClassVar[dict[str, Any]] = {}

    budgets: tuple[int, ...] = setting(least=1, help="Regions to serve; each step draws one of them.")
    size: str | None = setting(None, help="Of the model, where its files do not tell: b16, l16, ...")
    init: str | None = setting(None, help="random: random weights, to try the machinery.")
    dtype: str = setting("float32", among=TYPED, help="Of the frozen weights; what trains is always float32.")
    blind: float = setting(0.1, least=0, most=1, help="Share of steps without an estimate, as at a sampler's start.")
    text_budgets: tuple[int, ...] = setting((), least=1, help="Text regions, one drawn a step; none: all of the text.")
    full_text: float = setting(0.25, least=0, most=1, help="Share of steps with all of the text, beside text budgets.")

    @classmethod
    def preset_values(cls, model: str) -> dict[str, Any]:
        """What the paper fixes for a released model, and what suits one that ships: its budgets and core."""
        return {name: value for name, value in _preset(model).items() if name in ("budgets", "core")}

    def __post_init__(self):
        super().__post_init__()
        if not self.budgets:
            raise InputError("budgets () are not usable; allowed: whole numbers of at least 1")
        if self.dtype != "float32" and self.mixed_precision == "no":
            wanted = {"bfloat16": "bf16", "float16": "fp16"}[self.dtype]
            raise InputError(f"frozen weights in {self.dtype} need --mixed-precision {wanted}, got 'no'")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(DataConfig, AdapterConfig):
    """One run of `rti train`."""

    needed: ClassVar[tuple[str, ...]] = ("model", "output", "data", "budgets", "steps")

    estimate_budget: int | None = setting(None, least=1, help="Regions of the pass to cut by; none: the fewest.")

    @classmethod
    def preset_values(cls, model: str) -> dict[str, Any]:
        """These, and how long and by which steps it trains on data."""
        return _preset(model)


@dataclass(frozen=True, kw_only=True)
class AdaptConfig(AdapterConfig):
    """One run of `rti adapt`: prompts or labels, and time. The defaults suit one machine and minutes, not days."""

    reduction_defaults: ClassVar[dict[str, Any]] = {"sized_write": True, "sized_attention": True}

    prompts: str | None = setting(None, help="File of prompts, one a line; none: a list of varied ones.")
    labels: tuple[int, ...] = setting((), least=0, help="Classes of a class-conditional model; none: all of them.")
    stage: str = setting("all", among=STAGES, help="linear: the closed form alone; distil: without it; or all.")
    minutes: float = setting(20.0, above=0, help="How long it may take, before it is measured.")
    linear_prompts: int = setting(48, least=1, help="Trajectories of the closed form, of 12 steps each.")
    steps: int | None = setting(None, least=1, help="Steps of self-distillation; none: as many as the minutes allow.")
    batch: int = _usually(8, "batch")
    learning_rate: float = _usually(1e-3, "learning_rate")
    warmup: int = _usually(20, "warmup")
    cooldown: int | None = setting(
        None, least=0, help="Steps at the end over which the rate falls; none: 40 % of them."
    )
    ema: float = _usually(0.98, "ema")
    guidance: str | None = setting(
        None, help="Guidance scale of the teacher, or 1.5..7: learn to guide in one pass. None: the model's own."
    )
    reuse: int = setting(48, least=1, help="Examples that a picture on its way serves for, on average.")
    drop: float = setting(0.3, least=0, most=1, help="Share of examples that lose their condition.")
    blind: float = setting(1 / 12, least=0, most=1, help="Share of steps that learn a sampler's first step.")
    features: float = setting(0.1, least=0, help="Weight of the features after the core, beside the clean image.")
    save_every: int = _usually(100, "save_every")
    sample_every: int = _usually(0, "sample_every")
    log_with: str = _usually("none", "log_with")

    def __post_init__(self):
        super().__post_init__()
        if self.guidance is not None:
            self.scales  # noqa: B018  refuses what is none
        if self.stage == "linear" and self.start_from is not None:
            raise InputError(
                "start_from with --stage linear; the closed form begins from a fresh interface, leave it out"
            )

    @property
    def scales(self) -> tuple[float, float] | None:
        """The least and the highest guidance scale of the teacher; None for the model's own."""
        if self.guidance is None:
            return None
        try:
            numbers = tuple(float(word) for word in str(self.guidance).split(".."))
        except ValueError:
            numbers = ()
        if len(numbers) not in (1, 2):
            raise InputError(f"guidance {self.guidance!r} is not usable; allowed: a scale such as 3, or 1.5..7")
        return check_scales("guidance", (numbers[0], numbers[-1]))

    @property
    def one_pass(self) -> tuple[float, float] | None:
        """The scales at which the student learns to guide itself."""
        return self.scales if ".." in str(self.guidance) else None


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(DataConfig):
    """One run of `rti pretrain`: every parameter trains. The defaults suit a small model on a CPU."""

    sizes: tuple[str, ...] = setting((), help="Fields of the model's config to change, such as image_size=32.")
    steps: int = _usually(100_000, "steps")
    batch: int = _usually(64, "batch")
    batch_per_device: int = _usually(64, "batch_per_device")
    optimiser: str = setting("muon", among=OPTIMISERS, help="muon (matrices of blocks; AdamW for the rest) or adamw.")
    learning_rate: float = _usually(3e-3, "learning_rate")
    adam_learning_rate: float = setting(2e-3, above=0, help="Of what is not a matrix of a block, beside Muon.")
    weight_decay: float | None = setting(None, least=0, help="Of all that trains; none: 0.01 for Muon, 0 for AdamW.")
    warmup: int = _usually(200, "warmup")
    ema: float = _usually(0.999, "ema")
    save_every: int = _usually(250, "save_every")

    def __post_init__(self):
        super().__post_init__()
        if self.mixed_precision == "fp16":  # one scaler cannot serve two optimisers
            raise InputError("mixed_precision 'fp16' is not for base training; allowed: no, bf16")


def _preset(model: str) -> dict[str, Any]:
    preset = find_preset(model)
    usual = {} if preset is None else {"budgets": preset.budgets, "steps": preset.steps, "core": preset.core}
    return SCENES_TRAINING.get(model, usual)
