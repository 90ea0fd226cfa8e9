"""The configuration of a region interface."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar

from rti.errors import InputError, check_choice, check_finite, check_switch, check_whole, is_finite

ORDER_NAMES = ("hilbert", "morton", "raster")
CUT_NAMES = ("gaps", "merge", "fixed")
CUT_SOURCES = ("features", "estimate")
INTERFACES = ("learned", "mean")
POSITIONS = ("average", "centre")
HIGHEST_RANK = 2**14  # wider than any layer: one from a file could ask for all memory


def setting(default: Any = MISSING, *, help: str, **limits: Any) -> Any:
    """A field of settings: the words that --help has for it, and what `rti.training.config` checks of it."""
    return dataclasses.field(default=default, metadata={"help": help} | limits)


@dataclass(frozen=True)
class ReductionConfig:
    """What every reduction shares: the span of blocks it shortens, and the LoRA that fits the trunk to it."""

    name: ClassVar[str]

    # Counted from 0, both included.
    core: tuple[int, int] = setting(help="First and last block of the core, such as 3,13. Default: the preset's.")
    lora_rank: int = setting(32, help="Of the LoRA on the trunk's projections.")
    lora_alpha: int = setting(32, help="Its scale, over the rank.")
    text_regions: bool = False  # whether the text stream can be shortened too, see rti.method.text_regions
    one_pass: tuple[float, float] | None = None  # guidance scales that one pass can draw at, see rti.method.guidance

    def __post_init__(self):
        core = self.core
        two = isinstance(core, (tuple, list)) and len(core) == 2
        if not two or not all(type(block) is int for block in core) or not 0 <= core[0] <= core[1]:
            raise InputError(f"core {core!r} is not usable; allowed: (first, last) with 0 <= first <= last")
        object.__setattr__(self, "core", tuple(core))
        for field in ("lora_rank", "lora_alpha"):
            check_whole(field, getattr(self, field), HIGHEST_RANK)
        check_switch("text_regions", self.text_regions)
        if self.one_pass is not None:
            object.__setattr__(self, "one_pass", check_scales("one_pass", self.one_pass))

    def check_fits(self, depth: int) -> None:
        if self.core[1] >= depth:
            raise InputError(f"core {self.core} is outside the trunk; allowed: blocks 0 to {depth - 1}")

    @classmethod
    def training_defaults(cls) -> dict[str, Any]:
        """What a new run of `rti train` starts with, where it is not the field's own default."""
        return {}

    @classmethod
    def own_core(cls, core: tuple[int, int]) -> tuple[int, int]:
        """The blocks this method shortens by itself, where region tokens have this core."""
        return core

    def to_dict(self) -> dict[str, Any]:
        return {"reduction": self.name} | asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ReductionConfig:
        if not isinstance(values, dict):
            raise InputError(f"the values of {cls.__name__} must be a dict, got {values!r}")
        known = {field.name for field in fields(cls)}
        unknown = sorted(map(str, set(values) - known))
        if unknown:
            allowed = ", ".join(sorted(known))
            raise InputError(f"unknown fields of {cls.__name__}: {', '.join(unknown)}; allowed: {allowed}")
        if "core" not in values:
            raise InputError(f"{cls.__name__} needs core, the first and last block of the core")
        return cls(**values)


@dataclass(frozen=True)
class RegionConfig(ReductionConfig):
    """The region token interface.

    `cuts` is the rule that makes regions, `cuts_from` what it looks at: the features entering the core (the paper), or
    the clean image predicted at the step before (ours), which the caller passes as `estimate`; without it the cuts are
    evenly spaced.
    """

    name: ClassVar[str] = "region"

    order: str = setting("hilbert", help="The walk over the patches: hilbert, morton or raster.")
    cuts: str = setting("gaps", help="The rule of cutting the walk: merge, gaps or fixed.")
    cuts_from: str = setting("features", help="What it looks at: estimate (of the clean picture) or features.")
    size_prior: float | None = setting(
        None, help="Exponent of the size in the cost of merge. Default: 0.5 from the estimate, else 0."
    )
    # What the paper takes away to see what it is worth:
    interface: str = setting("learned", help="learned, or mean: pool by the mean, broadcast the change, learn nothing.")
    position: str = setting("average", help="Of a region: average of its patches' phasors, or those at its centre.")
    size_embedding: bool = setting(True, help="Tell the core how large each region is.")
    sized_write: bool = setting(False, help="Write by a map that depends on the region's size (ours).")
    sized_attention: bool = setting(False, help="In the core's attention a region counts for all its patches (ours).")

    def __post_init__(self):
        super().__post_init__()
        choices = {"order": ORDER_NAMES, "cuts": CUT_NAMES, "cuts_from": CUT_SOURCES}
        choices |= {"interface": INTERFACES, "position": POSITIONS}
        for field, allowed in choices.items():
            check_choice(field, getattr(self, field), allowed)
        check_switch("size_embedding", self.size_embedding)
        check_switch("sized_write", self.sized_write)
        check_switch("sized_attention", self.sized_attention)
        if self.size_prior is None:
            object.__setattr__(self, "size_prior", 0.5 if self.cuts_from == "estimate" else 0.0)
        check_finite("size_prior", self.size_prior, least=0)

    @classmethod
    def training_defaults(cls) -> dict[str, Any]:
        return {"cuts": "merge", "cuts_from": "estimate"}

    @classmethod
    def untrained_defaults(cls) -> dict[str, Any]:
        """What suits an interface that nothing has trained: nobody has told its attention how large a region is."""
        return cls.training_defaults() | {"sized_attention": True}


def check_scales(name: str, scales: Any) -> tuple[float, float]:
    """The least and the highest of a range of guidance scales."""
    two = isinstance(scales, (tuple, list)) and len(scales) == 2
    if not two or not all(is_finite(scale) for scale in scales) or not 1 <= scales[0] <= scales[1]:
        raise InputError(f"{name} {scales!r} is not usable; allowed: a range such as 1.5..7, from 1 up")
    return float(scales[0]), float(scales[1])


def check_all_finite(settings: Any) -> None:
    """Refuse infinity and what is no number, in any field of a dataclass of settings."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        for number in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(number, float):
                check_finite(field.name, number)
