"""Accuracy per task and overall, with bootstrap intervals."""

import json

import numpy as np
import pytest

from rti.lab.intervals import mean_interval, percentile_interval, resampled_means, stratified_summary
from rti.lab.scenes.render import render
from rti.lab.scenes.score import paired_difference, score
from rti.lab.scenes.world import TASKS, prompts

RESAMPLES = 300


@pytest.fixture(scope="module")
def scenes():
    return prompts(120, 5)


@pytest.fixture(scope="module")
def images(scenes):
    return render(scenes, np.random.default_rng(5))


def spoiled(images: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Some pictures emptied."""
    empty = np.random.default_rng(seed).random(len(images)) < share
    return np.where(empty[:, None, None, None], 0, images)


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


def test_score_equals_a_plain_reference(scenes, images):
    result = score(scenes, spoiled(images, 0.3, 1), RESAMPLES, seed=9)
    labels = [scene.task for scene in scenes]
    assert 0.5 < result.correct.mean() < 0.9
    for task in TASKS:
        right = [bool(value) for value, label in zip(result.correct, labels, strict=True) if label == task]
        assert result.tasks[task] == pytest.approx(sum(right) / len(right))
    assert result.overall == pytest.approx(sum(result.tasks.values()) / 6)
    samples = plain_samples(result.correct, labels, RESAMPLES, 9)
    for task in TASKS:
        assert result.task_intervals[task] == pytest.approx(plain_interval(samples[task]))
    means = [sum(row) / 6 for row in zip(*samples.values(), strict=True)]
    assert result.interval == pytest.approx(plain_interval(means))
    assert result.interval[0] < result.overall < result.interval[1]


def test_overall_is_the_unweighted_mean_of_the_tasks(scenes, images):
    """Ten wrong pictures of one task against one right picture of another give one half."""
    single = [index for index, scene in enumerate(scenes) if scene.task == "single_object"][:10]
    position = [index for index, scene in enumerate(scenes) if scene.task == "position"][:1]
    chosen = single + position
    pictures = np.concatenate([np.zeros_like(images[single]), images[position]])
    result = score([scenes[index] for index in chosen], pictures)
    assert result.tasks == {"single_object": 0.0, "position": 1.0}
    # Wilson's, of 2^2 / (1 / 10 + 1 / 1) = 3.6 pictures: the one counts as much as the ten.
    assert result.overall == 0.5 and result.interval == pytest.approx((0.1416, 0.8584), abs=1e-3)
    assert result.reasons[0].startswith("expected 1 ") and result.reasons[-1] == ""


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
    samples = resampled_means(values, labels, 4000)
    low, high = percentile_interval(np.mean([samples["easy"], samples["hard"]], axis=0))
    error = np.sqrt(sum(values[part].var() / 600 for part in (slice(0, 600), slice(600, 1200)))) / 2
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.06)
    # Without strata the spread between the tasks would count as noise, although each resample keeps the balance.
    mixed = resampled_means(values, ["all"] * 1200, 4000)["all"]
    assert high - low < 0.95 * np.subtract(*percentile_interval(mixed)[::-1])


def test_paired_difference_equals_a_plain_reference(scenes, images):
    first = score(scenes, spoiled(images, 0.2, 1))
    second = score(scenes, spoiled(images, 0.5, 2))
    result = paired_difference(first, second, RESAMPLES, seed=4)
    change = first.correct.astype(int) - second.correct.astype(int)
    labels = [scene.task for scene in scenes]
    samples = plain_samples(change, labels, RESAMPLES, 4)
    means = [sum(row) / 6 for row in zip(*samples.values(), strict=True)]
    assert result.overall == pytest.approx(first.overall - second.overall)
    assert result.interval == pytest.approx(plain_interval(means))
    for task in TASKS:
        assert result.tasks[task] == pytest.approx(first.tasks[task] - second.tasks[task])
        assert result.task_intervals[task] == pytest.approx(plain_interval(samples[task]))
    assert 0 < result.interval[0] < result.overall < result.interval[1]


def test_paired_difference_of_equal_runs_is_exactly_zero(scenes, images):
    result = score(scenes, spoiled(images, 0.4, 3))
    difference = paired_difference(result, result)
    assert difference.overall == 0 and difference.interval is None  # nothing varies that could be resampled
    assert result.interval[1] - result.interval[0] > 0.05


def test_paired_difference_needs_the_same_prompts(scenes, images):
    first, second = score(scenes[:60], images[:60]), score(scenes[60:], images[60:])
    with pytest.raises(ValueError, match="same prompts in the same order"):
        paired_difference(first, second)


def test_scores_repeat_and_go_to_json(scenes, images):
    pictures = spoiled(images, 0.3, 1)
    first, second, other = (score(scenes, pictures, RESAMPLES, seed).as_dict() for seed in (0, 0, 1))
    assert first == second and first != other
    line = json.loads(json.dumps(first))
    assert set(line["tasks"]) == set(TASKS) and line["images"] == 120
    assert line["overall"] == first["overall"] and len(line["interval"]) == 2


def test_nonsense_is_refused(scenes, images):
    with pytest.raises(ValueError, match="one picture per scene, got 120 scenes and 119 pictures"):
        score(scenes, images[:-1])
    with pytest.raises(ValueError, match="one picture per scene, got 0"):
        score([], images[:0])
    with pytest.raises(ValueError, match="at least one resample, got 0"):
        resampled_means(np.ones(2), ["a", "b"], 0)
    with pytest.raises(ValueError, match="one value per stratum label"):
        resampled_means(np.ones(2), ["a"])
