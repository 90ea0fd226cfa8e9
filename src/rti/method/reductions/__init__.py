"""Token reductions by name, ours and the baselines, behind one contract."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Any

from rti.backbones.base import Backbone
from rti.errors import InputError, check_choice
from rti.method.config import ReductionConfig, RegionConfig
from rti.method.guidance import GuidanceToken
from rti.method.reductions.base import Reduction, Span
from rti.method.reductions.dense import DenseConfig, DenseReduction
from rti.method.reductions.latents import LatentConfig, LatentReduction
from rti.method.reductions.region import RegionReduction
from rti.method.reductions.similarity import SimilarityConfig, SimilarityReduction
from rti.method.reductions.skip import SkipConfig, SkipReduction
from rti.method.text_regions import TextRegions

__all__ = ["REDUCTIONS", "Reduction", "Span", "config_from_dict", "make_reduction", "register"]

REDUCTIONS: dict[str, tuple[type[ReductionConfig], type[Reduction]]] = {
    RegionConfig.name: (RegionConfig, RegionReduction),
    SimilarityConfig.name: (SimilarityConfig, SimilarityReduction),
    LatentConfig.name: (LatentConfig, LatentReduction),
    SkipConfig.name: (SkipConfig, SkipReduction),
    DenseConfig.name: (DenseConfig, DenseReduction),
}


def register(config: type[ReductionConfig], reduction: type[Reduction]) -> None:
    """Make a reduction known by its config's name; see docs/reductions.md, also for what an installed package does."""
    for given, kind in ((config, ReductionConfig), (reduction, Reduction)):
        if not isinstance(given, type) or not issubclass(given, kind):
            raise InputError(f"{given!r} cannot be registered; allowed: a subclass of {kind.__name__}")
    if not isinstance(getattr(config, "name", None), str):
        raise InputError(f"{config.__name__} has no name")
    if REDUCTIONS.get(config.name, (config, reduction)) != (config, reduction):
        raise InputError(f"there is a reduction {config.name!r} already; give {config.__name__} another name")
    REDUCTIONS[config.name] = (config, reduction)


def register_installed() -> None:
    """What installed packages offer under the entry point "rti.reductions": pairs of a config and a reduction."""
    for point in entry_points(group="rti.reductions"):
        try:
            register(*point.load())
        except Exception as error:  # somebody's package must not keep the others from running
            warnings.warn(f"the reduction {point.value} cannot be used: {error}", stacklevel=2)


def make_reduction(config: ReductionConfig, backbone: Backbone) -> Reduction:
    reduction = REDUCTIONS[config.name][1](config, backbone)
    if config.text_regions:
        reduction.text = TextRegions(backbone)
    if config.one_pass is not None:
        reduction.guidance = GuidanceToken(backbone.hidden_size)
    return reduction


def config_from_dict(values: dict[str, Any]) -> ReductionConfig:
    """The inverse of `ReductionConfig.to_dict`."""
    values = dict(values)
    name = values.pop("reduction", RegionConfig.name)
    check_choice("reduction", name, REDUCTIONS)
    return REDUCTIONS[name][0].from_dict(values)


register_installed()
