"""Merge: one tree for every budget, close to the best partition there is."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from close import assert_close, bound
from references import (
    PROPERTY,
    assert_refused,
    cuts_of,
    merge_heights,
    sequential_cuts,
    smallest_errors,
    squared_error,
    trained_like,
)
from rti.method.merge import MergeTree, merge_tree, most_rounds, tie_order
from rti.method.partition import partition

# For a claim to which one made-up image in ten thousand is an exception: a build must not fail by drawing that one.
STEADY = settings(PROPERTY, derandomize=True)


@st.composite
def images(draw, ties=st.booleans(), least=1):  # noqa: B008
    """(N, d) features of one image, with many ties or none."""
    shape = draw(st.integers(least, 32)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    if draw(ties):
        return torch.randint(0, 3, shape, generator=generator).float()
    return torch.randn(shape, generator=generator)


def merged(features: torch.Tensor, budget: int, size_prior: float = 0.0) -> list[int]:
    return cuts_of(partition(features[None], budget, "merge", size_prior)[0])


def error(features: torch.Tensor, budget: int, rule: str) -> float:
    return squared_error(features, cuts_of(partition(features[None], budget, rule)[0]))


def rounds(features: torch.Tensor) -> int:
    """How often merging goes round."""
    return int(merge_tree(features).rounds.max()) + 1


# One tree.


@PROPERTY
@given(images(ties=st.just(False), least=2), st.sampled_from([0.0, 0.3, 0.5]))
def test_every_boundary_gets_the_height_that_the_rounds_give_it(features, size_prior):
    """Compared as distances of means, whose rounding is that of the features, times sqrt(size^(1 + prior))."""
    gain = len(features) ** ((1 + size_prior) / 2)
    expected, closest = merge_heights(features, size_prior)
    assume(closest > bound(features, gain=gain))
    distances = merge_tree(features[None], size_prior).heights[0].sqrt()
    assert_close(distances, torch.tensor([height.cost for height in expected]), features, gain=gain)


@PROPERTY
@given(images(), st.sampled_from([0.0, 0.5, 1.0]))
def test_regions_of_all_budgets_are_nested(features, size_prior):
    """Each budget's cuts are those of the budget before and one more, so those of any two budgets are nested."""
    cuts = [set(merged(features, budget, size_prior)) for budget in range(1, len(features) + 1)]
    for budget, (fewer, more) in enumerate(pairwise(cuts), start=1):
        assert fewer < more
        assert len(fewer) == budget - 1


def first_cuts(tree: MergeTree, budget: int) -> list[int]:
    return sorted((tree.ranked()[0, : budget - 1] + 1).tolist())


@PROPERTY
@given(images(), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_tree_for_one_budget_cuts_as_the_whole_tree_does_where_its_rounds_were_enough(features, size_prior):
    whole = merge_tree(features[None], size_prior)
    assert whole.heights.isfinite().all()
    assert not whole.left.any()
    for budget in range(1, len(features) + 1):
        partial = merge_tree(features[None], size_prior, budget)
        if partial.settled(budget):
            assert first_cuts(partial, budget) == first_cuts(whole, budget)


def test_rounds_are_nearly_always_enough_and_end_soon():
    features = torch.stack([trained_like(seed, 32, 32) for seed in range(20)])
    for size_prior in (0.0, 0.5):
        for budget in (512, 256, 64, 16):
            tree, most = merge_tree(features, size_prior, budget), most_rounds(1024, budget, size_prior)
            assert tree.rounds.max() <= most <= 24
            assert tree.settled(budget).float().mean() > 0.9
            whole = merge_tree(features, size_prior).ranked()[:, : budget - 1].sort(dim=1).values
            same = (tree.ranked()[:, : budget - 1].sort(dim=1).values == whole).all(dim=1)
            assert same.float().mean() > 0.9


@pytest.mark.parametrize("size_prior", [0.0, 0.5])
def test_fixed_shapes_give_the_tree_that_is_built_with_looking(size_prior, monkeypatch):
    """As on a GPU: every round on all runs, those that are gone too."""
    features = torch.stack([trained_like(seed, 12, 13) for seed in range(5)])
    for budget in (1, 20, 156):
        expected = merge_tree(features, size_prior, budget)
        with monkeypatch.context() as patch:
            patch.setattr("rti.method.merge._may_look", lambda device: False)
            found = merge_tree(features, size_prior, budget)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_a_tree_for_one_budget_is_right_also_where_features_are_not_finite():
    features = trained_like(0, 4, 4)[None]
    features[0, 5] = math.nan
    features[0, 11] = math.inf
    for budget in range(1, 17):
        assert first_cuts(merge_tree(features, budget=budget), budget) == first_cuts(merge_tree(features), budget)


@pytest.mark.parametrize("size_prior", [0.0, 0.3, 0.5, 1.0])
def test_a_tree_does_not_depend_on_the_rest_of_the_batch(size_prior):
    """Bit by bit: a height that is off by one rounding error decides a tie otherwise."""
    features = torch.stack([trained_like(seed, 8, 8) for seed in range(5)])
    whole = merge_tree(features, size_prior)
    alone = [merge_tree(image[None], size_prior) for image in features]
    assert torch.equal(whole.heights, torch.cat([tree.heights for tree in alone]))
    assert torch.equal(whole.variance, torch.cat([tree.variance for tree in alone]))


@pytest.mark.parametrize("size_prior", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_the_variance_lost_is_the_error_of_the_regions_of_every_budget(seed, size_prior):
    features = trained_like(seed, 9, 11)
    lost = merge_tree(features[None], size_prior).variance_lost()[0]
    expected = [squared_error(features, merged(features, budget, size_prior)) for budget in range(1, 100)]
    assert lost.tolist() == pytest.approx(expected, rel=1e-4)
    assert lost[-1] == 0.0


def test_the_trees_of_a_batch_know_each_their_own_loss():
    features = torch.stack([trained_like(seed, 6, 6) for seed in range(3)])
    lost = merge_tree(features).variance_lost()
    assert lost.shape == (3, 36)
    assert lost[:, 0].tolist() == pytest.approx([squared_error(image, []) for image in features], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_tree_is_one_of_float32(dtype):
    features = trained_like(1, 8, 8)[None].to(dtype)
    tree, expected = merge_tree(features), merge_tree(features.float())
    assert tree.heights.dtype == tree.variance.dtype == torch.float32
    assert torch.equal(tree.heights, expected.heights)


def test_the_features_stay_as_they_are():
    features = trained_like(1, 8, 8)[None]
    before = features.clone()
    merge_tree(features)
    assert torch.equal(features, before)


def test_one_patch_is_a_tree_without_boundaries():
    tree = merge_tree(torch.ones(2, 1, 3))
    assert tree.heights.shape == tree.ranked().shape == (2, 0)
    assert tree.variance_lost().tolist() == [[0.0], [0.0]]


# Ties.


def test_boundaries_that_tie_are_kept_from_coarse_to_fine():
    assert (tie_order(8) + 1).tolist() == [4, 2, 6, 1, 3, 5, 7]
    assert (tie_order(7) + 1).tolist() == [4, 2, 6, 1, 3, 5]
    assert tie_order(1).tolist() == []


@pytest.mark.parametrize("patches", [2, 16, 64, 1024])
def test_where_features_say_nothing_the_regions_are_those_of_a_quadtree(patches):
    features = torch.full((1, patches, 2), 0.7)
    for exponent in range(patches.bit_length()):
        assert torch.equal(partition(features, 2**exponent, "merge"), partition(features, 2**exponent, "fixed"))


# How good the regions are.

SEEDS = range(16)
BUDGETS = (48, 64, 96, 128)  # of 256 patches; with fewer regions even sequential merging is not always near the optimum


@pytest.fixture(scope="module")
def shortfalls() -> np.ndarray:
    """The share of the variance that merge loses beyond the optimum and sequential merging: (seed, budget, 2)."""
    rows = []
    for seed in SEEDS:
        features = trained_like(seed)
        variance = squared_error(features, [])
        best, sequential = smallest_errors(features, max(BUDGETS)), sequential_cuts(features)
        for budget in BUDGETS:
            lost = error(features, budget, "merge")
            others = np.array([best[budget - 1], squared_error(features, sequential[budget])])
            rows.append((lost - others) / variance)
    return np.array(rows).reshape(len(SEEDS), len(BUDGETS), 2)


def test_merge_comes_within_a_hundredth_of_the_optimum(shortfalls):
    assert shortfalls[..., 0].min() > -1e-6  # the optimum is one
    assert shortfalls[..., 0].max() < 0.01


def test_merge_loses_nothing_against_sequential_merging(shortfalls):
    assert shortfalls[..., 1].max() < 0.005
    assert abs(shortfalls[..., 1].mean()) < 0.0005


@STEADY
@given(st.integers(0, 2**20), st.integers(12, 24), st.integers(12, 24), st.data())
def test_merge_keeps_as_much_as_gaps(seed, height, width, data):
    patches = height * width
    budget = data.draw(st.integers(patches // 16, patches - 1))
    features = trained_like(seed, height, width)
    assert error(features, budget, "merge") <= 1.01 * error(features, budget, "gaps")


def test_on_average_merge_is_the_best_rule_and_fixed_the_worst():
    features = [trained_like(seed) for seed in range(30)]
    for budget in (64, 96, 128):
        merge, gaps, fixed = (
            np.mean([error(image, budget, rule) / squared_error(image, []) for image in features])
            for rule in ("merge", "gaps", "fixed")
        )
        assert merge < 0.95 * gaps
        assert gaps < 0.95 * fixed


def test_a_size_prior_makes_the_sizes_more_even():
    def evenness(features: torch.Tensor, size_prior: float) -> float:
        shares = np.diff([0, *merged(features, 64, size_prior), len(features)]) / len(features)
        return -(shares * np.log(shares)).sum()

    for seed in range(12):
        features = trained_like(seed)
        by_prior = [evenness(features, size_prior) for size_prior in (0.0, 0.5, 2.0)]
        assert by_prior == sorted(by_prior)
        assert by_prior[1] > by_prior[0] + 0.02


# How fast it is done.


@pytest.mark.parametrize("seed", range(6))
def test_a_thousand_patches_are_joined_in_few_rounds(seed):
    assert 10 <= rounds(trained_like(seed, 32, 32)[None]) < 40  # ten at least, as a round can only halve


def test_a_batch_needs_no_more_rounds_than_its_slowest_image():
    features = torch.stack([trained_like(seed) for seed in range(4)])
    alone = [rounds(image[None]) for image in features]
    assert rounds(features) == max(alone)


@pytest.mark.parametrize("patches", [1000, 1024, 3072])
def test_constant_features_are_joined_in_as_many_rounds_as_a_quadtree_has_levels(patches):
    assert rounds(torch.ones(1, patches, 3)) == math.ceil(math.log2(patches))


@pytest.mark.parametrize("growth", ["linear", "quadratic", "exponential"])
@pytest.mark.parametrize("downwards", [False, True])
def test_a_monotone_ramp_comes_to_an_end_and_is_right(growth, downwards):
    """The worst case: costs that only rise along the walk have one smallest, and leave little to join in a round.

    A tree for one budget leaves off before; what is left it cuts by its cost.
    """
    position = torch.arange(40, dtype=torch.float32)
    ramp = {"linear": position, "quadratic": position**2, "exponential": 1.5**position}[growth][:, None]
    ramp = ramp.flip(0) if downwards else ramp
    tree = merge_tree(ramp[None])
    distances = tree.heights[0].sqrt().tolist()
    assert distances == pytest.approx([height.cost for height in merge_heights(ramp)[0]], rel=1e-4)
    sequential = sequential_cuts(ramp)
    for budget in range(1, 41):
        lost = squared_error(ramp, first_cuts(tree, budget))
        assert lost == pytest.approx(squared_error(ramp, sequential[budget]), rel=1e-6)
        assert len(merged(ramp, budget)) == budget - 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (dict(features=[1.0]), "list"),
        (dict(features=torch.ones(4, 3)), "(4, 3)"),
        (dict(features=torch.ones(0, 4, 3)), "(0, 4, 3)"),
        (dict(size_prior="much"), "'much'"),
        (dict(size_prior=10**400), "size_prior"),
        (dict(budget="few"), "'few'"),
        (dict(budget=9), "budget 9"),
    ],
)
def test_what_cannot_be_merged_is_refused(wrong, named):
    assert_refused(lambda: merge_tree(**{"features": torch.ones(1, 8, 3)} | wrong), named)
