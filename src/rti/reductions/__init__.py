"""Token reductions by name, ours and the baselines, behind one contract."""

from __future__ import annotations

from typing import Any

from rti.backbones.base import Backbone
from rti.config import ReductionConfig, RegionConfig
from rti.errors import InputError
from rti.reductions.base import Reduction, Span
from rti.reductions.dense import DenseConfig, DenseReduction
from rti.reductions.latents import LatentConfig, LatentReduction
from rti.reductions.region import RegionReduction
from rti.reductions.similarity import SimilarityConfig, SimilarityReduction
from rti.reductions.skip import SkipConfig, SkipReduction
from rti.text_regions import TextRegions

__all__ = ["REDUCTIONS", "Reduction", "Span", "config_from_dict", "make_reduction"]

REDUCTIONS: dict[str, tuple[type[ReductionConfig], type[Reduction]]] = {
    RegionConfig.name: (RegionConfig, RegionReduction),
    SimilarityConfig.name: (SimilarityConfig, SimilarityReduction),
    LatentConfig.name: (LatentConfig, LatentReduction),
    SkipConfig.name: (SkipConfig, SkipReduction),
    DenseConfig.name: (DenseConfig, DenseReduction),
}


def make_reduction(config: ReductionConfig, backbone: Backbone) -> Reduction:
    reduction = REDUCTIONS[config.name][1](config, backbone)
    if config.text_regions:
        reduction.text = TextRegions(backbone)
    return reduction


def config_from_dict(values: dict[str, Any]) -> ReductionConfig:
    """The inverse of `ReductionConfig.to_dict`."""
    values = dict(values)
    name = values.pop("reduction", RegionConfig.name)
    if name not in REDUCTIONS:
        raise InputError(f"unknown reduction {name!r}; allowed: {', '.join(REDUCTIONS)}")
    return REDUCTIONS[name][0].from_dict(values)
