"""Bootstrap intervals of means, stratified: every resample draws as many values from each stratum as it has."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from rti.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95
Interval = tuple[float, float]


class Summary(NamedTuple):
    """The mean of each stratum, its interval, the unweighted mean of those means, and its interval."""

    means: dict[Hashable, float]
    intervals: dict[Hashable, Interval]
    overall: float
    interval: Interval


def resampled_means(
    values: np.ndarray, strata: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = 0
) -> dict[Hashable, np.ndarray]:
    """Means of bootstrap resamples within each stratum, strata in order of appearance. (n,) -> (resamples,) each."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) != len(strata) or not len(values):
        raise InputError(f"need one value per stratum label, got values {values.shape} and {len(strata)} labels")
    if resamples < 1:
        raise InputError(f"need at least one resample, got {resamples}")
    rng = np.random.default_rng(seed)
    means = {}
    for stratum in dict.fromkeys(strata):
        members = values[[label == stratum for label in strata]]
        means[stratum] = members[rng.integers(len(members), size=(resamples, len(members)))].mean(axis=1)
    return means


def percentile_interval(samples: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the samples: (low, high)."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def stratified_summary(
    values: np.ndarray, strata: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = 0
) -> Summary:
    """Means and intervals within and over the strata, which are listed in order of appearance."""
    values = np.asarray(values, dtype=np.float64)
    samples = resampled_means(values, strata, resamples, seed)
    means = {stratum: float(values[[label == stratum for label in strata]].mean()) for stratum in samples}
    intervals = {stratum: percentile_interval(drawn) for stratum, drawn in samples.items()}
    overall = percentile_interval(np.mean(list(samples.values()), axis=0))
    return Summary(means, intervals, float(np.mean(list(means.values()))), overall)
