"""What a backbone must offer: the protocol that lets a token reduction run inside any of them.

A family is one file with a subclass of `Backbone`. Whatever is special about it (its streams, its conditioning, its
rotary convention) stays in that file; the rest of the package sees only what is declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rti.errors import InputError, check_choice, check_finite, check_whole
from rti.flow import MOST_STEPS

MOST_BLOCKS, WIDEST = 1000, 2**20  # of any model: a config of more is damaged, or is there to fill the memory
MOST_TABLE = 2**25  # numbers in a table of positions, which no checkpoint holds: patches or text tokens times channels


class Tokens(NamedTuple):
    """What flows through the blocks. A reduction replaces `image`, `phasors` and `log_sizes`, nothing else."""

    image: torch.Tensor  # (B, N, D)
    phasors: torch.Tensor  # (1 or B, N, P) rotary position of each image token, [cos | sin], float32
    side: torch.Tensor | None = None  # (B, S, D) text or in-context tokens, once they have joined
    context: Any = None  # whatever else the family's blocks need, such as an embedding of the time
    log_sizes: torch.Tensor | None = None  # (B, N) attention sees each image token exp(this) times; None: once


class Condition:
    """Base of what a picture is conditioned on. Subclasses are frozen dataclasses of tensors with a leading batch."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, index: Any) -> Condition:
        """Some of the batch; `index` is a slice or a tensor of indices."""
        return self._map(lambda value: value[index])

    def _map(self, function: Callable[..., torch.Tensor], *others: Condition) -> Condition:
        """A function of each tensor, and of the others' tensors of the same name."""
        values = {}
        for field in fields(self):
            parts = [getattr(condition, field.name) for condition in (self, *others)]
            values[field.name] = None if parts[0] is None else function(*parts)
        return replace(self, **values)

    def to(self, device: torch.device | str) -> Condition:
        return self._map(lambda value: value.to(device))

    def where(self, keep: torch.Tensor, other: Condition) -> Condition:
        """Row by row this condition where `keep` (B,), else the other."""
        return self._map(lambda a, b: torch.where(keep.view(-1, *[1] * (a.ndim - 1)), a, b), other)

    @staticmethod
    def cat(conditions: Sequence[Condition]) -> Condition:
        """Several conditions of one kind as one batch."""
        return conditions[0]._map(lambda *parts: torch.cat(parts), *conditions[1:])


@dataclass(frozen=True)
class FlowSettings:
    """How a family samples, and what its noise looks like."""

    noise_scale: float
    sampler: str  # "euler" or "heun"
    steps: int
    guidance_scale: float
    guidance_interval: tuple[float, float]
    time_floor: float = 0.05  # 1 - t is never taken to be smaller

    def __post_init__(self):
        check_choice("sampler", self.sampler, ("euler", "heun"))
        check_whole("sampling steps", self.steps, MOST_STEPS)
        interval = self.guidance_interval
        if not isinstance(interval, tuple) or len(interval) != 2:
            raise InputError(f"guidance interval {interval!r} is not usable; allowed: (from, to)")
        for name in ("noise_scale", "guidance_scale", "time_floor"):
            check_finite(name, getattr(self, name))
        check_finite("guidance interval", interval[0])
        check_finite("guidance interval", interval[1])


class Backbone(nn.Module):
    """A pixel-space transformer that predicts the clean image, split where a token reduction needs it split."""

    family: str
    config_type: type  # a frozen dataclass whose fields are those of the release's config
    config_marker: str  # a field that only this family's configs have
    weight_marker: str  # a key that only this family's checkpoints have
    weight_prefix: str  # what the release puts before every key
    condition_type: type[Condition]
    conditioned_on: str  # "text" or "labels"
    lora_targets: tuple[str, ...]  # linear layers that get LoRA: those that give the paper's trainable counts
    block_types: tuple[type[nn.Module], ...]  # what is repeated: compiled, checkpointed and sharded one by one

    hidden_size: int
    depth: int
    patch_size: int
    channels: int
    grid: tuple[int, int]  # rows and columns of patches
    patch_phasors: nn.Module  # called, the rotary position of each patch, (1, N, P): [cos | sin], float32
    flow: FlowSettings

    source: dict[str, Any] | None = None  # how to load it again, set by the loader
    attached: bool = False  # whether a reduction is attached
    gradient_checkpointing: bool = False  # in training, compute a block's activations twice instead of keeping them

    # The protocol: six methods, and a seventh for guidance in one pass.

    def condition(self, **inputs: Any) -> Condition:
        """Check what the user conditions on, and pack it."""
        raise NotImplementedError

    def prepare(self, condition: Condition) -> Condition:
        """Compute once what depends on the condition alone. A forward pass does it where it has not been done."""
        return condition

    def unconditional(self, condition: Condition) -> Condition:
        """The condition of the unguided branch, for the same batch."""
        raise NotImplementedError

    def embed(self, x: torch.Tensor, t: torch.Tensor, condition: Condition) -> Tokens:
        """Noisy image (B, 3, H, W), time (B,) -> tokens before the first block."""
        raise NotImplementedError

    def run(self, tokens: Tokens, start: int, stop: int) -> Tokens:
        """The blocks start, ..., stop - 1, on however many image tokens there are."""
        raise NotImplementedError

    def head(self, tokens: Tokens) -> torch.Tensor:
        """Tokens after the last block -> clean image (B, 3, H, W), float32."""
        raise NotImplementedError

    def beside(self, condition: Condition, token: torch.Tensor) -> Condition:
        """A prepared condition with one more token (B, 1, D) beside the text or the class."""
        raise InputError(f"{type(self).__name__} takes no token beside its condition; it is guided by two passes")

    # And what a loader and a cost model need to know.

    @classmethod
    def known_sizes(cls, state: dict[str, torch.Tensor], settings: dict[str, Any]) -> dict[str, Any]:
        """Fields of the config that a checkpoint without a config file tells by its weights or stored settings."""
        return {}

    def block_flops(self, block: int, image_tokens: float, text_tokens: int | None = None) -> float:
        """Multiply-adds times two of one block's linear layers and attention, for one picture.

        `text_tokens` says how many there are where the text is shortened.
        """
        raise NotImplementedError

    def forward(
        self,
        x: torch.Tensor,
        t: torch.Tensor | float,
        condition: Condition,
        budget: None = None,
        estimate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The clean image predicted from the noisy one: (B, 3, H, W), time (B,) or a number -> (B, 3, H, W).

        Called as an attached model is; a backbone alone has no budget to turn and no use for an estimate.
        """
        if budget is not None:
            raise InputError(f"budget {budget!r} given to a backbone alone; attach a reduction first, by rti.attach")
        tokens = self.embed(*self.check(x, t, condition), condition)
        return self.head(self.run(tokens, 0, self.depth))

    def reset_parameters(self) -> None:
        """Weights to start base training from, by torch's own generator."""
        raise NotImplementedError

    # Facts that follow from the above.

    def call_block(self, block: nn.Module, *inputs: torch.Tensor) -> Any:
        """Run a block, with its activations kept or not."""
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def repeated_blocks(self) -> list[nn.Module]:
        return [module for module in self.modules() if isinstance(module, self.block_types)]

    def compile_repeated_blocks(self, **options: Any) -> None:
        """Compile the blocks in place, as diffusers' method of this name; those of a kind share their graphs.

        `options` are those of torch.compile.
        """
        blocks = self.repeated_blocks()
        if not blocks:
            raise InputError(f"{type(self).__name__} has no blocks to compile: block_types name none of its modules")
        for block in blocks:
            block.compile(**options)

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def image_size(self) -> tuple[int, int]:
        return self.grid[0] * self.patch_size, self.grid[1] * self.patch_size

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def check(self, x: torch.Tensor, t: Any, condition: Condition) -> tuple[torch.Tensor, torch.Tensor]:
        """Refuse an image that does not fit, and give every image its time."""
        height, width = self.image_size
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            given = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise InputError(f"image batch is a {given}; allowed: a tensor of floating-point numbers")
        if x.ndim != 4 or tuple(x.shape[1:]) != (self.channels, height, width):
            allowed = f"(batch, {self.channels}, {height}, {width})"
            raise InputError(f"image batch of shape {tuple(x.shape)} does not fit this checkpoint; allowed: {allowed}")
        if len(x) == 0:
            raise InputError("an empty batch of images; give at least one")
        if not isinstance(condition, self.condition_type):
            name = type(self).__name__
            raise InputError(f"condition is a {type(condition).__name__}; {name} takes what its condition() gives")
        if len(condition) != len(x):
            raise InputError(f"{len(x)} images but {len(condition)} conditions; give one condition per image")
        try:
            t = torch.as_tensor(t, dtype=torch.float32, device=x.device)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise InputError(f"time is a {type(t).__name__}; give one number, or one per image") from None
        if t.ndim > 1 or (t.ndim == 1 and len(t) != len(x)):
            raise InputError(f"time of shape {tuple(t.shape)} for {len(x)} images; give one number, or one per image")
        return x, t.expand(len(x))


def check_table(name: str, length: int, width: int) -> None:
    """Refuse sizes whose table of positions would fill the memory, before it is made."""
    if length * width > MOST_TABLE:
        raise InputError(f"{name} {length} of {width} channels is too large; allowed: {MOST_TABLE} numbers")


def grid_of(image_size: int | Sequence[int], patch_size: int) -> tuple[int, int]:
    """Rows and columns of patches of an image."""
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise InputError(f"image size {image_size!r} is not usable; allowed: a number of pixels, or (height, width)")
    height, width = sides
    for name, value in (("height", height), ("width", width), ("patch_size", patch_size)):
        check_whole(name, value, WIDEST)
    if height % patch_size or width % patch_size:
        raise InputError(f"{height} x {width} pixels do not divide into patches of {patch_size} x {patch_size}")
    return height // patch_size, width // patch_size
