"""Bootstrap intervals of means, stratified: every resample draws as many values from each stratum as it has.

Of values that are all alike, such as a single one, every resample is the same, and a bootstrap would claim certainty.
Then shares (of right pictures, 0 to 1) have Wilson's interval, which knows how few they are: 1 of 1 is 21 to 100 %.
Anything else (scores, paired differences) has none: of values that do not vary nobody knows how they would.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from rti.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95
Interval = list[float]  # low and high


class Summary(NamedTuple):
    """The mean of each stratum, its interval, the unweighted mean of those means, and its interval, where there are."""

    means: dict[Hashable, float]
    intervals: dict[Hashable, Interval | None]
    overall: float
    interval: Interval | None


def mean_interval(values: np.ndarray) -> Interval | None:
    """The interval of the mean of some values, (n,)."""
    return stratified_summary(values, ["all"] * len(values)).interval


def wilson_interval(share: float, count: float) -> Interval:
    """Wilson's 95 % interval of a share of `count` trials (1927): never of no width."""
    z2 = 1.959964**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = (z2 * (share * (1 - share) / count + z2 / (4 * count**2))) ** 0.5 / (1 + z2 / count)
    return [max(0.0, min(share, float(middle - half))), min(1.0, max(share, float(middle + half)))]  # rounding aside


def stratified_summary(
    values: np.ndarray, strata: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = 0, shares: bool = False
) -> Summary:
    """Means and intervals within and over the strata, which are listed in order of appearance.

    `shares`: the values are shares of right pictures, in [0, 1].
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) != len(strata) or not len(values):
        raise InputError(f"need one value per stratum label, got values {values.shape} and {len(strata)} labels")
    if resamples < 1:
        raise InputError(f"need at least one resample, got {resamples}")

    def interval(samples: np.ndarray, mean: float, count: float) -> Interval | None:
        if np.allclose(samples, samples[0], rtol=1e-9, atol=1e-12):
            return wilson_interval(mean, count) if shares else None
        return np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()

    rng = np.random.default_rng(seed)
    members = {stratum: values[[label == stratum for label in strata]] for stratum in dict.fromkeys(strata)}
    samples = [some[rng.integers(len(some), size=(resamples, len(some)))].mean(axis=1) for some in members.values()]
    means = {stratum: float(some.mean()) for stratum, some in members.items()}
    intervals = {
        name: interval(drawn, means[name], len(members[name])) for name, drawn in zip(members, samples, strict=True)
    }
    overall = float(np.mean(list(means.values())))
    count = len(members) ** 2 / sum(1 / len(some) for some in members.values())  # all, where strata are of one size
    return Summary(means, intervals, overall, interval(np.mean(samples, axis=0), overall, count))
