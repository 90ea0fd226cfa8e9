"""Bootstrap intervals, stratified, against plain loops and formulas."""

import numpy as np
import pytest

from rti.lab.intervals import mean_interval, stratified_summary
from rti.lab.scenes import TASKS

RESAMPLES = 300


def plain_samples(values: np.ndarray, labels: list[str], resamples: int, seed: int) -> dict[str, list[float]]:
    """The same bootstrap in plain loops: indices in the order of the tasks, one mean at a time."""
    rng = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {}
    for task in dict.fromkeys(labels):
        members = [float(value) for value, label in zip(values, labels, strict=True) if label == task]
        draws = rng.integers(len(members), size=(resamples, len(members)))
        samples[task] = [sum(members[index] for index in row) / len(members) for row in draws]
    return samples


def plain_interval(samples: list[float]) -> tuple[float, float]:
    """2.5 and 97.5 per cent by linear interpolation between the ordered samples."""
    ordered, bounds = sorted(samples), []
    for share in (0.025, 0.975):
        position = share * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        bounds.append(ordered[low] + (position - low) * (ordered[high] - ordered[low]))
    return tuple(bounds)


@pytest.mark.parametrize("shares", [True, False])
def test_a_summary_equals_a_plain_reference(shares):
    """Of verdicts, and of their paired differences."""
    rng, labels = np.random.default_rng(1), list(TASKS) * 20
    values = (rng.random(120) < 0.7).astype(float) - (0 if shares else rng.random(120) < 0.4)
    found = stratified_summary(values, labels, RESAMPLES, 9, shares)
    samples = plain_samples(values, labels, RESAMPLES, 9)
    for task in TASKS:
        members = [value for value, label in zip(values, labels, strict=True) if label == task]
        assert found.means[task] == pytest.approx(sum(members) / 20)
        assert found.intervals[task] == pytest.approx(plain_interval(samples[task]))
    assert found.overall == pytest.approx(sum(found.means.values()) / 6)
    assert found.interval == pytest.approx(
        plain_interval([sum(row) / 6 for row in zip(*samples.values(), strict=True)])
    )
    assert found.interval[0] < found.overall < found.interval[1]
    assert found == stratified_summary(values, labels, RESAMPLES, 9, shares)
    assert found.interval != stratified_summary(values, labels, RESAMPLES, 8, shares).interval


def test_overall_is_the_unweighted_mean_of_the_strata():
    """Ten wrong pictures of one task against one right picture of another give one half."""
    found = stratified_summary(np.array([0] * 10 + [1]), ["single"] * 10 + ["position"], shares=True)
    assert found.means == {"single": 0.0, "position": 1.0}
    # Wilson's, of 2^2 / (1 / 10 + 1 / 1) = 3.6 pictures: the one counts as much as the ten.
    assert found.overall == 0.5 and found.interval == pytest.approx((0.1416, 0.8584), abs=1e-3)


@pytest.mark.parametrize(
    ("right", "interval"),
    [
        ([1], (0.2065, 1)),  # by Wilson's formula, from a table
        ([0], (0, 0.7935)),
        ([1] * 40, (0.9124, 1)),
        ([0.5, 0.5], (0.0945, 0.9055)),
    ],
)
def test_shares_that_do_not_vary_have_wilsons_interval(right, interval):
    found = stratified_summary(np.array(right), ["a"] * len(right), shares=True)
    assert found.interval == found.intervals["a"] == pytest.approx(interval, abs=1e-4)


def test_one_picture_of_each_task_claims_no_certainty():
    """Five of six are right: 44 to 97 % by Wilson's formula, in the place of 83 to 83."""
    found = stratified_summary(np.array([1, 1, 0, 1, 1, 1]), TASKS, shares=True)
    assert found.interval == pytest.approx((0.4365, 0.9699), abs=1e-4)
    assert found.intervals["counting"] == pytest.approx((0, 0.7935), abs=1e-4)
    assert stratified_summary(np.array([1, 1, 0, 1, 1, 1]), TASKS).interval is None  # scores, or differences
    assert mean_interval(np.array([0.3])) is None
    assert mean_interval(np.array([0.3, 0.4])) == pytest.approx((0.3, 0.4))


def test_interval_agrees_with_the_normal_approximation():
    rng = np.random.default_rng(0)
    values = rng.random(1200) < np.repeat([0.9, 0.5], 600)
    labels = np.repeat(["easy", "hard"], 600).tolist()
    low, high = stratified_summary(values, labels, 4000).interval
    error = np.sqrt(sum(values[part].var() / 600 for part in (slice(0, 600), slice(600, 1200)))) / 2
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.06)
    # Without strata the spread between the tasks would count as noise, although each resample keeps the balance.
    mixed = stratified_summary(values, ["all"] * 1200, 4000).interval
    assert high - low < 0.95 * (mixed[1] - mixed[0])


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one resample, got 0"):
        stratified_summary(np.ones(2), ["a", "b"], 0)
    with pytest.raises(ValueError, match="one value per stratum label"):
        stratified_summary(np.ones(2), ["a"])
